"""Tasks that wait for the same stored keys and values share one pass over them.

Their queries are joined as further heads of each key head, where they keep their positions, so that masks by position
stay the same. The outputs differ from those of a task alone by rounding.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from service.model.graph import Arrays, SharedPass

STORED = ("key", "value")


def shared_key(inputs: Arrays) -> Hashable:
    """Equal for inputs with the same arrays of keys and values, queries of one shape, and equal parameters."""
    return tuple((name, *_identity(name, array)) for name, array in sorted(inputs.items()))


def _identity(name: str, array: np.ndarray) -> tuple[Hashable, ...]:
    if name == "query":
        return (array.shape,)
    if name in STORED:  # tasks keep their arrays alive, so that an address is that of one array
        return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str
    return array.shape, array.tobytes()


def join(members: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """The inputs of one run for ``members``, which have one ``shared_key``.

    Queries [batch, heads, m, d_k] become [batch, kv_heads * members * heads / kv_heads, m, d_k].
    """
    batch, heads, m, d_k = members[0]["query"].shape
    kv_heads = members[0]["key"].shape[1]
    grouped = [inputs["query"].reshape(batch, kv_heads, heads // kv_heads, m, d_k) for inputs in members]
    return {**members[0], "query": np.concatenate(grouped, 2).reshape(batch, -1, m, d_k)}


def split(outputs: Arrays, members: Sequence[Arrays]) -> list[dict[str, np.ndarray]]:
    """The outputs of each of ``members`` from those of their run; contiguous."""
    batch, heads = members[0]["query"].shape[:2]
    kv_heads = members[0]["key"].shape[1]

    def of_member(place: int, joined: np.ndarray) -> np.ndarray:
        rest = joined.shape[2:]
        by_member = joined.reshape(batch, kv_heads, len(members), heads // kv_heads, *rest)
        return np.ascontiguousarray(by_member[:, :, place]).reshape(batch, heads, *rest)

    return [{name: of_member(place, joined) for name, joined in outputs.items()} for place in range(len(members))]


SHARED_PASS = SharedPass(shared_key, join, split)
