"""What a block says of itself: its formula, inputs, options and outputs, and how to build it. Read by export and tests.

A dimension is a number, a symbol (``m``), a sum of symbols (``past + n``) or, where an input broadcasts, ``1|symbol``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

Dim = int | str
Sizes = Mapping[str, int]
Reference = Callable[[nn.Module, Mapping[str, np.ndarray], Any], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Input:
    """A tensor, or (with shape ``()``) a parameter. Without a default it is required."""

    shape: tuple[Dim, ...]
    description: str
    dtype: str = "float32"
    default: bool | int | float | tuple[int, ...] | None = None  # of the graph itself; NaN stands for "not given"
    minimum: int | float | None = None
    maximum: Dim | None = None
    needs: tuple[str, ...] = ()  # inputs that must come with it
    excludes: tuple[str, ...] = ()  # inputs that must not
    mask: bool = False  # added to the scores, so it may hold -inf; a request may send booleans: true = may attend

    @property
    def required(self) -> bool:
        return self.default is None


@dataclass(frozen=True)
class Output:
    shape: tuple[Dim, ...]
    description: str


@dataclass(frozen=True)
class Block:
    """One attention block. ``reference(module, inputs, dtype)`` answers every output in numpy."""

    name: str
    title: str
    formula: str  # LaTeX
    source: str
    description: str
    build: Callable[[], nn.Module]
    reference: Reference
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Output]
    weights: str = ""  # the file a learned block's weights are from; without one they are drawn from a seed
    linear: bool = False  # the output needs no m times n; only the weights do
    is_causal: bool | None = None  # of every attention inside; None where a request says, or there is none
    depth: Dim = "d_k + d_v"  # multiply-adds for each pair of query and key
    config: Mapping[str, Any] = field(default_factory=dict)
    multiples: Mapping[str, str] = field(default_factory=dict)  # symbol -> the symbol it must be a multiple of
    limits: Mapping[str, int] = field(default_factory=dict)  # symbol -> the most it can be
    left_out: Sizes = field(default_factory=lambda: {"past": 0})  # sizes that only optional inputs would say
    dtype: str = "float32"  # of tensors and weights, and of what is answered
    any_length: tuple[str, ...] = ()  # inputs whose rows may be of any length: examples have the shortest and longest


def size(dim: Dim, sizes: Sizes) -> int:
    """The length of ``dim``; ``1|symbol`` is the symbol's unless ``sizes`` names it itself.

    Raises:
        KeyError: ``sizes`` lacks a symbol.
    """
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    terms = dim.removeprefix("1|").split(" + ")
    return sum(int(term) if term.isdecimal() else sizes[term] for term in terms)
