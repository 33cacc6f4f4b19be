"""Vectors of pictures that are added in several layers of a language model, DeepStack (Meng et al., 2024)."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

METHOD = "_deepstack_process"


def add_by_masks(model: PreTrainedModel) -> None:
    """Let the language model in ``model`` add such vectors without a tensor whose size depends on the tokens."""
    for part in model.modules():
        if hasattr(part, METHOD):
            setattr(part, METHOD, MethodType(_added, part))


def _added(_part: Any, hidden_states: Tensor, visual_pos_masks: Tensor, visual_embeds: Tensor) -> Tensor:
    """``hidden_states`` [batch, n, width] plus ``visual_embeds`` [places, width] where masks [batch, n] are true."""
    vectors = visual_embeds.to(hidden_states.dtype)
    return hidden_states + torch.zeros_like(hidden_states).masked_scatter(visual_pos_masks[..., None], vectors)
