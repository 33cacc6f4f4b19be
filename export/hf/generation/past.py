"""The keys and values of earlier tokens as inputs of a graph, and attention that reads them in place.

The past of a layer is [1 + n, batch, heads, width]: the axis that grows is first, so that the used rows of a larger
buffer are contiguous. transformers' eager attention joins past and new keys, which copies the past in each step; with
IN_PLACE the query is multiplied with each separately, and only the scores are joined.

The first row is zeros and is not attended to: ONNX Runtime 1.31 ends the process when it multiplies with a transposed
tensor without rows (a division by zero in FusedMatMul).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import eager_mask

from export.hf.pretrained import ModelRefused

IN_PLACE = "heed_in_place"
UNSUPPORTED = ("position_bias",)  # arguments of attention functions that IN_PLACE lacks

_CACHE: ContextVar["PastCache"] = ContextVar("_CACHE")


class PastLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The past of one layer; ``new`` are the keys and values of the tokens after it, [batch, heads, m, width]."""

    def __init__(self, key: Tensor, value: Tensor, in_place: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.past = key, value
        self.new = (key, value)
        self.is_initialized = True
        self._in_place = in_place

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The new keys and values; joined to the past unless attention reads it in place."""
        self.new = key_states, value_states
        if self._in_place:
            return self.new
        key, value = (past[1:].permute(1, 2, 0, 3) for past in self.past)
        return torch.cat([key, key_states], dim=2), torch.cat([value, value_states], dim=2)

    def get_seq_length(self) -> int:
        return self.past[0].shape[0] - 1


class PastCache(DynamicCache):
    """The past of all layers: key, value of the first, key, value of the second, ..."""

    def __init__(self, past: Sequence[Tensor], in_place: bool) -> None:
        super().__init__()
        pairs = zip(past[::2], past[1::2], strict=True)
        self.pasts = [PastLayer(key, value, in_place) for key, value in pairs]
        self.layers = [*self.pasts]
        self.read: set[int] = set()  # layers whose past was read in place

    def new(self) -> list[Tensor]:
        """The new keys and values in the order of the past, [m, batch, heads, width]."""
        return [tensor.permute(2, 0, 1, 3) for layer in self.pasts for tensor in layer.new]

    @contextmanager
    def attended(self) -> Iterator[None]:
        """A context in which the attention IN_PLACE reads this past.

        Raises:
            ModelRefused: at its end, if the model did not pass the keys of every layer to that attention.
        """
        token = _CACHE.set(self)
        try:
            yield
        finally:
            _CACHE.reset(token)
        if len(self.read) < len(self.pasts):
            raise ModelRefused("its attention is not one of transformers' attention functions")


def fixed_cache(tensors: Sequence[Tensor]) -> DynamicCache:
    """A cache with all keys and values, such as those of the encoder, from [n, batch, heads, width]."""
    cache = DynamicCache()
    for index in range(0, len(tensors), 2):
        key, value = (tensor.permute(1, 2, 0, 3) for tensor in tensors[index : index + 2])
        cache.update(key, value, index // 2)
    return cache


def tensors_of(cache: DynamicCache) -> list[Tensor]:
    """The keys and values of all layers in turn, [batch, heads, n, width].

    Raises:
        AttributeError: a layer keeps something else.
    """
    return [tensor for layer in cache.layers for tensor in (getattr(layer, "keys"), getattr(layer, "values"))]  # noqa: B009


def attend(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Attention over a past and new keys: output [batch, m, heads, width] and weights [batch, heads, m, n + m].

    ``softcap`` and ``s_aux``, a score for each head that no key has, are those of transformers' eager functions.

    Raises:
        ModelRefused: the model has an option that is not supported.
    """
    if unsupported := [name for name in UNSUPPORTED if others.get(name) is not None]:
        raise ModelRefused(f"attention in place does not support {', '.join(unsupported)}")
    batch, heads, queries, width = query.shape
    scale = width**-0.5 if scaling is None else scaling
    grouped = (query * scale).reshape(batch, key.shape[1], heads // key.shape[1] * queries, width)
    past = _past_of(key)
    scores = _scores(grouped, key, heads)
    if past:
        scores = torch.cat([_scores(grouped, past[0], heads)[..., 1:], scores], dim=-1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if attention_mask is not None:
        scores = scores + attention_mask
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.reshape(1, -1, 1, 1).expand(batch, -1, queries, 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    if s_aux is not None:
        weights = weights[..., :-1]
    new = weights.shape[3] - key.shape[2] if past else 0
    output = _products(weights[..., new:], value)
    if past:
        output = output + _products(nn.functional.pad(weights[..., :new], (1, 0)), past[1])
    return output.transpose(1, 2).contiguous(), weights


def _past_of(key: Tensor) -> tuple[Tensor, Tensor] | None:
    """The past of the layer with these new keys, [batch, heads, 1 + n, width]; None for a cross-attention."""
    cache = _CACHE.get()
    for index, layer in enumerate(cache.pasts):
        if layer.new[0] is key:
            cache.read.add(index)
            return layer.past[0].permute(1, 2, 0, 3), layer.past[1].permute(1, 2, 0, 3)
    return None


def _scores(grouped: Tensor, key: Tensor, heads: int) -> Tensor:
    """[batch, heads, m, n] of queries [batch, key heads, group x m, width]."""
    batch, key_heads, rows, _ = grouped.shape
    return (grouped @ key.transpose(2, 3)).reshape(batch, heads, rows * key_heads // heads, key.shape[2])


def _products(weights: Tensor, value: Tensor) -> Tensor:
    """[batch, heads, m, width] of weights [batch, heads, m, n]."""
    batch, heads, queries, keys = weights.shape
    key_heads = value.shape[1]
    grouped = weights.reshape(batch, key_heads, heads // key_heads * queries, keys)
    return (grouped @ value).reshape(batch, heads, queries, value.shape[3])


AttentionInterface.register(IN_PLACE, attend)
AttentionMaskInterface.register(IN_PLACE, eager_mask)
