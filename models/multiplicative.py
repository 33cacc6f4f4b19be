r"""Multiplicative attention without a softmax: :math:`(QK^\top)V`, which is :math:`Q(K^\top V)`.

For Q = K = V = X, :math:`(XX^\top)X`. Schmidhuber, "Learning to Control Fast-Weight Memories", 1992, see Schlag et al.,
"Linear Transformers Are Secretly Fast Weight Programmers", 2021, https://arxiv.org/abs/2102.11174.
"""

import torch
from torch import Tensor, nn

from models import reference
from models.attention import Attended
from models.block import Block, Input, Output
from models.cosine import INPUTS, OUTPUT
from models.precision import narrow, wide


class Multiplicative(nn.Module):
    """query [batch, heads, m, d_k], key [batch, heads, n, d_k], value [batch, heads, n, d_v]; no weights."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: Tensor | float = 1.0) -> Attended:
        if query.element_size() < 4:
            query = narrow(wide(query) * scale, query.dtype)
            weights = query @ key.transpose(-1, -2)
            return Attended(query @ (key.transpose(-1, -2) @ value), weights, weights)
        # Normalised, and multiplied by the largest numbers last: a product of two of them may underflow where that of
        # all three does not.
        (query, q), (key, k), (value, v) = _normalised(query), _normalised(key), _normalised(value)
        factor = q * k * scale
        weights = (query @ key.transpose(-1, -2)) * factor.to(query.dtype)
        output = query @ (key.transpose(-1, -2) @ value)  # K^T V first, [B, H, D, E]: no tensor of m times n
        output = (output.double() * (factor * v)).to(value.dtype)
        return Attended(output, weights, weights)


def _normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` divided by the largest number of each head, and that number in float64."""
    largest = x.abs().amax((2, 3), keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    return x / largest, largest.double()


BLOCK = Block(
    name="multiplicative",
    title="Multiplicative attention, without a softmax",
    formula=r"s\,(QK^\top)V",
    source="Schlag et al., Fast Weight Programmers, 2021, https://arxiv.org/abs/2102.11174",
    description="Weights are inner products times scale (s), so rows do not sum to 1; time and memory are linear in n "
    "unless they are asked for.",
    build=Multiplicative,
    reference=lambda _module, inputs, dtype: reference.multiplicative(**inputs, dtype=dtype),
    inputs={**INPUTS, "scale": Input((), "Multiplies the inner products.", default=1.0)},
    outputs={
        "output": Output(OUTPUT, "The values, added up by the weights."),
        "weights": Output(("batch", "heads", "m", "n"), "The scaled inner products; rows do not sum to 1."),
    },
    linear=True,
)
