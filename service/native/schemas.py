"""Schemas of the responses of the native API that list and describe blocks."""

from typing import Any

from pydantic import BaseModel, Field

from service.model.spec import Scalar


class BlockLine(BaseModel):
    """One block of the list."""

    block: str
    title: str
    description: str
    formula: str = Field(description="LaTeX")
    weights: str = Field(
        description="source of learned weights: a file, or the seed of random demonstration weights; none"
    )


class Blocks(BaseModel):
    blocks: list[BlockLine]


class InputDescription(BaseModel):
    name: str
    dtype: str
    shape: list[str | int] = Field(description="numbers and symbols; a symbol stands for the same size in all shapes")
    required: bool
    description: str


class ParameterDescription(BaseModel):
    name: str
    dtype: str
    default: Scalar | None
    description: str


class OutputDescription(BaseModel):
    name: str
    dtype: str
    shape: list[str | int]
    description: str


class PlaceholderDescription(BaseModel):
    """What is written in a text where a row of an input, such as a picture, stands."""

    input: str
    token: str | None = Field(description="the placeholder in a text; it is expanded to count tokens")
    id: int
    count: int = Field(description="number of tokens in input_ids per row")


class TokenizerDescription(BaseModel):
    """How a model takes texts."""

    max_tokens: int | None = Field(description="upper limit on the tokens of a text; null = none")
    truncates_to: int | None = Field(
        description="texts are truncated to this many tokens; null = longer ones are rejected"
    )
    next_tokens: bool = Field(description="whether it is a language model that predicts the next token")
    placeholders: list[PlaceholderDescription] = Field(description="tokens that stand for pictures; empty = none")


class PreprocessorDescription(BaseModel):
    """How a picture becomes ``pixel_values``: resized and cut out, then of each value of 0 to 255
    (value * rescale_factor - image_mean) / image_std; and which positions are its patches."""

    height: int
    width: int
    channels: int
    resize: tuple[int, ...] | None = Field(
        description="[shortest edge], which keeps the proportions, or [height, width] of the picture, whose middle is "
        "then cut out; null: the whole picture is resized to height and width"
    )
    image_mean: tuple[float, ...] | None = Field(description="of each channel; null: not normalized, or unknown")
    image_std: tuple[float, ...] | None
    rescale_factor: float | None = Field(description="null: values are not rescaled")
    patch_size: int | None = Field(
        description="pixels on a side; patches go row by row from the top left; null: unknown"
    )
    special_tokens: int | None = Field(
        description="positions of the weights before the first patch, such as [CLS]; null: unknown"
    )


class QuantizedDescription(BaseModel):
    """Weights of the steps of generation that were rounded at export."""

    bits: int
    block_size: int = Field(description="numbers that share a scale")
    errors: dict[str, float] = Field(
        description="largest absolute error of each output against float64; of tokens how far the logit of a chosen "
        "one was below the largest"
    )


class GenerateDescription(BaseModel):
    """How a model generates."""

    two_stacks: bool = Field(description="an encoder and a decoder")
    shares_runs: bool = Field(description="sequences of different lengths share runs")
    quantized: QuantizedDescription | None = Field(description="null: its weights are those of the model")
    interventions: list[str] = Field(description="sites of interventions in generation; empty: none")


class BlockDescription(BlockLine):
    """Everything a client needs to call a block."""

    version: int
    source: str
    config: dict[str, Any]
    inputs: list[InputDescription]
    parameters: list[ParameterDescription]
    outputs: list[OutputDescription]
    tokenizer: TokenizerDescription | None = Field(description="null: the model takes no texts")
    preprocessor: PreprocessorDescription | None = Field(
        description="null: the model takes no images, or has no preprocessor_config.json"
    )
    generate: GenerateDescription | None = Field(description="null: the model does not generate")
    generate_refused: str | None = Field(description="why a transformers model does not generate")
    interventions: dict[str, list[int | str]] | None = Field(
        description="the shapes of the activations that a request may change, by site; null: none"
    )
    interventions_refused: str | None = Field(description="why a transformers model takes no interventions")
    derived: list[OutputDescription] = Field(description="further outputs, which are computed if a request names them")
    tolerance: dict[str, float] = Field(description="largest absolute error against float64 allowed at export")
    verified: str = Field(description="where and how the export was verified")
    providers: list[str] = Field(description="execution providers of the ONNX Runtime session")
    nodes: dict[str, dict[str, dict[str, int]]] = Field(
        description="nodes of each graph by graph, provider and operator, with their number"
    )
    example: dict[str, Any] = Field(description="a body to POST here")
