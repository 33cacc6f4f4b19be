r"""Multi-head attention: :math:`\mathrm{Concat}(\mathrm{head}_1,\dots,\mathrm{head}_h)W^O + b^O`.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762, section 3.2.2, in the general form:
every head has its own :math:`W_i^Q, W_i^K` to d_k and :math:`W_i^V` to d_v, groups of query heads may share a key head
(Ainslie et al., "GQA", 2023, https://arxiv.org/abs/2305.13245), and there are one, two or three inputs.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from models import positions, reference
from models.attention import KERNEL, AttentionOutputs, attention
from models.block import Block, Input, Output
from models.heads import masked, shares, weights_by_norm
from models.learned import State, replaceable, replaced, replacements, weighted
from models.options import attention_outputs, dot_scores, head_mask, head_outputs, masks, past, present

SOURCE = "Vaswani et al., Attention Is All You Need, 2017, https://arxiv.org/abs/1706.03762"


@dataclass(frozen=True)
class MultiHeadConfig:
    """Sizes of the learned projections.

    Zeros mean defaults: d_model for kdim, vdim and d_out, d_model/num_heads for d_k and d_v, num_heads for
    num_kv_heads.

    Raises:
        ValueError: sizes are negative or contradict each other.
    """

    d_model: int
    num_heads: int
    kdim: int = 0
    vdim: int = 0
    num_kv_heads: int = 0
    d_k: int = 0
    d_v: int = 0
    d_out: int = 0
    bias: bool = True
    out_proj: bool = True  # False: the output is the concatenated heads
    inputs: Literal["query, key, value", "x", "x, memory"] = "query, key, value"

    def __post_init__(self) -> None:
        sizes = {name: size for name, size in asdict(self).items() if type(size) is int}
        if min(sizes.values()) < 0 or self.d_model < 1 or self.num_heads < 1:
            raise ValueError(f"sizes must be positive, got {sizes}")
        if self.d_model % self.num_heads and not (self.d_k and self.d_v):
            raise ValueError(f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}: set d_k and d_v")
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.inputs not in ("query, key, value", "x", "x, memory"):
            raise ValueError(f"inputs must be 'query, key, value', 'x' or 'x, memory', got {self.inputs!r}")
        if self.inputs == "x" and {self.kdim or self.d_model, self.vdim or self.d_model} != {self.d_model}:
            raise ValueError("kdim and vdim must be d_model where there is one input")
        if self.inputs == "x, memory" and self.kdim != self.vdim:
            raise ValueError("kdim and vdim must be equal where both are the width of the memory")

    @property
    def filled(self) -> "MultiHeadConfig":
        """The same configuration with its defaults in place of zeros."""
        head = self.d_model // self.num_heads
        sizes = {"kdim": self.d_model, "vdim": self.d_model, "num_kv_heads": self.num_heads, "d_k": head, "d_v": head}
        sizes["d_out"] = self.d_model if self.out_proj else self.num_heads * (self.d_v or head)
        filled: dict[str, Any] = {name: getattr(self, name) or size for name, size in sizes.items()}
        return replace(self, **filled)


class MultiHead(nn.Module):
    """query [batch, m, d_model], key [batch, n, kdim], value [batch, n, vdim] -> output [batch, m, d_out].

    In self-attention, ``x`` replaces all three; in cross-attention, ``x`` replaces query, and ``memory`` the others.
    ``head_mask``, [batch or 1, heads], multiplies the weights of each head after the softmax. ``options`` are those of
    ``models.attention.attention``, and tensors that replace learned ones (``models.learned``); ``past_key`` and
    ``past_value`` are [batch, num_kv_heads, past, d_k or d_v], after the projections.
    """

    def __init__(self, config: MultiHeadConfig) -> None:
        super().__init__()
        self.config = config = config.filled
        self.q_proj = nn.Linear(config.d_model, config.num_heads * config.d_k, config.bias)
        self.k_proj = nn.Linear(config.kdim, config.num_kv_heads * config.d_k, config.bias)
        self.v_proj = nn.Linear(config.vdim, config.num_kv_heads * config.d_v, config.bias)
        joined = config.num_heads * config.d_v
        self.out_proj = nn.Linear(joined, config.d_out, config.bias) if config.out_proj else nn.Identity()

    @replaceable
    def forward(
        self,
        query: Tensor | None = None,
        key: Tensor | None = None,
        value: Tensor | None = None,
        x: Tensor | None = None,
        memory: Tensor | None = None,
        head_mask: Tensor | None = None,
        **options: Tensor,
    ) -> AttentionOutputs:
        query = x if query is None else query
        key = (x if memory is None else memory) if key is None else key
        value = key if value is None else value
        assert query is not None and key is not None and value is not None  # noqa: PT018  # as the block declares
        q_BHMD = _split(self.q_proj(query), self.config.num_heads)
        k_BKND = _split(self.k_proj(key), self.config.num_kv_heads)
        v_BKNE = _split(self.v_proj(value), self.config.num_kv_heads)
        heads = masked(attention(q_BHMD, k_BKND, v_BKNE, **options), head_mask)
        joined = heads.output.transpose(1, 2).flatten(2)
        attended = heads._replace(head_query=q_BHMD, head_output=heads.output)
        if KERNEL.get() is not None or not isinstance(self.out_proj, nn.Linear) or heads.present_value is None:
            return attended._replace(output=self.out_proj(joined))
        matrix = self.out_proj.weight.t()  # once, so that every graph has the same tensor of it
        output = joined @ matrix if self.out_proj.bias is None else joined @ matrix + self.out_proj.bias
        by_norm = weights_by_norm(heads.weights, heads.present_value, matrix)
        return attended._replace(output=output, head_share=shares(heads.output, matrix), weights_by_norm=by_norm)


def _split(x: Tensor, heads: int) -> Tensor:
    """[B, length, heads * d] -> [B, heads, length, d]"""
    B, length, width = x.shape
    return x.reshape(B, length, heads, width // heads).transpose(1, 2)


def formula(config: MultiHeadConfig) -> str:
    """The block's formula in LaTeX, as ``config`` says: its inputs, biases, heads and output projection."""
    config = config.filled
    inputs = {"query, key, value": ("Q", "K", "V"), "x": ("X", "X", "X"), "x, memory": ("X", "M", "M")}
    query, key, value = inputs[config.inputs]
    many, shared = config.num_heads > 1, config.num_kv_heads < config.num_heads
    of_head = "_i" * many
    of_key_head = "_{g(i)}" if shared and config.num_kv_heads > 1 else "" if shared else of_head

    def projected(x: str, matrix: str, index: str) -> str:
        return f"({x}W^{matrix}{index}+b^{matrix}{index})" if config.bias else f"{x}W^{matrix}{index}"

    q, k, v = (
        projected(x, matrix, index)
        for x, matrix, index in ((query, "Q", of_head), (key, "K", of_key_head), (value, "V", of_key_head))
    )
    k = k if config.bias else f"({k})"
    head = rf"\mathrm{{softmax}}\left(\frac{{{q}{k}^\top}}{{\sqrt{{d_k}}}}\right){v}"
    joined = r"\mathrm{Concat}(\mathrm{head}_1,\dots,\mathrm{head}_h)" if many else r"\mathrm{head}"
    if not many and not config.out_proj:
        return head
    if config.out_proj:
        joined += "W^O" + " + b^O" * config.bias
    groups = rf",\quad g(i) = \lceil {config.num_kv_heads}i/h \rceil" if "g(i)" in of_key_head else ""
    return rf"{joined},\quad \mathrm{{head}}{of_head} = {head}{groups}"


def _described(config: MultiHeadConfig) -> str:
    heads, kv_heads = config.num_heads, config.num_kv_heads
    groups = f" that share {kv_heads} head{'s' * (kv_heads > 1)} of keys and values" if kv_heads < heads else ""
    biases = "with biases" if config.bias else "without biases"
    output = "" if config.out_proj else ", and no output projection"
    return f"Learned projections {biases} around {heads} head{'s' * (heads > 1)}{groups}{output}."


def block(
    config: MultiHeadConfig,
    name: str = "multi_head",
    state: State | None = None,
    title: str = "Multi-head attention",
    source: str = SOURCE,
    description: str = "",
) -> Block:
    """A multi-head block with the weights of ``state``, or with random weights from a seed."""
    config = config.filled
    heads, kv_heads, d_k, d_v = config.num_heads, config.num_kv_heads, config.d_k, config.d_v
    n = "m" if config.inputs == "x" else "n"
    # The output of a single head without a projection is the block's output itself.
    has_heads = heads > 1 or config.out_proj
    rare = {"head_mask": head_mask(("1|batch", f"1|{heads}"))} if has_heads else {}
    rare |= positions.inputs(heads, keys=n) | replacements(lambda: MultiHead(config))
    of_queries = {"head_query": Output(("batch", heads, "m", d_k), "Each head's queries, projected.")}
    of_heads = head_outputs(heads, d_v, config.d_out, f"past + {n}", config.out_proj) if has_heads else {}
    given = {
        "query, key, value": {
            "query": Input(("batch", "m", config.d_model), "Projected to the queries."),
            "key": Input(("batch", "n", config.kdim), "Projected to the keys."),
            "value": Input(
                ("batch", "n", config.vdim),
                "Projected to the values; needed only for outputs that depend on them.",
                only_for=("output", "present_value", *of_heads),
            ),
        },
        "x": {"x": Input(("batch", "m", config.d_model), "Projected to the queries, keys and values.")},
        "x, memory": {
            "x": Input(("batch", "m", config.d_model), "Projected to the queries."),
            "memory": Input(("batch", "n", config.kdim), "Projected to the keys and values."),
        },
    }[config.inputs]

    def refer(module: nn.Module, inputs: Mapping[str, np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
        state, others = replaced(module, inputs)
        outputs = reference.multi_head(state, heads, kv_heads, **others, dtype=dtype)
        return {name: array for name, array in outputs.items() if name in declared}

    outputs = attention_outputs(("batch", "m", config.d_out), heads, keys=f"past + {n}", projected=config.out_proj)
    declared = outputs | present(kv_heads, d_k, d_v, n, projected=True) | of_queries | of_heads
    return Block(
        name=name,
        title=title,
        formula=formula(config),
        source=source,
        description=description or _described(config),
        build=weighted(lambda: MultiHead(config), state),
        reference=refer,
        inputs={
            **given,
            **masks(heads, keys=n, past=True),
            **dot_scores(),
            **past(kv_heads, d_k, d_v, projected=True),
            **rare,
        },
        outputs=declared,
        rare=(*rare, *of_queries, *of_heads),
        depth=d_k + d_v,
        config=asdict(config),
    )


BLOCK = block(MultiHeadConfig(d_model=64, num_heads=8))
SELF = block(
    MultiHeadConfig(d_model=64, num_heads=4, d_k=8, d_v=20, inputs="x"),
    name="multi_head_self_attention",
    title="Multi-head self-attention, per-head form",
    description="One input; 4 heads, projected by W_i^Q and W_i^K to d_k = 8, by W_i^V to d_v = 20, and by W^O from "
    "4 * 20 back to 64; every projection has a bias.",
)
GROUPED = block(
    MultiHeadConfig(d_model=64, num_heads=8, num_kv_heads=2, bias=False, inputs="x"),
    name="grouped_query",
    title="Grouped-query attention",
    source="Ainslie et al., GQA, 2023, https://arxiv.org/abs/2305.13245",
    description="8 query heads share 2 heads of keys and values, four to each; no biases.",
)
MULTI_QUERY = block(
    MultiHeadConfig(d_model=64, num_heads=8, num_kv_heads=1, bias=False, inputs="x"),
    name="multi_query",
    title="Multi-query attention",
    source="Shazeer, Fast Transformer Decoding, 2019, https://arxiv.org/abs/1911.02150",
    description="8 query heads share one head of keys and values; no biases.",
)
