"""Example inputs of a block by name, for export's verification, the example in the metadata, and tests."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import torch

from models.block import Block, Sizes, size
from models.positions import MAX_POSITION

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
MOST_DRAWN = 2  # the largest whole number that is drawn for positions, or for an input without a maximum
LONG = ("blocks", "long")  # more rows than a kernel takes at a time; graphs with rare inputs have no kernels


@dataclass(frozen=True)
class ExampleOptions:
    """Which optional tensors an example has, the values of its parameters, and the lengths of its vectors."""

    tensors: tuple[str, ...] = ()
    parameters: Mapping[str, bool | int | float] = field(default_factory=dict)
    broadcast: bool = False  # attn_mask has one row for all queries, heads and batch rows
    learned: bool = False  # learned tensors are replaced
    lengths: bool = False  # vectors of ``Block.any_length`` have norms over the whole range of the type


OPTIONS: dict[str, ExampleOptions] = {
    "plain": ExampleOptions(),
    "lengths": ExampleOptions(lengths=True),
    "lengths_masked": ExampleOptions(("attn_mask",), lengths=True),
    "attn_mask": ExampleOptions(("attn_mask",)),
    "attn_mask_broadcast": ExampleOptions(("attn_mask",), broadcast=True),
    "is_causal": ExampleOptions(parameters={"is_causal": True}),
    "window": ExampleOptions(parameters={"left_window_size": 3, "right_window_size": 1}),
    "left_window": ExampleOptions(parameters={"left_window_size": 0}),
    "scale": ExampleOptions(parameters={"scale": 0.3}),
    "zero_scale": ExampleOptions(parameters={"scale": 0.0}),
    "softcap": ExampleOptions(parameters={"softcap": 2.0}),
    "scale_softcap": ExampleOptions(parameters={"scale": 0.5, "softcap": 3.0}),
    "bandwidth": ExampleOptions(parameters={"bandwidth": 0.7}),
    "unnormalized": ExampleOptions(("attn_mask",), {"bandwidth": 3.0, "normalize": False}),
    "layers": ExampleOptions(("layers",)),
    "causal_window": ExampleOptions(parameters={"is_causal": True, "left_window_size": 20}),
    "nonpad": ExampleOptions(("nonpad_kv_seqlen",)),
    "nonpad_masked": ExampleOptions(("nonpad_kv_seqlen", "attn_mask")),
    "nonpad_causal": ExampleOptions(("nonpad_kv_seqlen",), {"is_causal": True, "left_window_size": 4}),
    "memory_mask": ExampleOptions(("memory_mask",)),
    "both_masks": ExampleOptions(("memory_mask", "attn_mask"), {"is_causal": True}),
    "head_mask": ExampleOptions(("head_mask",)),
    "memory_head_mask": ExampleOptions(("memory_head_mask", "head_mask", "memory_mask")),
    "learned": ExampleOptions(learned=True),
    "learned_query": ExampleOptions(("q_proj_weight", "attn_mask"), {"is_causal": True, "scale": 0.4}),
    "past": ExampleOptions(("past_key", "past_value")),
    "past_causal": ExampleOptions(("past_key", "past_value", "attn_mask"), {"is_causal": True}),
    "attn_bias": ExampleOptions(("attn_bias",), {"softcap": 2.0}),
    "attn_bias_broadcast": ExampleOptions(("attn_bias", "attn_mask"), broadcast=True),
    "alibi": ExampleOptions(("alibi_slopes",)),
    "alibi_past": ExampleOptions(("alibi_slopes", "past_key", "past_value"), {"is_causal": True}),
    "alibi_nonpad": ExampleOptions(("alibi_slopes", "nonpad_kv_seqlen")),
    "sinks": ExampleOptions(("sinks",)),
    "sinks_masked": ExampleOptions(("sinks", "attn_mask"), {"softcap": 3.0}),
    "documents": ExampleOptions(("query_document_ids", "document_ids")),
    "documents_past": ExampleOptions(
        ("query_document_ids", "document_ids", "past_key", "past_value"), {"is_causal": True}
    ),
    "rope": ExampleOptions(parameters={"rope_theta": 10000.0}),
    "rope_interleaved": ExampleOptions(parameters={"rope_theta": 100.0, "rope_interleaved": True}),
    "rope_past": ExampleOptions(("past_key", "past_value"), {"rope_theta": 500.0, "is_causal": True}),
    "rope_nonpad": ExampleOptions(("nonpad_kv_seqlen",), {"rope_theta": 500.0, "is_causal": True}),
    "rope_positions": ExampleOptions(("query_positions", "key_positions"), {"rope_theta": 10.0}),
    "everything": ExampleOptions(
        ("past_key", "past_value", "attn_mask"),
        {"is_causal": True, "left_window_size": 5, "right_window_size": 2, "softcap": 3.0},
    ),
}


def draw(block: Block, sizes: Sizes, options: ExampleOptions, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of ``block`` as an ONNX session takes them: standard normal numbers, masks with a third of -inf."""
    rng = np.random.default_rng(seed)
    sizes = within(sizes, block.limits)
    if "past_key" not in options.tensors:
        sizes = {**sizes, "past": 0}
    drawn: dict[str, Any] = {}
    for name, spec in block.inputs.items():
        if name in options.parameters:
            drawn[name] = np.asarray(options.parameters[name], spec.dtype)
        elif spec.required or name in options.tensors or (spec.learned and options.learned):
            shape = [size(dim, sizes) for dim in spec.shape]
            if options.broadcast and spec.mask:
                shape[:-1] = [1] * (len(shape) - 1)
            if spec.dtype == "int64":
                largest = MOST_DRAWN if spec.maximum is None else size(spec.maximum, sizes)
                drawn[name] = rng.integers(0, 1 + (largest if largest < MAX_POSITION else MOST_DRAWN), shape)
            else:
                drawn[name] = rng.standard_normal(shape, dtype=np.float32)
                if spec.learned:  # of the usual size, so that a softmax is not of a single key
                    drawn[name] *= np.float32(shape[-1] ** -0.5)
            if options.lengths and name in block.any_length:
                drawn[name] = _of_any_length(drawn[name], block.dtype, rng)
            if spec.mask:
                drawn[name] = np.where(rng.random(shape) < 1 / 3, -np.inf, drawn[name]).astype(np.float32)
    return drawn


def within(sizes: Sizes, limits: Mapping[str, int]) -> Sizes:
    """``sizes``, reduced to ``limits`` such as {"past + n": 128}.

    The last term of a sum gets at least half of its limit, and is never 0.
    """
    limited = dict(sizes)
    for dim, limit in limits.items():
        *others, last = dim.split(" + ")
        for term in others:
            limited[term] = min(limited[term], limit // 2 // len(others))
        limited[last] = min(limited[last], limit - sum(limited[term] for term in others))
    return limited


def _of_any_length(rows: np.ndarray, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """``rows`` scaled to lengths from the least to the largest that ``dtype`` can have; the first row is zero."""
    limits = torch.finfo(getattr(torch, dtype))
    least, largest = np.log2(limits.tiny * limits.eps) + 6, np.log2(limits.max) - 3  # powers of two
    lengths = rows[..., :1].shape
    powers = rng.permutation(np.linspace(least, largest, math.prod(lengths))).reshape(lengths)
    scaled = (rows * 2.0**powers).astype(np.float32)
    scaled.reshape(-1, rows.shape[-1])[0] = 0
    return scaled


def examples(block: Block, names: Iterable[str] = SIZES) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """An example for each of the sizes ``names`` and each set of options that the block has, named ``size/options``.

    Examples with rare inputs are not ``LONG``.
    """
    for size_name in names:
        sizes = SIZES[size_name]
        for option_name, options in OPTIONS.items():
            if options.lengths and not block.any_length:
                continue
            if options.learned and not any(spec.learned for spec in block.inputs.values()):
                continue
            given = {*options.tensors, *options.parameters}
            if size_name in LONG and (options.learned or not given.isdisjoint(block.rare)):
                continue
            if given <= block.inputs.keys():
                name = f"{size_name}/{option_name}"
                yield name, draw(block, sizes, options, seed=crc32(name.encode()))


def documented(block: Block) -> dict[str, Any]:
    """A small request for the documentation: the required inputs, with numbers of two decimals."""
    drawn = draw(block, SIZES["documented"], OPTIONS["plain"])
    return {name: (np.round(x.astype(float), 2) if x.dtype.kind == "f" else x).tolist() for name, x in drawn.items()}
