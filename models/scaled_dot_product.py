r"""Scaled dot-product attention: :math:`\mathrm{softmax}(QK^\top/\sqrt{d_k})\,V`.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762, equation 1.
"""

from torch import Tensor, nn

from models import positions, reference
from models.attention import AttentionOutputs, attention
from models.block import Block, Input
from models.options import attention_outputs, dot_scores, masks, past, present

DOT_PRODUCT_INPUTS = {
    "query": Input(("batch", "heads", "m", "d_k"), "The queries, m vectors per head."),
    "key": Input(
        ("batch", "kv_heads", "n", "d_k"),
        "The keys that the queries are compared with; heads is a multiple of kv_heads.",
    ),
    "value": Input(
        ("batch", "kv_heads", "n", "d_v"),
        "The values that the weights average; needed only for output and present_value.",
        only_for=("output", "present_value"),
    ),
    **masks("heads", past=True),
    **dot_scores(),
    **past("kv_heads", "d_k", "d_v"),
}
POSITIONS = positions.inputs("heads")
OUTPUTS = attention_outputs(("batch", "heads", "m", "d_v"), "heads", keys="past + n")
OUTPUTS |= present("kv_heads", "d_k", "d_v")


class ScaledDotProduct(nn.Module):
    """query [batch, heads, m, d_k], key [batch, kv_heads, n, d_k], value [batch, kv_heads, n, d_v]; no weights."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Tensor) -> AttentionOutputs:
        return attention(query, key, value, **options)


BLOCK = Block(
    name="scaled_dot_product",
    title="Scaled dot-product attention",
    formula=r"\mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right)V",
    source="Vaswani et al., Attention Is All You Need, 2017, https://arxiv.org/abs/1706.03762",
    description="The attention of transformers, with masks, windows, grouped queries, key lengths, positions and "
    "a past.",
    build=ScaledDotProduct,
    reference=lambda _module, inputs, dtype: reference.attention(**inputs, dtype=dtype),
    inputs=DOT_PRODUCT_INPUTS | POSITIONS,
    outputs=OUTPUTS,
    multiples={"heads": "kv_heads"},
    rare=tuple(POSITIONS),
)
