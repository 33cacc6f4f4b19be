r"""The contribution of each head: its share of the output, and its weights times the norms of the projected values.

:math:`\mathrm{Concat}(\mathrm{head}_1,\dots)W^O = \sum_i \mathrm{head}_i W_i^O`, where W_i^O are the rows of W^O for
head i (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762). A weight :math:`\alpha` of a key with value v adds
:math:`\alpha f(x) = \alpha v W_i^O` to the output, whose norm is :math:`|\alpha|\,\lVert v W_i^O \rVert`
(Kobayashi et al., "Attention is Not Only a Weight", 2020, https://arxiv.org/abs/2004.10102, equation 5).

Shapes: B batch, H heads, K kv_heads, M queries, N keys, E d_v, C the width of the output.
"""

import torch
from torch import Tensor

from models.attention import AttentionOutputs
from models.precision import cast_to, upcast


def masked(attended: AttentionOutputs, head_mask: Tensor | None) -> AttentionOutputs:
    """``attended`` with the weights, and so the output, of each head multiplied by ``head_mask``, [B or 1, H]."""
    if head_mask is None:
        return attended
    mask_BH11 = head_mask[:, :, None, None]
    return attended._replace(output=attended.output * mask_BH11, weights=attended.weights * mask_BH11)


def shares(heads: Tensor, matrix: Tensor) -> Tensor:
    """``heads`` [B, H, M, E], each times its rows of W^O: [B, H, M, C]; ``matrix`` [H * E, C] is W^O."""
    return heads @ matrix.reshape(heads.shape[1], -1, matrix.shape[1])


def weights_by_norm(weights: Tensor, value: Tensor, matrix: Tensor) -> Tensor:
    """The norm of each weight [B, H, M, N] times its value [B, K, N, E], projected; ``matrix`` as for ``shares``."""
    B, H, _, N = weights.shape
    K, E, C = value.shape[1], value.shape[3], matrix.shape[1]
    by_group = matrix.reshape(K, -1, E, C)  # adjacent heads share a value head
    projected = upcast((value[:, :, None] @ by_group).reshape(B, H, N, C))
    largest = projected.abs().amax(-1, keepdim=True)  # so that no square overflows or underflows
    parts = projected / torch.where(largest == 0, 1.0, largest)
    norms_BHN1 = largest * parts.square().sum(-1, keepdim=True).sqrt()
    return cast_to(upcast(weights).abs() * norms_BHN1.transpose(-1, -2), weights.dtype)
