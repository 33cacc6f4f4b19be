"""A model of transformers as a module with Heed's names: ``output``, ``weights`` and, if it has several stacks, more.

The weights are those that transformers returns as attentions, stacked: [layers, batch, heads, queries, keys]. Hidden
states are stacked, too, if those of all layers have the same shape: [layers + 1, batch, positions, width].
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import combinations, groupby
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from export.hf.heads import Row, heads_masked
from export.hf.parts import arguments_of, called, has_two_towers, is_empty, reads_pictures
from export.hf.pooling import Pooling
from export.hf.pretrained import ModelRefused, without_head
from export.weights.checkpoint import listed


@dataclass(frozen=True)
class Stacks:
    """The stacks of layers of a model: outputs, and the fields of its call's result that they are made from."""

    weights: Mapping[str, str]
    hidden_states: Mapping[str, str]
    head_masks: Mapping[str, str]  # inputs, and the weights that each multiplies
    answers: Mapping[str, str] = field(default_factory=dict)  # the first is ``output``; none: ``_answer`` finds it


ONE_STACK = Stacks({"weights": "attentions"}, {"hidden_states": "hidden_states"}, {"head_mask": "weights"})
TWO_STACKS = Stacks(
    {"weights": "decoder_attentions", "encoder_weights": "encoder_attentions", "cross_weights": "cross_attentions"},
    {"hidden_states": "decoder_hidden_states", "encoder_hidden_states": "encoder_hidden_states"},
    {"head_mask": "encoder_weights", "decoder_head_mask": "weights", "cross_attn_head_mask": "cross_weights"},
)
TWO_TOWERS = Stacks(  # for texts and for images, as CLIP has them
    {"weights": "text_model_output.attentions", "vision_weights": "vision_model_output.attentions"},
    {"hidden_states": "text_model_output.hidden_states", "vision_hidden_states": "vision_model_output.hidden_states"},
    {"head_mask": "weights", "vision_head_mask": "vision_weights"},
    {
        "output": "logits_per_text",
        "logits_per_image": "logits_per_image",
        "text_embedding": "text_embeds",
        "image_embedding": "image_embeds",
    },
)
WITH_PICTURES = Stacks(  # a language model, and the tower whose vectors it takes in place of tokens, as LLaVA has them
    {"weights": "attentions", "vision_weights": "image.attentions"},
    {"hidden_states": "hidden_states", "vision_hidden_states": "image.hidden_states"},
    TWO_TOWERS.head_masks,
)
HIDDEN = (*TWO_STACKS.hidden_states, "vision_hidden_states")
HEAD_MASKS = (*TWO_STACKS.head_masks, "vision_head_mask")
VECTORS = {  # of the weights' heads
    "weights": ("query", "key"),
    "encoder_weights": ("encoder_query", "encoder_key"),
    "cross_weights": ("cross_query", "cross_key"),
    "vision_weights": ("vision_query", "vision_key"),
}
DECODER_INPUTS = {"decoder_input_ids", "decoder_inputs_embeds"}  # DETR's decoder has learned queries
OF_STAGE = "_stage"  # between the name and the number in the weights of all stages but the last
OPTIONAL = ("encoder_weights",)  # that a model need not have beside those of its stages
OF_PICTURES = "vision_"  # prefix of outputs whose second axis is that of pictures
BESIDE = ("pred_boxes",)  # fields of a call's result that are outputs beside logits
OTHER_ANSWERS = {  # fields of a call's result that are an answer
    "embeddings": "The vectors of the tokens, which are compared with those of another input",
    "predicted_depth": "The depth of each pixel",
    "heatmaps": "Where each keypoint is",
}
MAIN = ("input_ids", "pixel_values", "pixel_values_videos", "input_features", "input_values")
PIXEL_MASK = "pixel_mask"
# Masks, each with the inputs it may belong to: it has the shape of the first that is given.
MASKS = {
    "attention_mask": ("input_ids", "input_values"),
    "token_type_ids": ("input_ids",),
    "decoder_attention_mask": ("decoder_input_ids",),
    PIXEL_MASK: ("pixel_values",),  # without the channels
}


def stacks_of(model: PreTrainedModel) -> Stacks:
    """The stacks of the model."""
    if has_two_towers(model):
        return TWO_TOWERS
    if reads_pictures(model):
        return WITH_PICTURES
    has_decoder = model.config.is_encoder_decoder and not DECODER_INPUTS.isdisjoint(arguments_of(model))
    return TWO_STACKS if has_decoder else ONE_STACK


class Wrapper(nn.Module):
    """``model`` called like a block's module; an optional input may have size 1 in place of the batch's.

    With ``rows`` it accepts head masks (``export.hf.heads``).
    """

    def __init__(self, model: PreTrainedModel, with_weights: bool = True, pooling: Pooling | None = None) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.stacks = stacks_of(model)
        self.rows: tuple[Row, ...] = ()
        self.defaults: dict[str, Tensor] = {}  # of optional inputs without which it cannot be called
        self.with_weights = with_weights
        recorded = {"output_attentions": with_weights, "output_hidden_states": with_weights}
        fixed = {"use_cache": False, **recorded, "return_dict": True}
        known = arguments_of(model) | {*recorded, "return_dict"}
        self.fixed = {name: value for name, value in fixed.items() if name in known}

    def forward(self, **inputs: Tensor) -> SimpleNamespace:
        masks = {name: inputs.pop(name) for name in self.stacks.head_masks if name in inputs}
        given = self._given(inputs)
        recorded: dict[Row, tuple[Tensor, Tensor]] = {}
        with heads_masked(masks, self.rows, recorded) if self.rows and self.with_weights else nullcontext():
            result = called(self.model, given, self.fixed)
        answers = self.stacks.answers
        outputs = {name: result[theirs] for name, theirs in answers.items()} or {
            "output": _answer(result, self.model)[1]
        }
        outputs |= {name: result[name] for name in BESIDE if name in result}
        if self.pooling:
            outputs["embedding"] = self.pooling(outputs["output"], given.get("attention_mask"))
        if self.with_weights:
            for name, theirs in self.stacks.weights.items():
                outputs |= by_stage(name, theirs, _at(result, theirs), outputs["output"].shape[0])
            hidden = {name: _at(result, theirs) or () for name, theirs in self.stacks.hidden_states.items()}
            outputs |= {name: torch.stack(layers) for name, layers in hidden.items() if have_one_shape(layers)}
            outputs |= self._vectors(recorded)
        if self.stacks == WITH_PICTURES and is_empty(given["pixel_values"]):
            outputs = {name: x[:, :0] if name.startswith(OF_PICTURES) else x for name, x in outputs.items()}
        return SimpleNamespace(**outputs)

    def answer_field(self, inputs: Mapping[str, Tensor]) -> str:
        """The field of the result of the model's call that is ``output``."""
        with torch.inference_mode():
            return _answer(called(self.model, self._given(inputs), self.fixed), self.model)[0]

    def _given(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``inputs`` and the defaults of others, with masks in the shape of what they mask."""
        given = {**self.defaults, **inputs}
        for name in MASKS.keys() & given.keys():
            shape = next(given[other].shape for other in MASKS[name] if other in given)
            given[name] = given[name].expand((shape[0], *shape[2:]) if name == PIXEL_MASK else shape)
        return given

    def _vectors(self, recorded: Mapping[Row, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """The queries and keys of all heads, [layers, batch, heads, length, width], by name."""
        vectors = {}
        for mask, of in self.stacks.head_masks.items():
            layers = [recorded[row] for row in sorted(recorded) if row[0] == mask]
            for name, tensors in zip(VECTORS[of], zip(*layers, strict=True), strict=True) if layers else ():
                if have_one_shape(tensors):
                    vectors[name] = torch.stack(tensors)
        return vectors


def _at(result: Mapping[str, Any], path: str) -> Any:
    """The field of ``result``, or of a result in it, that ``path`` names."""
    outer, _, inner = path.rpartition(".")
    return (result[outer] if outer else result).get(inner)


def _answer(result: Mapping[str, Any], model: PreTrainedModel) -> tuple[str, Tensor]:
    """The name and the tensor of the answer: the logits of a head, a start and an end for each token, one of
    ``OTHER_ANSWERS``, the hidden states, or the pooled ones."""
    if isinstance(logits := result.get("logits"), Tensor):
        return "logits", logits
    if "start_logits" in result and "end_logits" in result:
        return "start_logits", torch.stack([result["start_logits"], result["end_logits"]], dim=-1)
    for name in (*OTHER_ANSWERS, "last_hidden_state", "pooler_output"):
        if isinstance(hidden := result.get(name), Tensor):
            return name, hidden
    raise ModelRefused(
        f"its call returns {', '.join(result)}, and neither logits, nor start and end logits, nor a last hidden state"
        f"{without_head(model)}"
    )


def have_one_shape(layers: Sequence[Any]) -> bool:
    """Whether there are layers, and all of them are tensors that can be stacked."""
    return bool(layers) and all(isinstance(layer, Tensor) and layer.shape == layers[0].shape for layer in layers)


def by_stage(name: str, theirs: str, layers: Any, batch: int) -> dict[str, Tensor]:
    """The weights of all layers as one tensor or, if stages of a model have different shapes, one for each stage.

    ``name`` is that of the last stage, unless an encoder's last stage has windows. Weights within windows are
    [layers, batch, windows, heads, queries, keys].
    """
    if not layers:
        raise ModelRefused(f"eager attention returns no {theirs}, so there are no weights to serve")
    if any(not isinstance(layer, Tensor) or layer.ndim != 4 for layer in layers):
        shapes = listed(
            str(list(layer.shape)) if isinstance(layer, Tensor) else type(layer).__name__ for layer in layers
        )
        raise ModelRefused(f"{theirs} are not [batch, heads, queries, keys] in every layer: {shapes}")
    stages = [torch.stack([*stage]) for _, stage in groupby(layers, key=lambda layer: layer.shape)]
    returns = any(one.shape[1:] == other.shape[1:] for one, other in combinations(stages, 2))
    has_windows = stages[-1].shape[1] != batch
    if len(stages) > 1 and (returns or (has_windows and name not in OPTIONAL)):
        shapes = listed(str(list(layer.shape)) for layer in layers)
        raise ModelRefused(f"the layers' {theirs} have different shapes, so they are not one tensor: {shapes}")
    weights = {} if has_windows and name in OPTIONAL else {name: stages.pop()}
    for number, stage in enumerate(stages, 1):
        layer_count, count, *pairs = stage.shape
        is_whole = count == batch
        weights[f"{name}{OF_STAGE}{number}"] = stage if is_whole else stage.reshape(layer_count, batch, -1, *pairs)
    return weights
