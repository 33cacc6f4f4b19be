"""The fast paths of a block: ``output`` without ``weights``, mostly by a kernel that never holds the scores whole.

A fast path takes some of the block's options; of those it does not take, each parameter stands at its default, or at
the value the path fixes. It is found by its metadata, which says the same to the service (``card``).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
import torch
from torch import Tensor

from export.blocks_kernel import ROWS
from export.kernels import DOMAIN, OPSETS, SCALES, functions, opsets_of
from export.masked_kernel import MASKED_ROWS
from models.attention import KERNEL, nan_if_overflowing, scaled
from models.block import Block

DEFAULTS: dict[str, Tensor] = {
    "attn_mask": torch.zeros(1, 1, 1, 1),
    "is_causal": torch.tensor(False),
    "left_window_size": torch.tensor(-1),
    "right_window_size": torch.tensor(-1),
    "softcap": torch.tensor(0.0),
    "nonpad_kv_seqlen": torch.tensor([-1]),
}


@dataclass(frozen=True)
class FastPath:
    """A kernel, the options its graph takes, what it fixes, and how many queries' scores it holds at once.

    ``from_pairs``: pairs of query and key, over layers, batch and heads, from which it is the quicker one, as measured
    (benchmarks/fast_paths.md).
    """

    kernel: str | None  # None: the formula itself, less what only the weights need
    from_pairs: int
    takes: tuple[str, ...]
    arguments: tuple[str, ...] = ()  # the options the kernel itself is called with
    fixes: Mapping[str, bool] = field(default_factory=dict)
    rows: int | None = 0  # few enough to count as none; None = all
    answers: tuple[str, ...] = ("output",)
    provider: str | None = "cpu"  # None = any

    def graph(self, block: Block) -> tuple[list[str], list[str]]:
        """The inputs and outputs of the graph of ``block``."""
        taken = [name for name, of in block.inputs.items() if of.required or name in self.takes]
        return taken, [name for name in block.outputs if name in self.answers]

    def card(self) -> dict[str, Any]:
        """What its metadata says beside the names: where it runs, what it fixes, from what size it is worth it."""
        said = {"provider": self.provider, "fixes": dict(self.fixes), "from_pairs": self.from_pairs, "rows": self.rows}
        return {name: value for name, value in said.items() if value is not None}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While this lasts, ``models.attention`` is traced as one node of the kernel, if there is one."""
        if self.kernel is None:
            yield
            return

        def kernel(query: Tensor, key: Tensor, value: Tensor, options: Mapping[str, Any]) -> Tensor:
            attributes: dict[str, Any] = {}
            if self.kernel in SCALES:
                attributes["scale"] = float(options["scale"] or 0)
            else:
                query = scaled(query, options["scale"])
            query = nan_if_overflowing(query, key)  # kernels that scale it themselves scale by 1 at most
            return torch.onnx.ops.symbolic(
                f"{DOMAIN}::{self.kernel}",
                [query, key, value, *(_tensor(name, options[name]) for name in self.arguments)],
                attributes,
                dtype=query.dtype,
                shape=[*query.shape[:3], value.shape[3]],
                version=OPSETS[DOMAIN],
            )

        token = KERNEL.set(kernel)
        try:
            yield
        finally:
            KERNEL.reset(token)

    def complete(self, model: onnx.ModelProto) -> None:
        """Add the kernel's functions to a traced ``model``."""
        if self.kernel is None:
            return
        model.functions.extend(functions(self.kernel))
        declared = {opset.domain: opset for opset in model.opset_import}
        for domain, version in opsets_of(self.kernel).items():
            if domain in declared:
                declared[domain].version = version
            else:
                model.opset_import.append(onnx.helper.make_opsetid(domain, version))


ATTENTION: dict[str, FastPath] = {
    "flash": FastPath("Flash", 1 << 20, ("scale",)),
    "padded": FastPath("Padded", 1 << 15, ("scale", "nonpad_kv_seqlen"), ("nonpad_kv_seqlen",)),
    "causal": FastPath("Causal", 0, ("scale",), fixes={"is_causal": True}),
    "masked": FastPath("Masked", 1 << 19, ("scale", "attn_mask"), ("attn_mask",), rows=MASKED_ROWS),
    "blocks": FastPath(
        "Blocks", 1 << 19, ("scale", "past_key", "past_value", *DEFAULTS), (*DEFAULTS, "past"), rows=ROWS
    ),
}
# From what size they are worth it no CUDA device was there to tell: from the first pair on. Lengths and a mask come
# with a scale, so that a request for a scale alone has a fused kernel, too.
CUDA = {
    "fused": FastPath("Fused", 0, (), provider="cuda"),
    "fused_causal": FastPath("FusedCausal", 0, (), fixes={"is_causal": True}, provider="cuda"),
    "fused_padded": FastPath("FusedPadded", 0, ("scale", "nonpad_kv_seqlen"), ("nonpad_kv_seqlen",), provider="cuda"),
    "fused_masked": FastPath("FusedMasked", 0, ("scale", "attn_mask"), ("attn_mask",), rows=None, provider="cuda"),
}
_EVERY = ("token_type_ids", "past_key", "past_value", *DEFAULTS)
_NO_WEIGHTS = ("output", "present_key", "present_value")
LINEAR = {
    "output": FastPath(None, 0, ("scale", "nonpad_kv_seqlen"), provider=None),
    "causal": FastPath(None, 0, ("nonpad_kv_seqlen",), fixes={"is_causal": True}, provider=None),
}
ENCODER = {
    "flash": FastPath("Flash", 1 << 18, ("token_type_ids",)),
    "padded": FastPath("Padded", 1 << 18, ("token_type_ids", "nonpad_kv_seqlen"), ("nonpad_kv_seqlen",)),
    "output": FastPath(None, 0, _EVERY, rows=None, provider=None),
}
DECODER = {
    "causal": FastPath("Causal", 1 << 18, ("token_type_ids",), answers=_NO_WEIGHTS),
    "output": FastPath(None, 0, _EVERY, rows=None, answers=_NO_WEIGHTS, provider=None),
}


CUDA_ENCODER = {
    name: replace(CUDA[name], takes=("token_type_ids", *CUDA[name].arguments)) for name in CUDA if "causal" not in name
}
CUDA_DECODER = {"fused_causal": replace(CUDA["fused_causal"], takes=("token_type_ids",), answers=_NO_WEIGHTS, fixes={})}


def _tensor(name: str, value: Any) -> Tensor:
    if value is None:
        return DEFAULTS[name]
    if isinstance(value, Tensor):
        return value
    return torch.full((), value)  # not as_tensor, which would fix the length of the past as traced


def fast_paths(block: Block, from_pairs: int = 0, cuda: bool = False) -> dict[str, FastPath]:
    """The fast paths of ``block``, by file name; none on the CPU begins before ``from_pairs``.

    Those on CUDA are among them if asked for, and in half precision, where there are none for the CPU.
    """
    half = block.dtype != "float32"
    found: dict[str, FastPath] = {}
    fused: dict[str, FastPath] = {}
    if block.linear:
        found = {name: path for name, path in LINEAR.items() if block.inputs.keys() >= path.fixes.keys()}
    elif block.is_causal is not None:
        found, fused = (DECODER, CUDA_DECODER) if block.is_causal else (ENCODER, CUDA_ENCODER)
    elif block.inputs.keys() >= DEFAULTS.keys():
        found, fused = ATTENTION, CUDA
    if half:
        found = {name: path for name, path in found.items() if path.provider != "cpu"}
    found = {name: replace(path, from_pairs=max(path.from_pairs, from_pairs)) for name, path in found.items()}
    return found | fused if cuda or half else found
