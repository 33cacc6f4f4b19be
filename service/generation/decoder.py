"""The graphs by which a version generates."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from service.model.feature_graphs import FeatureGraphs
from service.model.model import Model
from service.model.spec import CANONICAL, Signature
from service.native.schemas import QuantizedDescription
from service.ort import device_memory
from service.ort.device_memory import Array
from service.ort.onnx_metadata import metadata
from service.tensors.dims import dim_size
from service.tensors.spec import DTYPES, TensorSpec

DECODE, OUTPUT, ENCODER = "decode", "decode_output", "encoder"
ITEM_BYTES = 4
LOGITS = "logits"
PAST = "past_"
START = "decoder_start_token_id"
FORCED = FORCED_FIRST, FORCED_LAST = "forced_bos_token_id", "forced_eos_token_id"
SUPPRESSED = SUPPRESSED_ALWAYS, SUPPRESSED_FIRST = "suppress_tokens", "begin_suppress_tokens"
CHANGED = "_interventions"  # end of the names of graphs whose activations a request changes

Allocate = Callable[[tuple[int, ...], np.dtype], Array]


class Generation(BaseModel, frozen=True):
    """How a model generates, as the metadata of its graph says. ``refused`` is why it does not."""

    refused: str | None = None
    two_stacks: bool = False
    counts_pictures: bool = False
    past: tuple[tuple[int, int], ...] = ()  # of the keys and values of each layer in turn: heads, width
    pads_left: bool = False
    quantized: QuantizedDescription | None = None
    tokens: dict[str, Any] = {}

    @property
    def shares_runs(self) -> bool:
        """Whether sequences of different lengths share runs: a step of two stacks has no mask of the decoder."""
        return self.pads_left and not self.two_stacks

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        return frozenset(listed(self.tokens.get("eos_token_id")))


class Decoder(FeatureGraphs):
    """The graphs of steps of one version."""

    def __init__(self, folder: Path, model: Model, generation: Generation, threads: int) -> None:
        super().__init__(folder, model, threads)
        self.generation = generation

    def names(self, has_outputs: bool, is_changed: bool) -> list[str]:
        """The graphs of a generation, with outputs of its steps or without, and with changes or without."""
        names = [OUTPUT, *([DECODE] if has_outputs else []), *([ENCODER] if self.generation.two_stacks else [])]
        if not is_changed:
            return names
        return [*(f"{name}{CHANGED}" for name in names), *([DECODE] if has_outputs else [])]

    @cached_property
    def signature(self) -> Signature:
        """The outputs of a step, by which options of the weights are planned."""
        nodes = self.graph(DECODE).session.onnx.get_outputs()
        outputs = {
            node.name: TensorSpec(node.name, np.dtype(DTYPES[node.type]), tuple(node.shape))
            for node in nodes
            if node.name != LOGITS and not node.name.startswith(("key_", "value_"))
        }
        return Signature(self.model.spec, {}, outputs)

    @cached_property
    def batch_axes(self) -> Mapping[str, int]:
        """The axis of the batch in each output of a step, counted from the last."""
        outputs = self.signature.outputs
        return {name: [*map(str, one.shape)].index("batch") - len(one.shape) for name, one in outputs.items()}

    def heads(self, weights: str) -> tuple[int, int]:
        """Layers and heads of these weights; (0, 0) if the model does not have them."""
        if weights not in self.model.outputs:
            return 0, 0
        layers, _, heads, *_ = self.model.outputs[weights].shape
        return int(layers), int(heads)

    @property
    def past(self) -> Mapping[str, tuple[int, int]]:
        """The shape [heads, width] of each tensor of keys or values, by its name: ``key_0``, ``value_0``, ..."""
        shapes = self.generation.past
        return {f"{('key', 'value')[index % 2]}_{index // 2}": shape for index, shape in enumerate(shapes)}

    @property
    def allocate(self) -> Allocate:
        """Allocates keys and values: where runs read and write them."""
        return device_memory.empty if self.model.provider.name == "cuda" else np.empty

    def kept(self, array: np.ndarray) -> Array:
        """An input of all steps, where runs read it."""
        return device_memory.copied(array) if self.model.provider.name == "cuda" else array

    @property
    def position_bytes(self) -> int:
        """Of the keys and values of one position."""
        return ITEM_BYTES * sum(map(prod, self.generation.past))

    @property
    def learned_bytes(self) -> int:
        """Of the model's weights, which each run reads."""
        spec, quantized = self.model.spec, self.generation.quantized
        learned = spec.learned if spec else 0
        return learned * quantized.bits // 8 if quantized else ITEM_BYTES * learned

    @property
    def ids(self) -> str:
        """The input of a step that has the new tokens, and of the model that has the prompt."""
        return "decoder_input_ids" if self.generation.two_stacks else "input_ids"

    @property
    def vocabulary(self) -> int:
        """The number of logits."""
        return int(self.model.outputs["output"].shape[-1])

    @property
    def max_positions(self) -> int | None:
        """The most tokens of a sequence, with its prompt; None = any number."""
        return self.model.max_tokens(self.ids)

    def output_shapes(self, names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The shapes of these outputs of a step."""
        outputs = self.signature.outputs
        return {name: tuple(dim_size(dim, sizes) for dim in outputs[name].shape) for name in names}


def listed(value: Any) -> list[int]:
    """Token ids that the metadata has as a number, a list, or not at all."""
    return [] if value is None else [value] if isinstance(value, int) else [*value]


def load_decoder(folder: Path, model: Model, threads: int) -> Decoder | None:
    """The decoder of the version in ``folder``; None if its metadata says nothing of generation."""
    entry = json.loads(metadata(folder / CANONICAL).get("heed", "{}")).get("generation")
    if entry is None:
        return None
    decoder = Decoder(folder, model, Generation(**entry), threads)
    if not decoder.generation.refused:
        decoder.generation = in_vocabulary(decoder.generation, decoder.vocabulary)
    return decoder


def in_vocabulary(generation: Generation, vocabulary: int) -> Generation:
    """``generation`` with none but tokens of the ``vocabulary``.

    Tokens that are never chosen may be others, as in small models with the ids of large ones: transformers ignores
    them. Where the first or the last token has to be another, the model does not generate.
    """
    tokens = dict(generation.tokens)
    for name in SUPPRESSED:
        tokens[name] = [token for token in listed(tokens.get(name)) if 0 <= token < vocabulary]
    for name in (START, *FORCED):
        for token in listed(tokens.get(name)):
            if not 0 <= token < vocabulary:
                reason = f"its {name}, {token}, is none of its {vocabulary:,} tokens; correct it, and export it again"
                return generation.model_copy(update={"refused": reason})
    return generation.model_copy(update={"tokens": tokens})
