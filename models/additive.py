r"""Additive attention: the score is :math:`v^\top\tanh(W_q q + W_k k)`, times a scale :math:`s` of the request.

Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate", 2014,
https://arxiv.org/abs/1409.0473. Some texts write :math:`\mathrm{softmax}(\tanh(QW_q + KW_k))` without :math:`v`,
which makes one score of d_a features: that is this block with d_a = 1 and v = 1.
Luong's "concat", :math:`v^\top\tanh(W[q;k])` (2015, https://arxiv.org/abs/1508.04025), is the same with W = [W_q W_k].
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models import reference
from models.attention import AttentionOutputs, masked_softmax, times
from models.block import Block, Input
from models.learned import State, replaceable, replaced, replacements, weighted
from models.options import attention_outputs, masks, scale


@dataclass(frozen=True)
class AdditiveConfig:
    """Widths of query and key, of the space in which they are added (d_a), and of value.

    Raises:
        ValueError: a size is less than 1.
    """

    d_q: int
    d_k: int
    d_a: int
    d_v: int
    bias: bool = False

    def __post_init__(self) -> None:
        if min(self.d_q, self.d_k, self.d_a, self.d_v) < 1:
            raise ValueError(f"every size must be at least 1, got {self}")


class Additive(nn.Module):
    """query [batch, m, d_q], key [batch, n, d_k], value [batch, n, d_v] -> output [batch, m, d_v], weights of one head.

    ``options`` are those of ``models.attention.masked_softmax``, and tensors that replace learned ones
    (``models.learned``).
    """

    def __init__(self, config: AdditiveConfig) -> None:
        super().__init__()
        self.q_proj = nn.Linear(config.d_q, config.d_a, bias=False)
        self.k_proj = nn.Linear(config.d_k, config.d_a, bias=config.bias)
        self.v = nn.Linear(config.d_a, 1, bias=False)

    @replaceable
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scale: Tensor | float = 1.0, **options: Any
    ) -> AttentionOutputs:
        q, k = self.q_proj(query), self.k_proj(key)
        q, k = q + 0 * q, k + 0 * k  # an overflow becomes NaN: the tanh of infinity would look right
        added_BMNA = q[:, :, None] + k[:, None]
        scores_BMN = times(self.v(torch.tanh(added_BMNA)).squeeze(-1), scale)
        one_head = masked_softmax(scores_BMN[:, None], value[:, None], **options)
        return one_head._replace(output=one_head.output.squeeze(1))


def inputs(d_q: int, d_k: int, d_v: int) -> dict[str, Input]:
    """The inputs query, key and value of three widths, the scale, and the masks of one head."""
    return {
        "query": Input(("batch", "m", d_q), "The queries, for example decoder states."),
        "key": Input(
            ("batch", "n", d_k), "The vectors that the queries are compared with, for example encoder states."
        ),
        "value": Input(
            ("batch", "n", d_v),
            "The vectors that the weights average, often the keys; needed only for output.",
            only_for=("output",),
        ),
        "scale": scale(),
        **masks(1),
    }


def block(
    config: AdditiveConfig,
    name: str = "additive",
    state: State | None = None,
    title: str = "Additive attention (Bahdanau)",
    formula: str = "",
    source: str = "Bahdanau et al., NMT by Jointly Learning to Align and Translate, 2014, https://arxiv.org/abs/1409.0473",
) -> Block:
    """An additive block with the weights of ``state``, or with random weights from a seed."""

    own = replacements(lambda: Additive(config))

    def refer(module: nn.Module, inputs: Mapping[str, np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
        state, others = replaced(module, inputs)
        return reference.additive(state, **others, dtype=dtype)

    return Block(
        name=name,
        title=title,
        formula=formula
        or rf"\mathrm{{softmax}}_j\left(s\,v^\top\tanh(W_q q_i + W_k k_j{' + b' * config.bias})\right)V",
        source=source,
        description=f"Query and key are projected to {config.d_a} dimensions, with{'out' * (not config.bias)} a bias, "
        "and added; v maps the tanh of the sum to one score, which scale (s) multiplies.",
        build=weighted(lambda: Additive(config), state),
        reference=refer,
        inputs=inputs(config.d_q, config.d_k, config.d_v) | own,
        outputs=attention_outputs(("batch", "m", config.d_v), 1),
        rare=tuple(own),
        depth=8 * config.d_a + config.d_v,  # a tanh costs about eight multiply-adds
        pair_numbers=config.d_a + 1,  # the sum of query and key
        config=asdict(config),
    )


BLOCK = block(AdditiveConfig(d_q=24, d_k=32, d_a=20, d_v=32))
LUONG_CONCAT = block(
    AdditiveConfig(d_q=32, d_k=32, d_a=20, d_v=32),
    name="luong_concat",
    title="Luong attention, concat",
    formula=r"\mathrm{softmax}_j\left(s\,v^\top\tanh(W[q_i;k_j])\right)V,\quad W = [W_q\ W_k]",
    source="Luong et al., Effective Approaches to Attention-based NMT, 2015, https://arxiv.org/abs/1508.04025",
)
