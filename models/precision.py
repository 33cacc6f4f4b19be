"""Blocks in half precision: float16 and bfloat16, as torch computes them on a GPU.

Inputs, weights and outputs are of that type. Parameters (``scale``, ``softcap``) are float32, indices and lengths are
int64. Matrix products are summed in float32 and rounded once; a softmax is computed in float32 and rounded. Where
squares or sums over all keys could exceed 65504, the largest float16, the block computes in float32.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.block import Block, Input

DTYPES = ("float32", "float16", "bfloat16")


def upcast(x: Tensor) -> Tensor:
    """``x`` in float32 where it has fewer bits."""
    return x.float() if x.element_size() < 4 else x


def cast_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in ``dtype``; without an operator in the graph if it has that type."""
    return x if x.dtype == dtype else x.to(dtype)


def name_in(name: str, dtype: str) -> str:
    """The name of block ``name`` in ``dtype``."""
    return name if dtype == "float32" else f"{name}_{dtype}"


def in_precision(block: Block, dtype: str, name: str | None = None) -> Block:
    """``block`` in ``dtype``, one of DTYPES, named ``name`` or ``<name>_<dtype>``; in float32 unchanged.

    Its reference uses the rounded weights, and computes in the type that is passed to it.
    """
    if dtype == block.dtype:
        return block

    def refer(module: nn.Module, inputs: Mapping[str, np.ndarray], reference_dtype: Any) -> dict[str, np.ndarray]:
        return block.reference(deepcopy(module).float(), inputs, reference_dtype)  # numpy has no bfloat16

    return replace(
        block,
        name=name or name_in(block.name, dtype),
        title=f"{block.title}, {dtype}",
        build=lambda: block.build().to(getattr(torch, dtype)),
        reference=refer,
        inputs={name: _input_in_precision(name, spec, dtype) for name, spec in block.inputs.items()},
        dtype=dtype,
    )


def _input_in_precision(name: str, spec: Input, dtype: str) -> Input:
    if spec.dtype != "float32":
        return spec
    if (name, dtype) == ("softcap", "float16"):  # applied to scores in float16
        return replace(spec, maximum=int(torch.finfo(torch.float16).max))
    return spec if spec.shape == () else replace(spec, dtype=dtype)
