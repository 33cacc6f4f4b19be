"""Named example inputs: they drive export, its verification, the service's warm-up, the documentation and the tests."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import torch

from models.block import Block, Sizes, size

AXES = ("layers", "batch", "heads", "kv_heads", "m", "n", "past", "d_k", "d_v")
SIZES: dict[str, Sizes] = {
    name: dict(zip(AXES, lengths, strict=True))
    for name, lengths in {
        "documented": (1, 1, 1, 1, 2, 3, 2, 4, 2),
        "distinct": (11, 2, 6, 3, 5, 7, 4, 8, 9),
        "ones": (1, 1, 1, 1, 1, 1, 1, 1, 1),
        "one_query": (2, 3, 2, 2, 1, 33, 16, 16, 16),
        "one_key": (3, 2, 2, 1, 17, 1, 1, 5, 3),
        "more_queries": (1, 1, 4, 1, 40, 24, 8, 32, 48),
        "square": (1, 1, 2, 1, 72, 72, 8, 16, 16),
        "blocks": (1, 1, 1, 1, 270, 290, 9, 8, 12),
        "long": (2, 2, 2, 2, 130, 257, 3, 64, 64),
    }.items()
}


@dataclass(frozen=True)
class Given:
    """Which optional tensors are drawn, what the parameters are, and whether rows have lengths far apart."""

    tensors: tuple[str, ...] = ()
    parameters: Mapping[str, bool | int | float] = field(default_factory=dict)
    broadcast: bool = False  # attn_mask has one row for all
    lengths: bool = False  # of the inputs in ``Block.any_length``: from the least number of the type to the largest


OPTIONS: dict[str, Given] = {
    "plain": Given(),
    "lengths": Given(lengths=True),
    "lengths_masked": Given(("attn_mask",), lengths=True),
    "attn_mask": Given(("attn_mask",)),
    "attn_mask_broadcast": Given(("attn_mask",), broadcast=True),
    "is_causal": Given(parameters={"is_causal": True}),
    "window": Given(parameters={"left_window_size": 3, "right_window_size": 1}),
    "left_window": Given(parameters={"left_window_size": 0}),
    "scale": Given(parameters={"scale": 0.3}),
    "zero_scale": Given(parameters={"scale": 0.0}),
    "softcap": Given(parameters={"softcap": 2.0}),
    "scale_softcap": Given(parameters={"scale": 0.5, "softcap": 3.0}),
    "bandwidth": Given(parameters={"bandwidth": 0.7}),
    "layers": Given(("layers",)),
    "causal_window": Given(parameters={"is_causal": True, "left_window_size": 20}),
    "nonpad": Given(("nonpad_kv_seqlen",)),
    "nonpad_masked": Given(("nonpad_kv_seqlen", "attn_mask")),
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
    sizes = within(sizes, block.limits)
    if "past_key" not in given.tensors:
        sizes = {**sizes, "past": 0}
    drawn: dict[str, Any] = {}
    for name, of in block.inputs.items():
        if name in given.parameters:
            drawn[name] = np.asarray(given.parameters[name], of.dtype)
        elif of.required or name in given.tensors:
            shape = [size(dim, sizes) for dim in of.shape]
            if given.broadcast and of.mask:
                shape[:-1] = [1] * (len(shape) - 1)
            if of.dtype == "int64":
                drawn[name] = rng.integers(0, size(of.maximum or 0, sizes) + 1, shape)
            else:
                drawn[name] = rng.standard_normal(shape, dtype=np.float32)
            if given.lengths and name in block.any_length:
                drawn[name] = _of_any_length(drawn[name], block.dtype, rng)
            if of.mask:
                drawn[name] = np.where(rng.random(shape) < 1 / 3, -np.inf, drawn[name]).astype(np.float32)
    return drawn


def within(sizes: Sizes, limits: Mapping[str, int]) -> Sizes:
    """``sizes``, made smaller where ``limits``, such as {"past + n": 128}, does not allow them.

    The last term of a sum gets at least half of the limit, and is never 0.
    """
    limited = dict(sizes)
    for dim, limit in limits.items():
        *others, last = dim.split(" + ")
        for term in others:
            limited[term] = min(limited[term], limit // 2 // len(others))
        limited[last] = min(limited[last], limit - sum(limited[term] for term in others))
    return limited


def _of_any_length(rows: np.ndarray, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """``rows`` with lengths that ``dtype`` just holds, and any between; the first row is zero."""
    limits = torch.finfo(getattr(torch, dtype))
    least, largest = (
        np.log2(limits.tiny * limits.eps) + 6,
        np.log2(limits.max) - 3,
    )  # powers of two
    lengths = rows[..., :1].shape
    powers = rng.permutation(np.linspace(least, largest, math.prod(lengths))).reshape(lengths)
    scaled = (rows * 2.0**powers).astype(np.float32)
    scaled.reshape(-1, rows.shape[-1])[0] = 0
    return scaled


def examples(block: Block, names: Iterable[str] = SIZES) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Each of these sizes with every set of options the block knows, named ``size/options``."""
    for size_name in names:
        sizes = SIZES[size_name]
        for option_name, given in OPTIONS.items():
            if given.lengths and not block.any_length:
                continue
            if {*given.tensors, *given.parameters} <= block.inputs.keys():
                name = f"{size_name}/{option_name}"
                yield name, draw(block, sizes, given, seed=crc32(name.encode()))


def documented(block: Block) -> dict[str, Any]:
    """A small request for people to read and run: the required inputs, two digits a number."""
    drawn = draw(block, SIZES["documented"], OPTIONS["plain"])
    return {name: (np.round(x.astype(float), 2) if x.dtype.kind == "f" else x).tolist() for name, x in drawn.items()}
