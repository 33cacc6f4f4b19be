r"""Dot-product attention, unscaled unless a request says so: :math:`\mathrm{softmax}(s\,QK^\top)\,V`.

Luong et al., "Effective Approaches to Attention-based Neural Machine Translation", 2015,
https://arxiv.org/abs/1508.04025, the score "dot".
"""

from torch import Tensor, nn

from models import reference, scaled_dot_product
from models.attention import AttentionOutputs, attention
from models.block import Block
from models.options import scale
from models.scaled_dot_product import DOT_PRODUCT_INPUTS


class DotProduct(nn.Module):
    """query [batch, heads, m, d_k], key [batch, kv_heads, n, d_k], value [batch, kv_heads, n, d_v]; no weights."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scale: Tensor | float = 1.0, **options: Tensor
    ) -> AttentionOutputs:
        return attention(query, key, value, scale=scale, **options)


BLOCK = Block(
    name="dot_product",
    title="Dot-product attention",
    formula=r"\mathrm{softmax}(s\,QK^\top)V",
    source="Luong et al., Effective Approaches to Attention-based NMT, 2015, https://arxiv.org/abs/1508.04025",
    description="Scores are inner products times scale (s), 1 by default, so the softmax sharpens as d_k grows.",
    build=DotProduct,
    reference=lambda _module, inputs, dtype: reference.attention(**{"scale": 1.0, **inputs}, dtype=dtype),
    inputs=DOT_PRODUCT_INPUTS | {"scale": scale()},
    outputs=scaled_dot_product.OUTPUTS,
    multiples={"heads": "kv_heads"},
)
