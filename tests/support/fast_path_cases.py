"""Cases that the fast paths of a graph take, with their inputs."""

import numpy as np

from models.catalogue import BLOCKS

SIZES = {"heads": 4, "kv_heads": 2, "d_k": 24, "d_v": 16}
CAUSAL = {"is_causal": True}
CASES = {
    "plain": {},
    "causal": CAUSAL,
    "window": {"left_window_size": 70},
    "causal window": CAUSAL | {"left_window_size": 70},
    "both windows": {"left_window_size": 0, "right_window_size": 5},
    "softcap": {"softcap": 2.0},
    "padded": {"nonpad_kv_seqlen": [0, 1, 200]},
    "causal padded": CAUSAL | {"nonpad_kv_seqlen": [0, 1, 200]},
    "past": {"past": 37},
    "causal past": CAUSAL | {"past": 37},
    "mask": {"mask": (3, 4, True, True)},
    "mask of keys": CAUSAL | {"mask": (3, 1, False, True)},
    "mask of queries": {"mask": (1, 4, True, False)},
}


def drawn(name: str, m: int, n: int, case: dict) -> dict[str, np.ndarray]:
    """Random inputs of a block with three batch rows; a mask with rows masks all keys for the last query."""
    rng = np.random.default_rng(m + n)

    def normal(*shape):
        return rng.standard_normal(shape, np.float32)

    if name == "multi_head":
        heads, d_k, d_v = 8, 8, 8
        inputs = {"query": normal(3, m, 64), "key": normal(3, n, 64), "value": normal(3, n, 64)}
    else:
        heads, d_k, d_v = SIZES["kv_heads"], SIZES["d_k"], SIZES["d_v"]
        inputs = {
            "query": normal(3, SIZES["heads"], m, d_k),
            "key": normal(3, heads, n, d_k),
            "value": normal(3, heads, n, d_v),
        }
    past = case.get("past", 0)
    if past:
        inputs |= {"past_key": normal(3, heads, past, d_k), "past_value": normal(3, heads, past, d_v)}
    if "mask" in case:
        batch, mask_heads, rows, keys = case["mask"]
        mask_heads = 8 if name == "multi_head" and mask_heads > 1 else mask_heads
        mask = normal(batch, mask_heads, m if rows else 1, past + n if keys else 1)
        mask[rng.random(mask.shape) < 0.4] = -np.inf
        mask[:, :, -1] = -np.inf if rows else mask[:, :, -1]
        inputs["attn_mask"] = mask
    for parameter, value in case.items():
        if parameter not in ("past", "mask"):
            array = np.asarray(value, BLOCKS[name].inputs[parameter].dtype)
            inputs[parameter] = np.minimum(array, n) if parameter == "nonpad_kv_seqlen" else array
    return inputs
