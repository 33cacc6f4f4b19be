r"""Attention with weights and biases: :math:`\mathrm{softmax}((QW_q+b_q)(KW_k+b_k)^\top/\sqrt{d_k})\,(VW_v+b_v)`.

One head without an output projection: with three inputs of three widths, with X alone (self-attention), or with X and a
memory (cross-attention). Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762,
sections 3.2.1 to 3.2.3.
"""

from models import multi_head
from models.multi_head import MultiHeadConfig

PROJECTED = multi_head.block(
    MultiHeadConfig(d_model=24, kdim=20, vdim=28, num_heads=1, d_k=16, d_v=12, out_proj=False),
    name="projected",
    title="Attention with weights and biases",
    description="Query, key and value of widths 24, 20 and 28, projected to d_k = 16 and d_v = 12.",
)
SELF_ATTENTION = multi_head.block(
    MultiHeadConfig(d_model=32, num_heads=1, d_k=16, d_v=32, out_proj=False, inputs="x"),
    name="self_attention",
    title="Self-attention",
    description="X attends to itself; is_causal gives the masked attention of decoders; with a past it computes a "
    "decoder's next step.",
)
CROSS_ATTENTION = multi_head.block(
    MultiHeadConfig(d_model=32, kdim=24, vdim=24, num_heads=1, d_k=16, d_v=32, out_proj=False, inputs="x, memory"),
    name="cross_attention",
    title="Cross-attention",
    description="X attends to a memory M, as a decoder does to its encoder.",
)
