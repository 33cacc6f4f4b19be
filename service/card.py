"""What an artifact says of itself, the ``heed`` entry of its metadata; names, shapes and types are the session's."""

from typing import Any

from pydantic import BaseModel, ConfigDict

Scalar = bool | int | float


class InputCard(BaseModel):
    """One input: its meaning, its default where it is a parameter, and what may stand in it."""

    model_config = ConfigDict(frozen=True)

    description: str
    default: Scalar | None = None
    minimum: int | float | None = None
    maximum: int | str | None = None  # a number, or the symbol of a dimension
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    mask: bool = False  # added to the scores: may hold -inf, may be sent as booleans


class OutputCard(BaseModel):
    """One output: its meaning."""

    model_config = ConfigDict(frozen=True)

    description: str


class Card(BaseModel):
    """A block, as the file that holds it describes it."""

    model_config = ConfigDict(frozen=True)

    block: str
    version: int
    title: str
    description: str
    formula: str  # LaTeX
    source: str
    config: dict[str, Any]
    weights: str  # where learned weights are from
    inputs: dict[str, InputCard]
    outputs: dict[str, OutputCard]
    multiples: dict[str, str]  # a dimension -> the dimension it must be a multiple of
    limits: dict[str, int]  # a dimension, or a sum of them -> the most it can be
    left_out: dict[str, int]  # sizes that only optional inputs would say, when they are left out
    depth: int | str  # multiply-adds for each pair of query and key
    learned: int  # multiply-adds for each row: the numbers in the learned matrices
    example: dict[str, Any]
    tolerance: dict[str, float]  # largest absolute error against float64 allowed at export
    opset: int
    exporter: str
    dtype: str = "float32"  # of tensors, but parameters, indices and lengths
    verified: str = "on the CPU, as it is"  # where, and how


class PathCard(BaseModel):
    """A fast path, as its file describes it: which requests of the block it may serve."""

    model_config = ConfigDict(frozen=True)

    fast_path: str
    provider: str | None = None  # it is quick on this one only; None = on any
    fixes: dict[str, Scalar] = {}  # parameters that are no inputs of it, and stand at this value
    from_pairs: int = 0  # pairs of query and key, over batch and heads, from which it is the quicker one
    rows: int | None = None  # queries whose scores it holds at once; None = all
