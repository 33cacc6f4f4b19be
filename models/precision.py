"""Blocks in half precision: float16 and bfloat16, as torch computes them on a GPU.

Tensors, weights and answers are of that type. Parameters (``scale``, ``softcap``) stay float32, indices and lengths
int64. A product is added up in float32 and rounded once, a softmax is taken in float32 and rounded; where squares or
sums over all keys could overflow 65504, the most that float16 holds, the block itself computes in float32.
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


def wide(x: Tensor) -> Tensor:
    """``x`` in float32 where it has fewer bits."""
    return x.float() if x.element_size() < 4 else x


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in ``dtype``; where it is already, not even an operator in the graph."""
    return x if x.dtype == dtype else x.to(dtype)


def name_in(name: str, dtype: str) -> str:
    """What the block called ``name`` is called in ``dtype``."""
    return name if dtype == "float32" else f"{name}_{dtype}"


def in_precision(block: Block, dtype: str) -> Block:
    """``block`` in ``dtype``, one of DTYPES, named ``<name>_<dtype>``; as it is in float32.

    Its reference takes weights that are rounded already, and computes as precisely as it is told to.
    """
    if dtype == block.dtype:
        return block

    def refer(module: nn.Module, inputs: Mapping[str, np.ndarray], of: Any) -> dict[str, np.ndarray]:
        return block.reference(deepcopy(module).float(), inputs, of)  # numpy has no bfloat16

    return replace(
        block,
        name=name_in(block.name, dtype),
        title=f"{block.title}, {dtype}",
        build=lambda: block.build().to(getattr(torch, dtype)),
        reference=refer,
        inputs={name: _in_precision(name, of, dtype) for name, of in block.inputs.items()},
        dtype=dtype,
    )


def _in_precision(name: str, of: Input, dtype: str) -> Input:
    if of.dtype != "float32":
        return of
    if of.shape == ():  # applied to numbers of the block's type
        return (
            replace(of, maximum=int(torch.finfo(torch.float16).max)) if (name, dtype) == ("softcap", "float16") else of
        )
    return replace(of, dtype=dtype)
