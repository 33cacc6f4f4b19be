"""The server's description of a block: its formula, its tensors by name, its parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import Any

import numpy as np

Dim = int | str  # a number, a symbol (``m``), or a sum (``past + n``)


@dataclass(frozen=True)
class Tensor:
    """An input or output; dimensions with the same symbol have the same size."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    description: str
    required: bool = False

    @property
    def numpy_dtype(self) -> np.dtype:
        """The numpy dtype: float32 for bfloat16, and the dtype of the numbers for a mask that may also be boolean."""
        return np.dtype(self.dtype.partition(" or ")[0].replace("bfloat16", "float32"))

    @property
    def is_mask(self) -> bool:
        return self.dtype.endswith("or bool")


@dataclass(frozen=True)
class Parameter:
    """A single number or boolean. If the default is None, the server computes it from the tensors."""

    name: str
    dtype: str
    default: bool | int | float | None
    description: str


@dataclass(frozen=True)
class BlockSummary:
    """An entry in the list of blocks; ``formula`` is LaTeX."""

    block: str
    title: str
    description: str
    formula: str


@dataclass(frozen=True)
class Block(BlockSummary):
    """The full description of a block."""

    version: int
    source: str
    config: Mapping[str, Any]
    weights: str
    inputs: Mapping[str, Tensor]
    parameters: Mapping[str, Parameter]
    outputs: Mapping[str, Tensor]
    derived: Mapping[str, Tensor]  # outputs that are computed only where a call names them
    tolerance: Mapping[str, float]
    providers: tuple[str, ...]
    example: Mapping[str, Any]
    tokenizer: Mapping[str, Any] | None = None  # of a model that takes texts
    generate: Mapping[str, Any] | None = None  # of a model that generates: how
    generate_refused: str | None = None  # why a transformers model does not generate
    interventions: Mapping[str, Any] | None = None  # the shapes of the activations that a request may change, by site
    interventions_refused: str | None = None  # why a transformers model takes no interventions

    def _repr_html_(self) -> str:
        """The formula, and tables of inputs, parameters and outputs, for notebooks."""
        tensors = {"inputs": self.inputs, "outputs": self.outputs, "outputs on request": self.derived}
        tables = [
            _table(title, [_tensor_cells(tensor) for tensor in group.values()])
            for title, group in tensors.items()
            if group
        ]
        parameters = [
            (one.name, one.dtype, "" if one.default is None else f"default {one.default}", one.description)
            for one in self.parameters.values()
        ]
        if parameters:
            tables.insert(1, _table("parameters", parameters))
        return (
            f"<h3>{escape(self.title)}</h3><p><code>{escape(self.block)}</code>, version {self.version}. "
            f"{escape(self.description)}</p><p>$${escape(self.formula)}$$</p>{''.join(tables)}<p>{escape(self.source)}</p>"
        )


def _tensor_cells(tensor: Tensor) -> tuple[str, str, str, str]:
    required = ", required" if tensor.required else ""
    return tensor.name, tensor.dtype, f"[{', '.join(map(str, tensor.shape))}]{required}", tensor.description


def _table(title: str, rows: Sequence[Sequence[str]]) -> str:
    cells = ("".join(f"<td style='text-align: left'>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<h4>{title}</h4><table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def parse_summary(document: Mapping[str, Any]) -> BlockSummary:
    return BlockSummary(**_members(BlockSummary, document))


def parse_block(document: Mapping[str, Any]) -> Block:
    """A ``Block`` from the server's JSON; members that this version does not know are ignored."""
    tensors = {
        key: {x["name"]: Tensor(**_members(Tensor, x) | {"shape": tuple(x["shape"])}) for x in document.get(key, ())}
        for key in ("inputs", "outputs", "derived")
    }
    parameters = {item["name"]: Parameter(**_members(Parameter, item)) for item in document["parameters"]}
    converted = {"parameters": parameters, "providers": tuple(document["providers"])}
    return Block(**_members(Block, document) | tensors | converted)


def _members(dataclass_type: type, document: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: document[field.name] for field in fields(dataclass_type) if field.name in document}
