"""The description of a block: its formula, inputs, options and outputs, and how to build it. For export and tests.

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
class Placeholder:
    """``count`` copies of ``token`` in ``input_ids`` stand for each row of an input, whose vectors replace them."""

    token: int
    count: int
    text: str | None = None  # the token in a text


@dataclass(frozen=True)
class Input:
    """A tensor, or (with shape ``()``) a parameter. Without a default it is required."""

    shape: tuple[Dim, ...]
    description: str
    dtype: str = "float32"
    default: bool | int | float | tuple[int, ...] | None = None  # in the graph; NaN means "not given"
    minimum: int | float | None = None
    maximum: Dim | None = None
    needs: tuple[str, ...] = ()  # inputs that must be given with it
    excludes: tuple[str, ...] = ()  # inputs that must not be given with it
    only_for: tuple[str, ...] = ()  # of a required input: a request for none of these outputs may omit it
    learned: str = ""  # the learned tensor that it replaces, which is its default; empty for other inputs
    mask: bool = False  # added to scores, so it may have -inf; requests may send booleans: true = may attend
    placeholder: Placeholder | None = None

    @property
    def required(self) -> bool:
        return self.default is None and not self.learned


@dataclass(frozen=True)
class Output:
    """A tensor that a block returns."""

    shape: tuple[Dim, ...]
    description: str


@dataclass(frozen=True)
class Block:
    """One attention block. ``reference(module, inputs, dtype)`` computes every output in numpy."""

    name: str
    title: str
    formula: str  # LaTeX
    source: str
    description: str
    build: Callable[[], nn.Module]
    reference: Reference
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Output]
    weights: str = ""  # the file that learned weights are from, or the seed of random ones; empty for a built-in block
    linear: bool = False  # only the weights take memory of m times n, the output does not
    is_causal: bool | None = None  # of the attention in all layers; None if it is an option, or there is none
    depth: Dim = "d_k + d_v"  # multiply-adds for each pair of query and key
    pair_numbers: int = 0  # of float32 for each pair, that are in memory beside scores and weights
    config: Mapping[str, Any] = field(default_factory=dict)
    multiples: Mapping[str, str] = field(default_factory=dict)  # symbol -> the symbol it must be a multiple of
    limits: Mapping[str, int] = field(default_factory=dict)  # symbol -> upper limit
    left_out: Sizes = field(default_factory=lambda: {"past": 0})  # sizes without optional inputs that have them
    dtype: str = "float32"  # of inputs, weights and outputs
    rare: tuple[str, ...] = ()  # inputs and outputs that few requests have; a graph without them serves the others
    any_length: tuple[str, ...] = ()  # inputs whose vectors may have any length (norm); examples have the extremes


def size(dim: Dim, sizes: Sizes) -> int:
    """The size of ``dim``; that of ``1|symbol`` is the symbol's, unless ``sizes`` has "1|symbol" itself.

    Raises:
        KeyError: ``sizes`` lacks a symbol.
    """
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    terms = dim.removeprefix("1|").split(" + ")
    return sum(int(term) if term.isdecimal() else sizes[term] for term in terms)
