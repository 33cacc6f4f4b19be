r"""Scaled dot-product attention: :math:`\mathrm{softmax}(QK^\top/\sqrt{d_k})\,V`.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762, equation 1.
"""

from torch import Tensor, nn

from models import positions, reference
from models.attention import Attended, attention, key_offset
from models.block import Block, Input
from models.options import attention_outputs, dot_scores, masks, past, present
from models.positions import rotated

DOT_PRODUCT_INPUTS = {
    "query": Input(("batch", "heads", "m", "d_k"), "What is asked: m vectors a head."),
    "key": Input(("batch", "kv_heads", "n", "d_k"), "What the queries meet; heads is a multiple of kv_heads."),
    "value": Input(
        ("batch", "kv_heads", "n", "d_v"),
        "What is averaged; only output and present_value need it.",
        only_for=("output", "present_value"),
    ),
    **masks("heads", past=True),
    **dot_scores(),
    **past("kv_heads", "d_k", "d_v"),
}
INPUTS = DOT_PRODUCT_INPUTS | positions.INPUTS
OUTPUTS = attention_outputs(("batch", "heads", "m", "d_v"), "heads", keys="past + n")
OUTPUTS |= present("kv_heads", "d_k", "d_v")


class ScaledDotProduct(nn.Module):
    """query [batch, heads, m, d_k], key [batch, kv_heads, n, d_k], value [batch, kv_heads, n, d_v]; no weights."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        past_key: Tensor | None = None,
        nonpad_kv_seqlen: Tensor | None = None,
        rope_theta: Tensor | None = None,
        rope_interleaved: Tensor | bool = False,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
        **options: Tensor,
    ) -> Attended:
        if rope_theta is not None:
            past = 0 if past_key is None else past_key.shape[2]
            offset = key_offset(query.shape[2], past, nonpad_kv_seqlen)
            offset = offset[:, :, 0, 0] if isinstance(offset, Tensor) else offset
            query = rotated(query, query_positions, offset, rope_theta, rope_interleaved)
            key = rotated(key, key_positions, past, rope_theta, rope_interleaved)
        return attention(query, key, value, past_key=past_key, nonpad_kv_seqlen=nonpad_kv_seqlen, **options)


BLOCK = Block(
    name="scaled_dot_product",
    title="Scaled dot-product attention",
    formula=r"\mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right)V",
    source="Vaswani et al., Attention Is All You Need, 2017, https://arxiv.org/abs/1706.03762",
    description="The attention of transformers, with masks, windows, grouped queries, key lengths, positions and "
    "a past.",
    build=ScaledDotProduct,
    reference=lambda _module, inputs, dtype: reference.attention(**inputs, dtype=dtype),
    inputs=INPUTS,
    outputs=OUTPUTS,
    multiples={"heads": "kv_heads"},
    rare=tuple(positions.INPUTS),
)
