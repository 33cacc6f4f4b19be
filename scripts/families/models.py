"""Small random models of the model types of transformers."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from transformers import MODEL_MAPPING, PretrainedConfig, PreTrainedModel

from export.hf.parts import parts_of
from scripts.families.configs import ALL_LIMITS, small_config

MAX_PARAMETERS = 30_000_000
STD = 0.3  # of weights; with smaller ones attention is almost uniform


def small_models(config_class: type[PretrainedConfig]) -> Iterator[PreTrainedModel]:
    """Models with random weights, the smallest first; without a head if transformers has such a class.

    Raises:
        Exception: of many types; none can be built, or all have more than ``MAX_PARAMETERS``.
    """
    model_class = _class_of(config_class)
    count, reason = 0, None
    for limits in ALL_LIMITS:
        try:
            model = _small_model(model_class, small_config(config_class, limits))
        except Exception as error:  # transformers raises errors of many types
            reason = reason or error
        else:
            count += 1
            yield model
    if not count and reason:
        raise reason


def names_of_parts(model: PreTrainedModel) -> list[str]:
    """The names of the models inside ``model``, which ``--part`` exports; empty if it is a single one."""
    return [*parts_of(model)] if len(getattr(model.config, "sub_configs", {})) > 1 else []


def _small_model(model_class: Any, config: PretrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in model_class(config).parameters())
    if count > MAX_PARAMETERS:
        raise ValueError(f"{count:,} parameters are too many")
    torch.manual_seed(0)
    model: PreTrainedModel = model_class(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=min(STD, (2 / parameter[0].numel()) ** 0.5))
    return model


def _class_of(config_class: type[PretrainedConfig]) -> Any:
    if config_class in MODEL_MAPPING:
        found = MODEL_MAPPING[config_class]
        return found[0] if isinstance(found, tuple) else found
    module = import_module(config_class.__module__.replace(".configuration_", ".modeling_"))
    classes = {
        value
        for _, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, PreTrainedModel)
        and value.__module__.rpartition(".")[0] == module.__package__
        and value.config_class is config_class
        and not value.__name__.endswith("PreTrainedModel")
    }
    if not classes:
        raise ValueError("transformers has no model for it")
    return min(classes, key=lambda one: ("For" in one.__name__, len(one.__name__), one.__name__))
