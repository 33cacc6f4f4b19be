"""The models of which a model of transformers is made: a tower for images or sound, a language model."""

from inspect import signature
from typing import Any

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel

# Methods and parts of a model with two towers.
MEMBERS = ("get_text_features", "get_image_features", "text_model", "vision_model")


def has_two_towers(model: PreTrainedModel) -> bool:
    """Whether it compares texts with images, each of which has a stack of its own (Radford et al., 2021)."""
    arguments = signature(model.forward).parameters
    return all(hasattr(model, name) for name in MEMBERS) and {"input_ids", "pixel_values"} <= arguments.keys()


def config_of(model: PreTrainedModel, name: str) -> Any:
    """The config of the tower that takes the input ``name``, or of a model without two towers."""
    if not has_two_towers(model):
        return model.config
    return model.config.vision_config if name == "pixel_values" else model.config.text_config


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
    """``part`` as a causal language model with the head of ``whole``; unchanged if it is none, or there is no head."""
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
    """Of parameters of ``whole``, by their names there, those that are in ``part``, by their names in it."""
    own = {id(parameter): name for name, parameter in part.named_parameters()}
    every = dict(whole.named_parameters())
    return tuple(own[id(every[name])] for name in names if name in every and id(every[name]) in own)
