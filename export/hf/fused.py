"""Attention without weights, for the graphs of requests that do not ask for them.

transformers chooses the function that computes attention, and the one that makes its mask, by a name. Two names are
registered here. SDPA is torch's scaled_dot_product_attention with the masks of eager attention, so that a query that
may attend to nothing gives the same numbers. KERNELS is a node for one of ``export.kernels``: for a mask that allows
everything, for a causal one, or for any other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, eager_mask

from export.hf.parts import reads_pictures
from export.hf.pretrained import ModelRefused
from export.kernels.fast_path import FastPath
from export.kernels.functions import DOMAIN, OPSETS
from export.kernels.masked import MASKED_ROWS
from models.block import Block

SDPA, KERNELS = "heed_sdpa", "heed_kernels"
# Pairs of query and key, over all layers, from which a kernel is used. The kernel with a mask computes the queries in
# blocks: at 122 tokens it takes up to a fifth longer than the formula, at 512 as long, and its memory is bounded.
FUSED_PAIRS = 1 << 18
MASKED_PAIRS = 1 << 27
MAX_FROM_PAIRS = 1 << 24  # 64 MB of weights, which the canonical graph would compute needlessly
OUTPUT = "output"  # the graph of every answer, without weights
EMBEDDINGS = {"texts": "text_embedding", "images": "image_embedding"}  # graphs of one tower, and their output
UNSUPPORTED = ("softcap", "s_aux", "position_bias")  # arguments of an attention function that no kernel has


@dataclass(frozen=True)
class TransformersPath(FastPath):
    """A fast path of a model of transformers, whose attention is computed by the function of that name."""

    kernel: str | None = None
    from_pairs: int = 0
    takes: tuple[str, ...] = ()
    model: PreTrainedModel | None = None
    attention: str = "eager"
    decoder: nn.Module | None = None  # the part whose attention kernels compute, as no kernel takes zero pictures
    used: set[str] = field(default_factory=set)  # kernels that the graph calls

    def spec(self) -> dict[str, Any]:
        """The path's metadata; after it was traced, with the rows of the kernel that it calls."""
        return super().spec() | ({"rows": MASKED_ROWS} if "Masked" in self.used else {})

    @contextmanager
    def traced(self) -> Iterator[None]:
        """A context in which the model computes attention by that function.

        Raises:
            ModelRefused: the model cannot, or does not call transformers' attention interface.
        """
        assert self.model is not None
        AttentionInterface.register(SDPA, sdpa_attention_forward)
        AttentionMaskInterface.register(SDPA, eager_mask)
        AttentionInterface.register(KERNELS, self._attend)
        AttentionMaskInterface.register(KERNELS, _mask)
        before = self.model.config._attn_implementation
        try:
            self.model.set_attn_implementation(self.attention)
            yield
            if self.attention == KERNELS and not self.used:
                raise ModelRefused("its attention is not one of transformers' attention functions")
        except (ValueError, KeyError, NotImplementedError) as error:
            raise ModelRefused(str(error)) from None
        finally:
            self.model.set_attn_implementation(before)

    def _attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """One attention of transformers as a node: [batch, heads, queries, width] to [batch, queries, heads, width]."""
        if self.decoder is not None and all(module is not part for part in self.decoder.modules()):
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal, **others
            )
        if unsupported := [name for name in UNSUPPORTED if others.get(name) is not None]:
            raise ModelRefused(f"no kernel supports {', '.join(unsupported)}")
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        kernel = "Masked" if attention_mask is not None else "Causal" if causal else "Flash"
        self.used.add(kernel)
        scaled = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        arguments = [scaled, key, value] + ([] if attention_mask is None else [attention_mask])
        shape = [*query.shape[:3], value.shape[3]]
        output = torch.onnx.ops.symbolic(
            f"{DOMAIN}::{kernel}", arguments, {}, dtype=query.dtype, shape=shape, version=OPSETS[DOMAIN]
        )
        return output.transpose(1, 2).contiguous(), None


def _mask(*, mask_function: Any, attention_mask: Tensor | None = None, **others: Any) -> Tensor | None:
    """The mask of eager attention; None for causal or unrestricted attention without padding."""
    if attention_mask is None and mask_function in (causal_mask_function, bidirectional_mask_function):
        return None
    return eager_mask(mask_function=mask_function, attention_mask=attention_mask, **others)


def common_path(block: Block, model: PreTrainedModel) -> TransformersPath:
    """The graph with eager attention, without the rare inputs and outputs."""
    takes = tuple(name for name in block.inputs if name not in block.rare)
    outputs = tuple(name for name in block.outputs if name not in block.rare)
    return TransformersPath(takes=takes, outputs=outputs, rows=None, provider=None, model=model)


def tower_paths(block: Block) -> dict[str, TransformersPath]:
    """The parts of OUTPUT that embed only the texts and only the images; empty for a model without two towers."""
    paths = {}
    for name, output in EMBEDDINGS.items():
        if output in block.outputs:
            rows = block.outputs[output].shape[0]
            common = [name for name in block.inputs if name not in block.rare]
            takes = tuple(name for name in common if str(rows) in str(block.inputs[name].shape[0]))
            paths[name] = TransformersPath(takes=takes, outputs=(output,), rows=None, provider=None)
    return paths


def fast_paths(model: PreTrainedModel, inputs: list[str], learned: int) -> dict[str, list[TransformersPath]]:
    """The fast paths by file name: for each, the ways to compute it in order of preference.

    ``learned`` is a lower limit for the pairs of query and key from which a path is used: if graphs share their
    weights, only the canonical one is prepacked, which makes it faster for short inputs.
    """
    from_pairs = min(learned, MAX_FROM_PAIRS)
    decoder = model.get_decoder() if reads_pictures(model) else None  # type: ignore[no-untyped-call]

    def path(attention: str, pairs: int, takes: list[str], rows: int | None, provider: str | None) -> TransformersPath:
        return TransformersPath(
            None, max(pairs, from_pairs), tuple(takes), rows=rows, provider=provider, model=model, attention=attention,
            decoder=decoder,
        )  # fmt: skip

    unmasked = [name for name in inputs if not name.endswith("mask")]
    paths = {
        OUTPUT: [path(SDPA, 0, inputs, None, None), path("eager", 0, inputs, None, None)],
        "fused": [path(KERNELS, FUSED_PAIRS, unmasked, 0, "cpu")],
    }
    if unmasked != inputs:
        paths["masked"] = [path(KERNELS, MASKED_PAIRS, inputs, MASKED_ROWS, "cpu")]
    return paths
