"""Named example inputs: they drive export, its verification, the service's warm-up, the documentation and the tests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from models.block import Block, Sizes, size

SIZES: dict[str, Sizes] = {
    "documented": {"batch": 1, "heads": 1, "kv_heads": 1, "m": 2, "n": 3, "past": 2, "d_k": 4, "d_v": 2},
    "distinct": {"batch": 2, "heads": 6, "kv_heads": 3, "m": 5, "n": 7, "past": 4, "d_k": 8, "d_v": 9},
    "ones": {"batch": 1, "heads": 1, "kv_heads": 1, "m": 1, "n": 1, "past": 1, "d_k": 1, "d_v": 1},
    "one_query": {"batch": 3, "heads": 2, "kv_heads": 2, "m": 1, "n": 33, "past": 16, "d_k": 16, "d_v": 16},
    "one_key": {"batch": 2, "heads": 2, "kv_heads": 1, "m": 17, "n": 1, "past": 1, "d_k": 5, "d_v": 3},
    "more_queries": {"batch": 1, "heads": 4, "kv_heads": 1, "m": 40, "n": 24, "past": 8, "d_k": 32, "d_v": 48},
    "square": {"batch": 1, "heads": 2, "kv_heads": 1, "m": 72, "n": 72, "past": 8, "d_k": 16, "d_v": 16},
    "blocks": {"batch": 1, "heads": 1, "kv_heads": 1, "m": 270, "n": 290, "past": 9, "d_k": 8, "d_v": 12},
    "long": {"batch": 2, "heads": 2, "kv_heads": 2, "m": 130, "n": 257, "past": 3, "d_k": 64, "d_v": 64},
}


@dataclass(frozen=True)
class Given:
    """Which optional tensors are drawn, and what the parameters are."""

    tensors: tuple[str, ...] = ()
    parameters: Mapping[str, bool | int | float] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=dict)


BROADCAST = {"1|batch": 1, "1|heads": 1, "1|m": 1}
OPTIONS: dict[str, Given] = {
    "plain": Given(),
    "attn_mask": Given(("attn_mask",)),
    "attn_mask_broadcast": Given(("attn_mask",), sizes=BROADCAST),
    "is_causal": Given(parameters={"is_causal": True}),
    "window": Given(parameters={"left_window_size": 3, "right_window_size": 1}),
    "left_window": Given(parameters={"left_window_size": 0}),
    "scale": Given(parameters={"scale": 0.3}),
    "zero_scale": Given(parameters={"scale": 0.0}),
    "softcap": Given(parameters={"softcap": 2.0}),
    "scale_softcap": Given(parameters={"scale": 0.5, "softcap": 3.0}),
    "causal_window": Given(parameters={"is_causal": True, "left_window_size": 20}),
    "nonpad": Given(("nonpad_kv_seqlen",)),
    "nonpad_causal": Given(("nonpad_kv_seqlen",), {"is_causal": True, "left_window_size": 4}),
    "past": Given(("past_key", "past_value")),
    "past_causal": Given(("past_key", "past_value", "attn_mask"), {"is_causal": True}),
    "everything": Given(
        ("past_key", "past_value", "attn_mask"),
        {"is_causal": True, "left_window_size": 5, "right_window_size": 2, "softcap": 3.0},
    ),
}


def draw(block: Block, sizes: Sizes, given: Given, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of ``block`` as an ONNX session takes them: standard normal, masks with every third place forbidden."""
    rng = np.random.default_rng(seed)
    sizes = {**sizes, **given.sizes}
    if "past_key" not in given.tensors:
        sizes["past"] = 0
    drawn: dict[str, Any] = {}
    for name, of in block.inputs.items():
        if name in given.parameters:
            drawn[name] = np.asarray(given.parameters[name], of.dtype)
        elif of.required or name in given.tensors:
            shape = [size(dim, sizes) for dim in of.shape]
            if of.dtype == "int64":
                drawn[name] = rng.integers(0, size(of.maximum or 1, sizes) + 1, shape)
            else:
                drawn[name] = rng.standard_normal(shape, dtype=np.float32)
            if name == "attn_mask":
                drawn[name] = np.where(rng.random(shape) < 1 / 3, -np.inf, drawn[name]).astype(np.float32)
    return drawn


def examples(block: Block) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Every size with every set of options the block knows, named ``size/options``."""
    for size_name, sizes in SIZES.items():
        for option_name, given in OPTIONS.items():
            if {*given.tensors, *given.parameters} <= block.inputs.keys():
                name = f"{size_name}/{option_name}"
                yield name, draw(block, sizes, given, seed=crc32(name.encode()))


def documented(block: Block) -> dict[str, Any]:
    """A small request for people to read and run: the required inputs, two digits a number."""
    drawn = draw(block, SIZES["documented"], OPTIONS["plain"])
    return {name: np.round(array.astype(float), 2).tolist() for name, array in drawn.items()}
