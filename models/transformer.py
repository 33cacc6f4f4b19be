r"""A stack of layers, each :math:`x + \mathrm{MultiHead}(x)`, then :math:`x + W_2\,\sigma(W_1 x)`, with layer norms.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762, section 3 (norm "post", after
each sum). Norm "pre", before attention and feed-forward: Xiong et al., 2020, https://arxiv.org/abs/2002.04745.
Embeddings as in BERT: Devlin et al., 2018, https://arxiv.org/abs/1810.04805.

Shapes: B batch, H heads, N positions, P past, L layers, C d_model, D d_model / heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.attention import AttentionOutputs
from models.multi_head import MultiHead, MultiHeadConfig
from models.precision import cast_to, upcast

ACTIVATIONS = {"relu": nn.ReLU(), "gelu": nn.GELU()}


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and conventions. Without a vocabulary the input is x [batch, n, d_model] instead of token ids.

    Raises:
        ValueError: a size or a convention is invalid, or they contradict each other.
    """

    d_model: int
    num_heads: int
    num_layers: int
    d_ff: int
    vocab_size: int = 0
    max_positions: int = 0  # 0: no position embeddings
    type_vocab_size: int = 0  # 0: no token type embeddings
    norm: Literal["post", "pre"] = "post"
    activation: Literal["relu", "gelu"] = "relu"
    layer_norm_eps: float = 1e-5
    embedding_norm: bool = False
    final_norm: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("d_model", "num_heads", "num_layers", "d_ff")}
        if min(sizes.values()) < 1:
            raise ValueError(f"every size must be at least 1, got {sizes}")
        if self.d_model % self.num_heads:
            raise ValueError(f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}")
        if self.norm not in ("post", "pre"):
            raise ValueError(f"norm must be 'post' or 'pre', got {self.norm!r}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if not 0 <= self.layer_norm_eps < 1:
            raise ValueError(f"layer_norm_eps must be from 0 to 1, got {self.layer_norm_eps}")
        if not self.vocab_size and (self.max_positions or self.type_vocab_size or self.embedding_norm):
            raise ValueError("max_positions, type_vocab_size and embedding_norm need a vocab_size")


class CheckedLayerNorm(nn.LayerNorm):
    """torch's norm, with NaN for a row whose squares overflow: torch returns the bias for it, which looks right."""

    def forward(self, x: Tensor) -> Tensor:
        squares = upcast(x).square().sum(-1, keepdim=True)
        return super().forward(x + cast_to(0 * squares, x.dtype))  # 0 times infinity is NaN


def layer_norm(config: "TransformerConfig", is_causal: bool) -> nn.LayerNorm:
    """A norm that checks for overflow, unless all of its inputs come from the file's embeddings and not from a request.

    A request has numbers of any size in x, and in a causal stack in the past.
    """
    kind = nn.LayerNorm if config.vocab_size and not is_causal else CheckedLayerNorm
    return kind(config.d_model, config.layer_norm_eps)


class Layer(nn.Module):
    """x [B, N, C] -> output [B, N, C], with this layer's weights, present keys and values, and outputs of heads.

    ``options`` are those of ``models.attention.attention``.
    """

    def __init__(self, config: TransformerConfig, is_causal: bool) -> None:
        super().__init__()
        C = config.d_model
        self.pre = config.norm == "pre"
        self.attention = MultiHead(MultiHeadConfig(C, config.num_heads, bias=config.bias, inputs="x"))
        self.norm1, self.norm2 = layer_norm(config, is_causal), layer_norm(config, is_causal)
        self.linear1 = nn.Linear(C, config.d_ff, config.bias)
        self.linear2 = nn.Linear(config.d_ff, C, config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor, **options: Tensor) -> AttentionOutputs:
        if self.pre:
            attended: AttentionOutputs = self.attention(x=self.norm1(x), **options)
            x = x + attended.output
            x = x + self._feed_forward(self.norm2(x))
        else:
            attended = self.attention(x=x, **options)
            x = self.norm1(x + attended.output)
            x = self.norm2(x + self._feed_forward(x))
        return attended._replace(output=x)

    def _feed_forward(self, x: Tensor) -> Tensor:
        fed: Tensor = self.linear2(self.activation(self.linear1(x)))
        return fed


def stacked(layers: Sequence[AttentionOutputs], name: str) -> Any:
    """One output of every layer as one tensor; None where layers do not have it."""
    tensors = [getattr(attended, name) for attended in layers]
    return None if tensors[0] is None else torch.stack(tensors)


class Transformer(nn.Module):
    """Token ids [B, N], or x [B, N, C] -> output [B, N, C], weights [L, B, H, N, P + N] of all or the given ``layers``.

    Scores, weights by norm and queries are of these layers, too. Present and past keys and values are
    [L, B, H, P + N, D] and [L, B, H, P, D]; ``head_mask``, [L, H], multiplies each head's weights after the softmax.
    """

    def __init__(self, config: TransformerConfig, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        tables = {"word": config.vocab_size, "position": config.max_positions, "token_type": config.type_vocab_size}
        self.embeddings = nn.ModuleDict(
            {name: nn.Embedding(rows, config.d_model) for name, rows in tables.items() if rows}
        )
        self.embedding_norm = layer_norm(config, is_causal) if config.embedding_norm else nn.Identity()
        self.layers = nn.ModuleList(Layer(config, is_causal) for _ in range(config.num_layers))
        self.final_norm = layer_norm(config, is_causal) if config.final_norm else nn.Identity()

    def forward(
        self,
        input_ids: Tensor | None = None,
        x: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        layers: Tensor | None = None,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
        head_mask: Tensor | None = None,
        **options: Tensor,
    ) -> AttentionOutputs:
        past = 0 if past_key is None else past_key.shape[3]
        if x is None:
            assert input_ids is not None  # as the block declares
            x = self._embed(input_ids, token_type_ids, past)
        layer_outputs: list[AttentionOutputs] = []
        hidden_states = [x]
        for index, layer in enumerate(self.layers):
            of_layer = {}
            if past_key is not None and past_value is not None:
                of_layer = {"past_key": past_key[index], "past_value": past_value[index]}
            if head_mask is not None:
                of_layer["head_mask"] = head_mask[index, None]
            layer_outputs.append(layer(x, **options, **of_layer, is_causal=self.is_causal))
            x = layer_outputs[-1].output
            hidden_states.append(x)
        hidden_states[-1] = self.final_norm(x)
        present = {name: stacked(layer_outputs, name) for name in ("present_key", "present_value")}
        chosen = {name: stacked(layer_outputs, name) for name in ("weights", "scores", "weights_by_norm")}
        chosen |= {"query": stacked(layer_outputs, "head_query"), "key": present["present_key"]}
        if layers is not None:
            chosen = {name: x.index_select(0, layers) for name, x in chosen.items() if x is not None}
        return AttentionOutputs(hidden_states[-1], hidden_states=torch.stack(hidden_states), **chosen, **present)

    def _embed(self, input_ids: Tensor, token_type_ids: Tensor | None, past: int) -> Tensor:
        x: Tensor = self.embeddings["word"](input_ids)
        if "position" in self.embeddings:
            x = x + self.embeddings["position"](torch.arange(input_ids.shape[1]) + past)
        if "token_type" in self.embeddings:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            x = x + self.embeddings["token_type"](types)
        x = self.embedding_norm(x)
        return x
