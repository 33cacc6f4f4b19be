"""The reference of a stack with a memory, in numpy in float64: as ``models.reference``, whose parts it joins."""

import numpy as np

from models.reference import activation, layer_norm, linear, multi_head


def cross_decoder(
    state, config, x, memory, attn_mask=None, memory_mask=None, is_causal=False, dtype=np.float64
) -> dict[str, np.ndarray]:
    """Layers of attention to x [batch, m, d_model], to memory [batch, n, d_model], and feed-forward networks.

    ``state`` and ``config`` are those of ``models.cross_decoder``.
    """
    x, memory = np.asarray(x, dtype), np.asarray(memory, dtype)
    heads, pre, eps = config["num_heads"], config["norm"] == "pre", config["layer_norm_eps"]
    weights: list[np.ndarray] = []
    cross_weights: list[np.ndarray] = []
    for index in range(config["num_layers"]):
        name = f"layers.{index}"

        def attend(part, into, given, kept, name=name, **inputs):
            own = {key.removeprefix(f"{name}.{part}."): value for key, value in state.items()}
            attended = multi_head(own, heads, heads, x=given, dtype=dtype, **inputs)
            into.append(attended["weights"])
            return kept + attended["output"]

        def norm(x, number, name=name):
            return layer_norm(state, f"{name}.norm{number}", x, eps, dtype)

        def feed_forward(x, name=name):
            inner = activation(config["activation"], linear(state, f"{name}.linear1", x, dtype))
            return linear(state, f"{name}.linear2", inner, dtype)

        masks = {"attn_mask": attn_mask, "is_causal": is_causal}, {"attn_mask": memory_mask, "memory": memory}
        if pre:
            x = attend("attention", weights, norm(x, 1), x, **masks[0])
            x = attend("cross_attention", cross_weights, norm(x, 2), x, **masks[1])
            x = x + feed_forward(norm(x, 3))
        else:
            x = norm(attend("attention", weights, x, x, **masks[0]), 1)
            x = norm(attend("cross_attention", cross_weights, x, x, **masks[1]), 2)
            x = norm(x + feed_forward(x), 3)
    return {
        "output": layer_norm(state, "final_norm", x, eps, dtype) if config["final_norm"] else x,
        "weights": np.stack(weights),
        "cross_weights": np.stack(cross_weights),
    }
