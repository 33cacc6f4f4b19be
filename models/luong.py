r"""Luong's scores "dot" :math:`QK^\top` and "general" :math:`QWK^\top`, times a scale :math:`s` of the request.

His "concat" is in ``models.additive``.

Luong et al., "Effective Approaches to Attention-based Neural Machine Translation", 2015, https://arxiv.org/abs/1508.04025.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from models import dot_product, reference
from models.additive import inputs
from models.attention import AttentionOutputs, masked_softmax, nan_if_overflowing, times
from models.block import Block
from models.learned import State, replaceable, replaced, replacements, weighted
from models.options import attention_outputs


@dataclass(frozen=True)
class LuongGeneralConfig:
    """Widths of query, key and value; W is [d_q, d_k].

    Raises:
        ValueError: a size is less than 1.
    """

    d_q: int
    d_k: int
    d_v: int

    def __post_init__(self) -> None:
        if min(self.d_q, self.d_k, self.d_v) < 1:
            raise ValueError(f"every size must be at least 1, got {self}")


class LuongGeneral(nn.Module):
    """query [batch, m, d_q], key [batch, n, d_k], value [batch, n, d_v] -> output [batch, m, d_v], weights of one head.

    ``options`` are those of ``models.attention.masked_softmax``, and tensors that replace learned ones
    (``models.learned``).
    """

    def __init__(self, config: LuongGeneralConfig) -> None:
        super().__init__()
        self.q_proj = nn.Linear(config.d_q, config.d_k, bias=False)

    @replaceable
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scale: Tensor | float = 1.0, **options: Any
    ) -> AttentionOutputs:
        scores_BMN = nan_if_overflowing(times(self.q_proj(query), scale), key) @ key.transpose(-1, -2)
        one_head = masked_softmax(scores_BMN[:, None], value[:, None], **options)
        return one_head._replace(output=one_head.output.squeeze(1))


def block(config: LuongGeneralConfig, name: str = "luong_general", state: State | None = None) -> Block:
    """A block of Luong's score "general" with the weights of ``state``, or with random weights from a seed."""

    own = replacements(lambda: LuongGeneral(config))

    def refer(module: nn.Module, inputs: Mapping[str, np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
        state, others = replaced(module, inputs)
        return reference.luong_general(state, **others, dtype=dtype)

    return Block(
        name=name,
        title="Luong attention, general",
        formula=r"\mathrm{softmax}(s\,QWK^\top)V",
        source=dot_product.BLOCK.source,
        description="A learned matrix between query and key, which may be of different widths; scale (s) multiplies "
        "the scores.",
        build=weighted(lambda: LuongGeneral(config), state),
        reference=refer,
        inputs=inputs(config.d_q, config.d_k, config.d_v) | own,
        outputs=attention_outputs(("batch", "m", config.d_v), 1),
        rare=tuple(own),
        depth=config.d_k + config.d_v,
        config=asdict(config),
    )


GENERAL = block(LuongGeneralConfig(d_q=24, d_k=32, d_v=32))
DOT = replace(dot_product.BLOCK, name="luong_dot", title="Luong attention, dot")
