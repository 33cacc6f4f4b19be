r"""Multi-head attention: :math:`\mathrm{Concat}(\mathrm{head}_1,\dots,\mathrm{head}_h)W^O + b^O`.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762, section 3.2.2;
the projections and their biases are those of ``torch.nn.MultiheadAttention``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models import reference
from models.attention import Attended, attention
from models.block import Block, Input
from models.options import answers, options


@dataclass(frozen=True)
class MultiHeadConfig:
    """Sizes of the learned projections; kdim and vdim are the widths of key and value."""

    d_model: int
    num_heads: int
    kdim: int
    vdim: int

    def __post_init__(self) -> None:
        if min(self.d_model, self.num_heads, self.kdim, self.vdim) < 1:
            raise ValueError(f"every size must be at least 1, got {self}")
        if self.d_model % self.num_heads:
            raise ValueError(f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}")


class MultiHead(nn.Module):
    """query [batch, m, d_model], key [batch, n, kdim], value [batch, n, vdim] -> output [batch, m, d_model].

    ``past_key`` and ``past_value`` are [batch, num_heads, past, d_model / num_heads]: projected, split into heads.
    """

    def __init__(self, config: MultiHeadConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.k_proj = nn.Linear(config.kdim, config.d_model)
        self.v_proj = nn.Linear(config.vdim, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Tensor) -> Attended:
        q_BHMD, k_BHND, v_BHND = (
            self._split(project(x)) for project, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        heads = attention(q_BHMD, k_BHND, v_BHND, **options)
        return heads._replace(output=self.out_proj(heads.output.transpose(1, 2).flatten(2)))

    def _split(self, x: Tensor) -> Tensor:
        """[B, length, d_model] -> [B, H, length, D]"""
        B, length, d_model = x.shape
        return x.reshape(B, length, self.num_heads, d_model // self.num_heads).transpose(1, 2)


def block(name: str, config: MultiHeadConfig, seed: int) -> Block:
    """A multi-head block whose weights are torch's initial ones, drawn from ``seed``."""
    d_head = config.d_model // config.num_heads

    def build() -> MultiHead:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = MultiHead(config)
            for projection in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
                nn.init.normal_(projection.bias, std=0.1)  # torch starts some at zero, which would hide a lost bias
            return module

    def refer(module: nn.Module, inputs: Mapping[str, np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
        state = {key: tensor.numpy() for key, tensor in module.state_dict().items()}
        return reference.multi_head(state, config.num_heads, **inputs, dtype=dtype)

    return Block(
        name=name,
        title="Multi-head attention",
        formula=(
            r"\mathrm{Concat}(\mathrm{head}_1,\dots,\mathrm{head}_h)W^O + b^O,\quad "
            r"\mathrm{head}_i = \mathrm{softmax}\left(\frac{(QW^Q_i+b^Q_i)(KW^K_i+b^K_i)^\top}{\sqrt{d_k}}\right)"
            r"(VW^V_i+b^V_i)"
        ),
        source="Vaswani et al., Attention Is All You Need, 2017, https://arxiv.org/abs/1706.03762",
        description=f"Learned projections with biases around {config.num_heads} heads; answers every head's weights.",
        build=build,
        reference=refer,
        inputs={
            "query": Input(("batch", "m", config.d_model), "What is asked."),
            "key": Input(("batch", "n", config.kdim), "What the queries meet."),
            "value": Input(("batch", "n", config.vdim), "What is averaged."),
            **options("batch", config.num_heads, config.num_heads, d_head, d_head),
        },
        outputs=answers(("batch", "m", config.d_model), config.num_heads, config.num_heads, d_head, d_head),
        config=asdict(config) | {"seed": seed},
    )


BLOCK = block("multi_head", MultiHeadConfig(d_model=64, num_heads=8, kdim=64, vdim=64), seed=0)
