"""Six workloads, and series of others whose size grows, with seeded random tensors."""

from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

import numpy as np

Arrays = dict[str, np.ndarray]
LENGTHS = tuple(int(m) for m in np.random.default_rng(0).integers(16, 513, 16))


@dataclass(frozen=True)
class Workload:
    """``graph`` is a torch module as ONNX with exactly ``outputs``; ``block`` is Heed's equivalent.

    ``shapes`` has the shapes of the graph's inputs for each body. ``connections`` are those measured by default.
    """

    name: str
    description: str
    graph: str
    block: str
    shapes: tuple[dict[str, tuple[int, ...]], ...]
    outputs: tuple[str, ...] = ("output", "weights")
    connections: tuple[int, ...] = (1, 8, 64)

    @cached_property
    def tensors(self) -> list[Arrays]:
        """The graph's inputs for each body: standard normal float32, the same in every run."""
        rng = np.random.default_rng(crc32(self.name.encode()))
        return [{name: rng.standard_normal(shape, np.float32) for name, shape in body.items()} for body in self.shapes]

    @property
    def by_block(self) -> bool:
        """Whether Heed runs its block in every format: a block can omit the weights, a graph cannot."""
        return "weights" not in self.outputs

    def as_model(self, model: str, tensors: Arrays) -> Arrays:
        """``tensors`` in the shapes of ``model``: scaled_dot_product has an axis of heads, sdpa has none."""
        one_head = model == self.block and self.graph == "sdpa"
        return {name: array[:, None] if one_head else array for name, array in tensors.items()}


def _qkv(*shape: int) -> tuple[dict[str, tuple[int, ...]]]:
    return (dict.fromkeys(("query", "key", "value"), shape),)


SIX = {
    workload.name: workload
    for workload in (
        Workload("W1", "batch 1, m = n = 16, d 64", "sdpa", "scaled_dot_product", _qkv(1, 16, 64)),
        Workload("W2", "batch 1, m = n = 128, d 64", "sdpa", "scaled_dot_product", _qkv(1, 128, 64)),
        Workload("W3", "multi-head, d 256, 8 heads, m 128", "mha", "mha_block", ({"x": (1, 128, 256)},)),
        Workload("W4", "batch 8, m = n = 128, d 64", "sdpa", "scaled_dot_product", _qkv(8, 128, 64)),
        Workload(
            "W5", "8 heads of 32, 1,024 tokens, output only", "sdpa_output", "scaled_dot_product",
            _qkv(1, 8, 1024, 32), ("output",), (1, 8),
        ),
        Workload(
            "W6", "multi-head, d 256, 8 heads, mixed lengths 16 to 512, output only", "mha_output", "mha_block",
            tuple({"x": (1, m, 256)} for m in LENGTHS), ("output",), (64,),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Workloads that differ by a size, which is in their names: ``n16``, ``n32``, ..."""

    description: str
    workloads: dict[int, Workload]


def _series(name: str, description: str, powers: range, shape: tuple[int | None, ...], only_output: bool) -> Series:
    """A workload of each power of 2, which is the axis of ``shape`` that is None."""
    graph, outputs = ("sdpa_output", ("output",)) if only_output else ("sdpa", ("output", "weights"))
    workloads = {}
    for size in (2**power for power in powers):
        shapes = _qkv(*(axis or size for axis in shape))
        about = f"{description}: {size}"
        workloads[size] = Workload(f"{name}{size}", about, graph, "scaled_dot_product", shapes, outputs, (1,))
    return Series(description, workloads)


SERIES = {
    "n": _series("n", "queries and keys, d 64", range(4, 14), (1, None, 64), False),
    "out": _series("out", "queries and keys, 8 heads of 32, output only", range(4, 13), (1, 8, None, 32), True),
    "batch": _series("batch", "rows of 128 queries and keys, d 64", range(7), (None, 128, 64), False),
    "heads": _series("heads", "heads of 256 queries and keys, d 32, output only", range(6), (1, None, 256, 32), True),
}
WORKLOADS = SIX | {one.name: one for series in SERIES.values() for one in series.workloads.values()}
