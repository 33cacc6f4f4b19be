"""The fast paths of a block: graphs of ``output`` without ``weights``, most with a kernel that never holds all scores.

A fast path has some of the block's options as inputs. Each other parameter has its default value, or a value that the
path fixes. The service reads from the path's metadata (``FastPath.spec``) which requests it can serve.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from export.kernels.blocks import ROWS
from export.kernels.functions import DOMAIN, OPSETS, SCALES
from export.kernels.masked import MASKED_ROWS
from models.attention import KERNEL, nan_if_overflowing, scaled
from models.block import Block

JOINT = "Joint"  # a placeholder for the kernels of several paths in their shared trace; no written graph has it
CAUSAL_TENSORS = ("query", "marked_value")  # arguments of the placeholder: the first and third input of a causal kernel
LENGTHS = "nonpad_kv_seqlen"
DEFAULTS: dict[str, Tensor] = {
    "attn_mask": torch.zeros(1, 1, 1, 1),
    "is_causal": torch.tensor(False),
    "left_window_size": torch.tensor(-1),
    "right_window_size": torch.tensor(-1),
    "softcap": torch.tensor(0.0),
    LENGTHS: torch.tensor([-1]),
}


@dataclass(frozen=True)
class FastPath:
    """A graph of a block with a kernel in place of the attention formula.

    ``from_pairs`` is the number of pairs of query and key, over layers, batch and heads, from which the path is faster
    than the graphs with weights, and ``from_queries`` the number of queries, as measured (benchmarks/fast_paths.md).
    """

    kernel: str | None  # None: the formula, without the nodes that only compute weights
    from_pairs: int
    takes: tuple[str, ...]  # optional inputs of the graph
    arguments: tuple[str, ...] = ()  # those that are inputs of the kernel, in its order
    fixes: Mapping[str, bool] = field(default_factory=dict)  # parameters with a fixed value
    rows: int | None = 0  # queries with scores in memory at once; 0 = negligible, None = all
    outputs: tuple[str, ...] = ("output",)
    provider: str | None = "cpu"  # None = any
    needs: tuple[str, ...] = ()  # optional inputs: for requests without any of them, another graph is faster
    from_queries: int = 0

    def graph(self, block: Block) -> tuple[list[str], list[str]]:
        """The names of the inputs and outputs of the graph of ``block``."""
        inputs = [name for name, spec in block.inputs.items() if spec.required or name in self.takes]
        return inputs, [name for name in block.outputs if name in self.outputs]

    def spec(self) -> dict[str, Any]:
        """The path's metadata without names: provider, fixed parameters, the sizes from which it is faster, rows."""
        fields = {
            "provider": self.provider,
            "fixes": dict(self.fixes),
            "from_pairs": self.from_pairs,
            "rows": self.rows,
            "needs": list(self.needs) or None,
            "from_queries": self.from_queries or None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @contextmanager
    def traced(self) -> Iterator[None]:
        """A context in which ``models.attention`` is traced as one node, a call of the kernel, if there is one."""
        if self.kernel is None:
            yield
            return

        def kernel(query: Tensor, key: Tensor, value: Tensor, options: Mapping[str, Any]) -> Tensor:
            attributes: dict[str, Any] = {}
            if self.kernel in SCALES:
                attributes["scale"] = float(options["scale"] or 0)
            else:
                query = scaled(query, options["scale"])
            # NaN where a product may overflow, unscaled for SCALES, whose scale is at most 1. A causal kernel treats a
            # query of NaN as one that attends to no key and returns zero for it, so its values become NaN instead.
            marked_query, marked_value = nan_if_overflowing(query, key), nan_if_overflowing(query, key, value)
            given = {**options, "query": query, "marked_value": marked_value}
            tensors = [query, key, marked_value] if "Causal" in str(self.kernel) else [marked_query, key, value]
            return torch.onnx.ops.symbolic(
                f"{DOMAIN}::{self.kernel}",
                [*tensors, *(_tensor(name, given[name]) for name in self.arguments)],
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


_PAST = ("past_key", "past_value")
ATTENTION: dict[str, FastPath] = {
    "flash": FastPath("Flash", 1 << 17, ("scale",), from_queries=32),
    "padded": FastPath("Padded", 1 << 15, ("scale", LENGTHS), (LENGTHS,), needs=(LENGTHS,), from_queries=16),
    "causal": FastPath("Causal", 0, ("scale",), fixes={"is_causal": True}),
    "masked": FastPath(
        "Masked", 1 << 19, ("scale", "attn_mask"), ("attn_mask",), rows=MASKED_ROWS, needs=("attn_mask",),
        from_queries=64,
    ),
    "blocks": FastPath(
        "Blocks", 1 << 19, ("scale", *_PAST, *DEFAULTS), (*DEFAULTS, "past"), rows=ROWS, needs=(*_PAST, *DEFAULTS),
        from_queries=4,
    ),
}  # fmt: skip
# ``from_pairs`` was not measured on a CUDA device: with 0, these paths are used for every size. Lengths and a mask are
# optional beside the scale, so that a request with only a scale also runs on a fused kernel.
CUDA = {
    "fused": FastPath("Fused", 0, (), provider="cuda"),
    "fused_causal": FastPath("FusedCausal", 0, (), fixes={"is_causal": True}, provider="cuda"),
    "fused_padded": FastPath("FusedPadded", 0, ("scale", LENGTHS), (LENGTHS,), provider="cuda"),
    "fused_masked": FastPath("FusedMasked", 0, ("scale", "attn_mask"), ("attn_mask",), rows=None, provider="cuda"),
}
_STACK_OPTIONS = ("token_type_ids", *_PAST, *DEFAULTS)
_NO_WEIGHTS = ("output", "present_key", "present_value")
LINEAR = {
    "output": FastPath(None, 0, ("scale", LENGTHS), provider=None),
    "causal": FastPath(None, 0, (LENGTHS,), fixes={"is_causal": True}, provider=None),
}
ENCODER = {
    "flash": FastPath("Flash", 1 << 18, ("token_type_ids",)),
    "padded": FastPath("Padded", 1 << 18, ("token_type_ids", LENGTHS), (LENGTHS,), needs=(LENGTHS,)),
    "output": FastPath(None, 0, _STACK_OPTIONS, rows=None, provider=None),
}
DECODER = {
    "causal": FastPath("Causal", 1 << 18, ("token_type_ids",), outputs=_NO_WEIGHTS),
    "output": FastPath(None, 0, _STACK_OPTIONS, rows=None, outputs=_NO_WEIGHTS, provider=None),
}
CUDA_ENCODER = {
    name: replace(CUDA[name], takes=("token_type_ids", *CUDA[name].arguments)) for name in CUDA if "causal" not in name
}
CUDA_DECODER = {"fused_causal": replace(CUDA["fused_causal"], takes=("token_type_ids",), outputs=_NO_WEIGHTS, fixes={})}


def _tensor(name: str, value: Any) -> Tensor:
    if value is None:
        return DEFAULTS[name]
    if isinstance(value, Tensor):
        return value
    return torch.full((), value)  # as_tensor would make the length of the past a constant of the graph


def fast_paths(block: Block, from_pairs: int = 0, cuda: bool = False) -> dict[str, FastPath]:
    """The fast paths of ``block`` by file name; ``from_pairs`` is the lower bound of every path not on CUDA.

    Those for CUDA are included with ``cuda`` and in half precision, for which the CPU has none.
    """
    half = block.dtype != "float32"
    paths: dict[str, FastPath] = {}
    fused: dict[str, FastPath] = {}
    if block.linear:
        # With a mask, is_causal becomes part of it, and takes a number for each pair.
        fixable = set() if "attn_mask" in block.inputs else block.inputs.keys()
        paths = {name: path for name, path in LINEAR.items() if fixable >= path.fixes.keys()}
    elif block.is_causal is not None:
        paths, fused = (DECODER, CUDA_DECODER) if block.is_causal else (ENCODER, CUDA_ENCODER)
    elif block.inputs.keys() >= DEFAULTS.keys():
        paths, fused = ATTENTION, CUDA
    if half:
        paths = {name: path for name, path in paths.items() if path.provider != "cpu"}
    paths = {name: replace(path, from_pairs=max(path.from_pairs, from_pairs)) for name, path in paths.items()}
    return paths | fused if cuda or half else paths
