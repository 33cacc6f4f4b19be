"""The models inside a model of transformers: a tower for images or sound, a language model."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, signature
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel, masking_utils
from transformers.utils.import_utils import is_tracing

from export.hf.packed.at_once import AllAtOnce
from export.hf.packed.positioned import patches_of, positioned_tower
from export.hf.packed.positions import check_positions, positions_of
from export.hf.packed.tower import check_vectors, packed_tower

# Methods and parts of a model with two towers.
MEMBERS = ("get_text_features", "get_image_features", "text_model", "vision_model")
TYPES = ("token_type_ids", "mm_token_type_ids")
PICTURES = ("pixel_values", "mm_encoder_outputs")  # arguments of a language model: pictures, or their vectors
PICTURES_BEFORE = "pictures_before"  # input of a step whose positions depend on the earlier pictures
# By model type, the name and the values of the argument that a processor sends beside the tokens: 1 = a token of a
# picture, which attends in both directions within it; 0 = another token, or in PaliGemma every token of the prompt.
TOKEN_TYPES: dict[str, tuple[str, Callable[[Tensor, int], Tensor]]] = {
    "gemma3": (TYPES[0], lambda ids, picture: (ids == picture).to(ids.dtype)),
    "gemma4": (TYPES[1], lambda ids, picture: (ids == picture).to(ids.dtype)),
    "paligemma": (TYPES[0], lambda ids, _: torch.zeros_like(ids)),
}
DECODER_IDS = "decoder_input_ids"
RECORDED = ("output_attentions", "output_hidden_states", "return_dict")  # options of a call
OF_PICTURES = "image_position_ids"  # argument of a model: the positions of the patches for its tower
PADDING = "pixel_attention_mask"  # argument of a tower: which pixels are not padding
NO_CHECKS = "TRANSFORMERS_DISABLE_TORCH_CHECK"


def has_two_towers(model: PreTrainedModel) -> bool:
    """Whether it compares texts with images, each of which has a stack of its own (Radford et al., 2021)."""
    arguments = signature(model.forward).parameters
    return all(hasattr(model, name) for name in MEMBERS) and {"input_ids", "pixel_values"} <= arguments.keys()


def reads_pictures(model: PreTrainedModel) -> bool:
    """Whether it is a language model that takes vectors of pictures in place of tokens (Liu et al., 2023)."""
    arguments, config = signature(model.forward).parameters, model.config
    return (
        {"input_ids", *PICTURES} <= arguments.keys()
        and hasattr(config, "vision_config")
        and isinstance(getattr(config, "image_token_id", None), int)
        and required_of(getattr(model, "get_image_features", model.forward)) == {"pixel_values"}
        and (config.model_type in TOKEN_TYPES or arguments.keys().isdisjoint(_types_of_tokens(model)))
    )


def _types_of_tokens(model: PreTrainedModel) -> tuple[str, ...]:
    """The arguments that a graph does not compute; for packed patches, TYPES only mark the tokens of pictures."""
    return ("moe_mm_token_type_ids",) if packed_tower(model) else TYPES


def arguments_of(model: PreTrainedModel) -> set[str]:
    """The names of the arguments of the model's call."""
    return set(signature(model.forward).parameters)


def has_two_stacks(model: PreTrainedModel) -> bool:
    """Whether it has an encoder and a decoder, which may be models of two types (Rothe et al., 2020)."""
    return bool(model.config.is_encoder_decoder) and DECODER_IDS in arguments_of(model)


def required_of(function: Callable[..., Any]) -> set[str]:
    """The arguments without which ``function`` cannot be called."""
    given = signature(function).parameters.values()
    return {one.name for one in given if one.default is one.empty and one.kind is Parameter.POSITIONAL_OR_KEYWORD}


def config_of(model: PreTrainedModel, name: str) -> Any:
    """The config of the tower or stack that takes the input ``name``, or the model's if it has one for all."""
    if has_two_stacks(model):
        own = getattr(model.config, "decoder" if name == DECODER_IDS else "encoder", None)
        return own if isinstance(own, PretrainedConfig) else model.config
    if not (has_two_towers(model) or reads_pictures(model)):
        return model.config
    return model.config.vision_config if name == "pixel_values" else model.config.text_config


@contextmanager
def _one_sequence_in_a_row() -> Iterator[None]:
    """A context in which a traced model has no mask between several sequences that are packed in a row.

    transformers leaves that mask out where the positions show one sequence, which it cannot see while it is traced.
    With the mask of [n, n], a causal model could not use a kernel for causal attention.
    """
    find = masking_utils.find_packed_sequence_indices

    def found(position_ids: Tensor) -> Tensor | None:
        return None if is_tracing(position_ids) else find(position_ids)

    masking_utils.find_packed_sequence_indices = found
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = find


@_one_sequence_in_a_row()
def called(model: PreTrainedModel, inputs: Mapping[str, Any], options: Mapping[str, bool]) -> Mapping[str, Any]:
    """The fields of the result of the model's call; ``image`` has those of the tower that read the pictures.

    Without a picture they are those of one: the tower cannot run with none.
    """
    if "pixel_values" not in inputs or not reads_pictures(model):
        result: Mapping[str, Any] = model(**inputs, **options)
        return result
    others = {name: value for name, value in inputs.items() if name not in ("pixel_values", PICTURES_BEFORE)}
    if model.config.model_type in TOKEN_TYPES:
        name, types = TOKEN_TYPES[model.config.model_type]
        others[name] = types(inputs["input_ids"], model.config.image_token_id)
    pictures = inputs["pixel_values"]
    if tower := packed_tower(model):
        mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
        shape = tuple(pictures.shape[1:])
        others["position_ids"] = positions_of(
            tower, shape, model.config.image_token_id, inputs["input_ids"], mask, inputs.get(PICTURES_BEFORE)
        )
    recorded = {name: options[name] for name in RECORDED if name in options}
    if is_empty(pictures):
        one = torch.zeros(1, *pictures.shape[1:], dtype=model.dtype)
        return {"image": _features(model, one, recorded), **model(**others, **options)}
    with _without_counts():
        seen = _features(model, pictures, recorded)
        return {**model(**others, **options, mm_encoder_outputs={"image": seen}), "image": seen}


def is_empty(pictures: Tensor) -> bool:
    """Whether there is no picture; a graph has any number."""
    count = pictures.shape[0]
    return isinstance(count, int) and count == 0


def tokens_of_picture(model: PreTrainedModel, shape: Sequence[int]) -> int:
    """The number of tokens that stand for a picture of ``shape``."""
    with torch.inference_mode():
        if tower := packed_tower(model):
            check_vectors(model, tower, tuple(shape))
            check_positions(model, tower, tuple(shape))
        features = _features(model, torch.zeros(1, *shape), {"return_dict": True}).pooler_output
    vectors = [features] if torch.is_tensor(features) else features  # of all pictures, or of each
    return sum(prod(part.shape[:-1]) for part in vectors)


def _features(model: Any, pixel_values: Tensor, options: Mapping[str, Any]) -> Any:
    """The result of the tower, whose ``pooler_output`` takes the places of tokens."""
    if tower := packed_tower(model):
        seen = tower(pixel_values, **options)
        seen.pooler_output = (seen.pooler_output.flatten(0, 1),)
        if "deepstack_features" in seen:  # of Qwen3-VL, for its first layers
            seen.deepstack_features = [(layer.flatten(0, 1),) for layer in seen.deepstack_features]
        return seen
    if PADDING in signature(model.get_image_features).parameters:  # the pictures of each text are a row
        pixel_values = pixel_values[None]
    if tower := positioned_tower(model):
        pixel_values, positions = patches_of(tower, pixel_values)
        options = {**options, OF_PICTURES: positions}
    with AllAtOnce():
        return model.get_image_features(pixel_values, **options)


@contextmanager
def _without_counts() -> Iterator[None]:
    """A context in which transformers does not compare the numbers of tokens and vectors: a graph cannot raise."""
    before = os.environ.get(NO_CHECKS)
    os.environ[NO_CHECKS] = "1"
    try:
        yield
    finally:
        os.environ.pop(NO_CHECKS)
        if before is not None:
            os.environ[NO_CHECKS] = before


def parts_of(whole: PreTrainedModel) -> dict[str, str]:
    """The parts of ``whole``, which have a config of another class and are in no other part: name -> path in it."""
    paths: list[str] = []
    for path, module in whole.named_modules():
        is_inner = any(path.startswith(f"{outer}.") for outer in paths)
        if isinstance(module, PreTrainedModel) and type(module.config) is not type(whole.config) and not is_inner:
            paths.append(path)
    names = [path.rpartition(".")[-1] for path in paths]
    return {name if names.count(name) == 1 else path: path for name, path in zip(names, paths, strict=True)}


def with_head(whole: Any, part: Any) -> PreTrainedModel:
    """``part`` as a causal language model with the head of ``whole``; unchanged if it cannot have that head."""
    head = whole.get_output_embeddings() if hasattr(whole, "lm_head") else None
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(part.config), None)
    chosen: PreTrainedModel = part
    if head is not None and model_class is not None:
        with torch.device("meta"):
            model = model_class(part.config)
        if type(getattr(model, model.base_model_prefix, None)) is type(part):
            setattr(model, model.base_model_prefix, part)
            model.set_output_embeddings(head)
            model.generation_config = whole.generation_config
            if not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
                chosen = model.eval()
    return chosen


def names_in(part: nn.Module, whole: nn.Module, names: tuple[str, ...]) -> tuple[str, ...]:
    """The parameters ``names`` of ``whole`` that are in ``part``, by their names in ``part``."""
    own = {id(parameter): name for name, parameter in part.named_parameters()}
    every = dict(whole.named_parameters())
    return tuple(own[id(every[name])] for name in names if name in every and id(every[name]) in own)
