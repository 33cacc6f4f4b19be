"""What the server says of a block: its formula, its tensors by name, its parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

Dim = int | str  # a number, a symbol (``m``), or a sum (``past + n``)


@dataclass(frozen=True)
class Tensor:
    """An input or output; equal symbols in shapes are equal sizes."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    description: str
    required: bool = False

    @property
    def numpy(self) -> np.dtype:
        """Its type; of a mask, which may be booleans too, that of the numbers."""
        return np.dtype(self.dtype.partition(" or ")[0].replace("bfloat16", "float32"))

    @property
    def is_mask(self) -> bool:
        return self.dtype.endswith("or bool")


@dataclass(frozen=True)
class Parameter:
    """A single number or flag. A default of None is worked out from the tensors."""

    name: str
    dtype: str
    default: bool | int | float | None
    description: str


@dataclass(frozen=True)
class Line:
    """One block of the list; ``formula`` is LaTeX."""

    block: str
    title: str
    description: str
    formula: str


@dataclass(frozen=True)
class Block(Line):
    """Everything that a call needs to know."""

    version: int
    source: str
    config: Mapping[str, Any]
    weights: str
    inputs: Mapping[str, Tensor]
    parameters: Mapping[str, Parameter]
    outputs: Mapping[str, Tensor]
    tolerance: Mapping[str, float]
    providers: tuple[str, ...]
    example: Mapping[str, Any]


def line(said: Mapping[str, Any]) -> Line:
    return Line(**_known(Line, said))


def block(said: Mapping[str, Any]) -> Block:
    """The block of a description; members that a newer server adds are left out."""
    tensors = {
        which: {one["name"]: Tensor(**_known(Tensor, one) | {"shape": tuple(one["shape"])}) for one in said[which]}
        for which in ("inputs", "outputs")
    }
    parameters = {one["name"]: Parameter(**_known(Parameter, one)) for one in said["parameters"]}
    more = {"parameters": parameters, "providers": tuple(said["providers"])}
    return Block(**_known(Block, said) | tensors | more)


def _known(of: type, said: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: said[field.name] for field in fields(of) if field.name in said}
