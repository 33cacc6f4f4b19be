"""Mixtures of experts (Shazeer et al., 2017, https://arxiv.org/abs/1701.06538), traced as a loop over chosen experts.

transformers computes them either by a Python loop over the experts of a batch, which cannot be traced, or with a copy
of the experts' matrices for each token.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from export.kernels.functions import DOMAIN, OPSETS

NAME = "heed"


def loop_over_experts(model: PreTrainedModel) -> None:
    """Compute the mixtures of ``model`` by a loop that can be traced, if transformers can switch its implementation."""
    if getattr(model, "_can_set_experts_implementation", lambda: False)():
        ALL_EXPERTS_FUNCTIONS.register(NAME, _mixture)
        model.set_experts_implementation(NAME)


def _mixture(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """hidden_states [tokens, width], the experts of each token and their weights [tokens, k] -> [tokens, width]."""
    k = top_k_index.shape[-1]
    experts, order = top_k_index.flatten().sort()  # pairs of a token and an expert
    x = hidden_states[order // k]
    name = "gate_up_proj" if module.has_gate else "up_proj"
    x = _projected(module, name, x, experts)
    x = module._apply_gate(x) if module.has_gate else module.act_fn(x)
    x = _projected(module, "down_proj", x, experts)
    if module.has_post_expert_norm:
        x = module.post_expert_norm(x)
    x = x * top_k_weights.flatten()[order, None]
    return x[order.argsort()].reshape(-1, k, x.shape[-1]).sum(1).to(hidden_states.dtype)


def _projected(module: Any, name: str, x: Tensor, experts: Tensor) -> Tensor:
    """Each row of ``x`` times the matrix ``name`` of its expert, plus the bias if there is one."""
    products = _products(x, experts, getattr(module, name), module.is_transposed)
    return products + getattr(module, f"{name}_bias")[experts] if module.has_bias else products


def _products(x: Tensor, experts: Tensor, weight: Tensor, is_transposed: bool) -> Tensor:
    if torch.compiler.is_exporting():
        name = f"{DOMAIN}::{'ExpertsTransposed' if is_transposed else 'Experts'}"
        shape = [x.shape[0], weight.shape[2 if is_transposed else 1]]
        return torch.onnx.ops.symbolic(
            name, [x, experts, weight], {}, dtype=x.dtype, shape=shape, version=OPSETS[DOMAIN]
        )
    chosen, counts = torch.unique_consecutive(experts, return_counts=True)
    matrices = weight[chosen] if is_transposed else weight[chosen].mT
    parts = torch.split(x, counts.tolist())
    return torch.cat([rows @ matrix for rows, matrix in zip(parts, matrices, strict=True)])
