"""The description of a model: the ``heed`` entry of its file's metadata, and its inputs and outputs."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from service.tensors.bfloat16 import BFLOAT16
from service.tensors.spec import TensorSpec

CANONICAL = "model.onnx"
WEIGHTS_FILE = "weights.bin"  # the weights that the graphs of a version share, where they share any
STACKS = ("weights", "encoder_weights", "cross_weights", "vision_weights")  # outputs: the weights of stacks of layers
STACK_AXES = 5  # of the weights of a model with layers: [layers, batch, heads, m, n]
TOKEN_INPUTS = ("input_ids", "decoder_input_ids")
IMAGE_INPUT = "pixel_values"
# Ends of transformers' classes.
LANGUAGE_MODELS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "MTModel", "EncoderDecoderModel")
IN_BOTH_DIRECTIONS = ("XLNetLMHeadModel",)  # of these, those whose positions see the token that follows

Scalar = bool | int | float


class Placeholder(BaseModel, frozen=True):
    """So many of a token in ``input_ids`` stand for each row of an input, whose vectors take their places."""

    token: int
    count: int
    text: str | None = None  # the token in a text

    @property
    def label(self) -> str:
        """The token as errors name it."""
        return f"token {self.token}" + (f" ({self.text})" if self.text else "")


class InputSpec(BaseModel, frozen=True):
    """One input: its meaning, its default where it is a parameter, and its range."""

    description: str
    default: Scalar | None = None
    minimum: int | float | None = None
    maximum: int | str | None = None  # a number, or the symbol of a dimension
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    only_for: tuple[str, ...] = ()  # of a required input: a request for none of these outputs may omit it
    mask: bool = False  # added to the scores: may contain -inf, may be sent as booleans
    placeholder: Placeholder | None = None


class OutputSpec(BaseModel, frozen=True):
    """One output: its meaning."""

    description: str


class BlockSpec(BaseModel, frozen=True):
    """An attention block, as its file describes it."""

    block: str
    version: int
    title: str
    description: str
    formula: str  # LaTeX
    source: str
    config: dict[str, Any]
    weights: str  # where learned weights are from
    inputs: dict[str, InputSpec]
    outputs: dict[str, OutputSpec]
    on_request: tuple[str, ...] = ()  # outputs that only requests get which name them: they take more time
    multiples: dict[str, str]  # a dimension -> the dimension it must be a multiple of
    limits: dict[str, int]  # a dimension, or a sum of dimensions -> its upper limit
    left_out: dict[str, int]  # dimensions that only optional inputs have -> their size without these inputs
    depth: int | str  # multiply-adds for each pair of query and key
    pair_numbers: int = 0  # of float32 for each pair, that are in memory beside scores and weights
    linear: bool = False  # keys and values are summed into a state of [d_k, d_v] for each head
    learned: int  # multiply-adds for each row: the numbers in the learned matrices
    rows: tuple[int | str, ...] = ()  # dimensions whose product is the number of rows; () = the output's but its last
    image_rows: tuple[int | str, ...] = ()  # the same of the images of a model of texts and images; () = none
    example: dict[str, Any]
    tolerance: dict[str, float]  # largest absolute error against float64 allowed at export
    opset: int
    exporter: str
    dtype: str = "float32"  # of tensors, but parameters, indices and lengths
    verified: str = "on the CPU, as it is"  # where and how its numbers were checked at export


class FastPathSpec(BaseModel, frozen=True):
    """A fast path, as its file describes it: which requests to the block it can serve."""

    fast_path: str
    provider: str | None = None  # the only provider on which it is fast; None = it is fast on all
    fixes: dict[str, Scalar] = {}  # parameters that are not its inputs -> the value that its graph has for them
    needs: tuple[str, ...] = ()  # inputs: for requests without any of them, another graph is faster
    from_pairs: int = 0  # pairs of query and key, over batch and heads, from which it is faster than other graphs
    from_queries: int = 0  # the same of queries
    rows: int | None = None  # queries whose scores are in memory at one time; None = all
    is_common: bool = False  # it serves most requests, which the canonical graph does otherwise


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model, by name. ``spec`` is None for a model that Heed did not export."""

    spec: BlockSpec | None
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]

    @cached_property
    def masks(self) -> list[str]:
        """The inputs that are added to the scores."""
        return [name for name, spec in self.spec.inputs.items() if spec.mask] if self.spec else []

    @cached_property
    def required(self) -> frozenset[str]:
        """The inputs that every request has, but for ``omissible`` ones."""
        return frozenset(name for name, tensor in self.inputs.items() if tensor.required)

    @cached_property
    def stacks(self) -> frozenset[str]:
        """The outputs that are weights, of each stack of layers."""
        return frozenset(STACKS).intersection(self.outputs)

    @cached_property
    def layered(self) -> frozenset[str]:
        """Those of ``stacks`` that have an axis of layers."""
        return frozenset(name for name in self.stacks if len(self.outputs[name].shape) == STACK_AXES)

    @cached_property
    def parameters(self) -> dict[str, TensorSpec]:
        """The inputs that are single numbers or flags."""
        return {name: tensor for name, tensor in self.inputs.items() if tensor.shape == ()}

    @cached_property
    def ranges(self) -> list[tuple[str, InputSpec]]:
        """The inputs whose numbers have a lower or an upper limit."""
        specs = self.spec.inputs.items() if self.spec else ()
        return [(name, spec) for name, spec in specs if spec.minimum is not None or spec.maximum is not None]

    @cached_property
    def placeholders(self) -> dict[str, Placeholder]:
        """The inputs for whose rows tokens stand."""
        specs = self.spec.inputs.items() if self.spec else ()
        return {name: spec.placeholder for name, spec in specs if spec.placeholder}

    @cached_property
    def omissible(self) -> dict[str, tuple[str, ...]]:
        """The required inputs that only some outputs need, with these outputs."""
        return {name: spec.only_for for name, spec in self.spec.inputs.items() if spec.only_for} if self.spec else {}

    def missing(self, given: Collection[str], outputs: Collection[str]) -> list[str]:
        """The inputs that a request for ``outputs`` must have, and that are not among ``given``."""
        return [
            name
            for name, tensor in self.inputs.items()
            if tensor.required
            and name not in given
            and (name not in self.omissible or not set(outputs).isdisjoint(self.omissible[name]))
        ]

    @cached_property
    def predicts_tokens(self) -> bool:
        """Whether ``output`` has the logits of the token after each position: of language models, but masked ones."""
        kinds = (self.spec and self.spec.config.get("architectures")) or [""]
        return self.scores_tokens and kinds[0].endswith(LANGUAGE_MODELS) and kinds[0] not in IN_BOTH_DIRECTIONS

    @cached_property
    def scores_tokens(self) -> bool:
        """Whether ``output`` has a score of every token at each position: of language models, masked ones too."""
        ids = [name for name in TOKEN_INPUTS if name in self.inputs]
        if self.spec is None or not ids or "output" not in self.outputs:
            return False
        last_id, shape = self.spec.inputs[ids[-1]].maximum, self.outputs["output"].shape
        # A language model that was exported without its head answers hidden states.
        return isinstance(last_id, int) and len(shape) == 3 and shape[-1] == last_id + 1

    @cached_property
    def has_bfloat16(self) -> bool:
        return any(tensor.dtype == BFLOAT16 for tensor in (*self.inputs.values(), *self.outputs.values()))
