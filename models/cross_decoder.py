r"""A stack of decoder layers with self-attention and attention to a memory, as torch's ``nn.TransformerDecoder``.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762, section 3.1: self-attention,
cross-attention and a feed-forward network, each with a residual and a norm, before ("pre") or after it ("post").

Shapes: B batch, H heads, M positions, N positions of the memory, L layers, C d_model.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from models import reference_stacks
from models.attention import AttentionOutputs
from models.block import Block, Input, Output
from models.learned import State, arrays, weighted
from models.multi_head import MultiHead, MultiHeadConfig
from models.options import head_mask, masks
from models.transformer import Layer, TransformerConfig, layer_norm, stacked

HEAD_MASKS = {"head_mask": "weights", "memory_head_mask": "cross_weights"}


class CrossLayer(Layer):
    """x [B, M, C] and memory [B, N, C] -> output [B, M, C], weights [B, H, M, M] and cross_weights [B, H, M, N].

    ``options`` are the memory, its ``memory_mask`` and ``memory_head_mask``, and for attention to x those of
    ``models.multi_head``.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, is_causal=False)
        C = config.d_model
        self.cross_attention = MultiHead(MultiHeadConfig(C, config.num_heads, bias=config.bias, inputs="x, memory"))
        self.norm3 = layer_norm(config, is_causal=False)

    def forward(self, x: Tensor, **options: Tensor) -> AttentionOutputs:
        others = {"memory": options.pop("memory")}
        for own, other in (("memory_mask", "attn_mask"), ("memory_head_mask", "head_mask")):
            if own in options:
                others[other] = options.pop(own)
        crossed: AttentionOutputs
        if self.pre:
            attended: AttentionOutputs = self.attention(x=self.norm1(x), **options)
            x = x + attended.output
            crossed = self.cross_attention(x=self.norm2(x), **others)
            x = x + crossed.output
            x = x + self._feed_forward(self.norm3(x))
        else:
            attended = self.attention(x=x, **options)
            x = self.norm1(x + attended.output)
            crossed = self.cross_attention(x=x, **others)
            x = self.norm2(x + crossed.output)
            x = self.norm3(x + self._feed_forward(x))
        return attended._replace(output=x, cross_weights=crossed.weights)


class CrossDecoder(nn.Module):
    """x [B, M, C] and memory [B, N, C] -> output [B, M, C], weights [L, B, H, M, M], cross_weights [L, B, H, M, N].

    ``head_mask`` and ``memory_head_mask``, [L, H], multiply each head's weights and cross_weights after the softmax.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CrossLayer(config) for _ in range(config.num_layers))
        self.final_norm = layer_norm(config, is_causal=False) if config.final_norm else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor, **options: Tensor) -> AttentionOutputs:
        layer_outputs: list[AttentionOutputs] = []
        of_heads = {name: options.pop(name) for name in HEAD_MASKS if name in options}
        for index, layer in enumerate(self.layers):
            of_layer = {name: mask[index, None] for name, mask in of_heads.items()}
            layer_outputs.append(layer(x, memory=memory, **options, **of_layer))
            x = layer_outputs[-1].output
        weights, scores, cross_weights = (
            stacked(layer_outputs, name) for name in ("weights", "scores", "cross_weights")
        )
        return AttentionOutputs(self.final_norm(x), weights, scores, cross_weights=cross_weights)


def _formula(config: TransformerConfig) -> str:
    b_1, b_2 = ("+b_1", "+b_2") if config.bias else ("", "")
    if config.norm == "post":
        return (
            r"x \leftarrow \mathrm{norm}(x + \mathrm{MultiHead}(x)),\ "
            r"x \leftarrow \mathrm{norm}(x + \mathrm{MultiHead}(x, M)),\ "
            rf"x \leftarrow \mathrm{{norm}}(x + W_2\,\sigma(W_1x{b_1}){b_2})"
        )
    last = r",\quad \mathrm{output} = \mathrm{norm}(x)" if config.final_norm else ""
    return (
        r"x \leftarrow x + \mathrm{MultiHead}(\mathrm{norm}(x)),\ "
        r"x \leftarrow x + \mathrm{MultiHead}(\mathrm{norm}(x), M),\ "
        rf"x \leftarrow x + W_2\,\sigma(W_1\mathrm{{norm}}(x){b_1}){b_2}{last}"
    )


def cross_decoder(config: TransformerConfig, name: str = "cross_decoder", state: State | None = None) -> Block:
    """x attends to itself, causally if a request says so, and to a memory: the output of an encoder.

    Raises:
        ValueError: the config has a vocabulary; x is a tensor.
    """
    if config.vocab_size:
        raise ValueError(f"{name} takes x [batch, m, d_model]: it cannot have a vocab_size, got {config.vocab_size}")
    L, H, C = config.num_layers, config.num_heads, config.d_model
    masking = masks(H, queries="m", keys="m")
    memory_mask = masks(H, queries="m", keys="n")["attn_mask"]
    text = "Boolean: true = may attend. Or float: added to the scores, -inf forbids. Broadcasts to a layer's"

    def refer(module: nn.Module, inputs: Mapping[str, np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
        return reference_stacks.cross_decoder(arrays(module), asdict(config), **inputs, dtype=dtype)

    layered = f"{L} layers" if L > 1 else "one layer"
    return Block(
        name=name,
        title="Transformer decoder with a memory",
        formula=_formula(config),
        source="Vaswani et al., Attention Is All You Need, 2017, https://arxiv.org/abs/1706.03762",
        description=f"Like torch's decoder: {layered} of {H} heads, {config.norm}-norm, {config.activation}; "
        "attends to x, then to the memory; returns both sets of weights of every layer.",
        build=weighted(lambda: CrossDecoder(config), state),
        reference=refer,
        inputs={
            "x": Input(("batch", "m", C), "Embeddings or hidden states."),
            "memory": Input(("batch", "n", C), "What every layer attends to: the output of an encoder."),
            "attn_mask": replace(masking["attn_mask"], description=f"{text} weights."),
            "memory_mask": replace(memory_mask, description=f"{text} cross_weights."),
            "is_causal": Input((), "Position i attends to positions j <= i of x.", dtype="bool", default=False),
            **{name: head_mask((L, H), weights) for name, weights in HEAD_MASKS.items()},
        },
        rare=tuple(HEAD_MASKS),
        outputs={
            "output": Output(("batch", "m", C), "The hidden states after the last layer."),
            "weights": Output((L, "batch", H, "m", "m"), "Each layer's weights over x, after the softmax."),
            "cross_weights": Output((L, "batch", H, "m", "n"), "Each layer's weights over the memory."),
        },
        depth=2 * L * C // H,
        config=asdict(config),
        left_out={},
    )


BLOCK = cross_decoder(TransformerConfig(d_model=32, num_heads=4, num_layers=2, d_ff=64))
