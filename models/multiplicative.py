r"""Multiplicative attention without a softmax: :math:`(QK^\top)V`, which is :math:`Q(K^\top V)`.

Of X alone, :math:`(XX^\top)X`. Schmidhuber, "Learning to Control Fast-Weight Memories", 1992, as read by Schlag et al.,
"Linear Transformers Are Secretly Fast Weight Programmers", 2021, https://arxiv.org/abs/2102.11174.
"""

from torch import Tensor, nn

from models import reference
from models.attention import Attended
from models.block import Block, Input, Output
from models.cosine import INPUTS, OUTPUT
from models.precision import narrow, wide


class Multiplicative(nn.Module):
    """query [batch, heads, m, d_k], key [batch, heads, n, d_k], value [batch, heads, n, d_v]; no weights."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: Tensor | float = 1.0) -> Attended:
        query = narrow(wide(query) * scale, query.dtype)
        keys_first = key.transpose(-1, -2) @ value  # [B, H, D, E]: the output needs no m times n
        weights = query @ key.transpose(-1, -2)
        return Attended(query @ keys_first, weights, weights)


BLOCK = Block(
    name="multiplicative",
    title="Multiplicative attention, without a softmax",
    formula=r"(QK^\top)V",
    source="Schlag et al., Fast Weight Programmers, 2021, https://arxiv.org/abs/2102.11174",
    description="Weights are inner products, so rows do not sum to 1; linear in n unless they are asked for.",
    build=Multiplicative,
    reference=lambda _module, inputs, dtype: reference.multiplicative(**inputs, dtype=dtype),
    inputs={**INPUTS, "scale": Input((), "Multiplies the inner products.", default=1.0)},
    outputs={
        "output": Output(OUTPUT, "The values, added up by the weights."),
        "weights": Output(("batch", "heads", "m", "n"), "The scaled inner products; rows do not sum to 1."),
    },
    linear=True,
)
