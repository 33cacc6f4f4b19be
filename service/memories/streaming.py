"""Exact attention of few queries over many stored keys and values, in bounded memory.

The keys are walked in blocks, whose sums are merged (sums.py; Dao et al., "FlashAttention", 2022,
https://arxiv.org/abs/2205.14135, algorithm 1). Blocks are computed in float32 and merged in float64, always in the same
order, whatever the number of threads.

Keys and values may be views of a memory-mapped file. No more of them than a block is ever copied, and that only from
float16. Threads take parts of the keys in turn; each product runs in one thread (``blas.limit_blas_threads``).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import chain, islice
from math import isfinite
from threading import Lock
from typing import TypeVar

import numpy as np

from service.base import machine
from service.memories.blas import limit_blas_threads
from service.memories.sharing import SHARED_PASS
from service.memories.sums import FLOAT32_MIN, Sums, attended_keys
from service.model.graph import Arrays, Graph, MultiThreadedSession, RunOptions
from service.model.spec import FastPathSpec, Signature
from service.ort.session import Session

T = TypeVar("T")

SCALES = {"scaled_dot_product": None, "dot_product": 1.0, "luong_dot": 1.0}  # block -> its scale; None = 1 / sqrt(d_k)
MASKS = ("is_causal", "left_window_size", "right_window_size", "nonpad_kv_seqlen")
INPUTS = ("query", "key", "value", "scale", "softcap", *MASKS)
OUTPUTS = ("output", "weights", "scores", "lse")
SUMS = ("top", "total", "weighted")  # outputs of a part of the keys

MAX_ROWS = 256  # queries of one key head that are computed together
MAX_STATE_NUMBERS = 1 << 14  # of the sums of weighted values of these queries
MAX_BLOCK_NUMBERS = 1 << 17  # scores of a block: they stay in the cache of a core
MAX_BLOCK_KEYS = 1 << 14
MAX_COPY_NUMBERS = 1 << 19  # of keys or values converted from float16 at one time
PART_KEYS = 1 << 14  # at least so many keys go to a thread at one time
MAX_PARTS = 64  # of the keys of one tile, whose sums wait to be merged
# OpenBLAS has a kernel for small products that does not copy its factors first. Per product of m x n x k.
MAX_SMALL_PRODUCT = 1 << 19
MAX_NARROW_ROWS = 32  # up to so many queries, products of keys and queries are faster than of queries and keys
HALF_INFINITY = 0x7C00  # its bits; those of NaN are larger
WORKSPACE_BYTES = 48 << 20  # bound on a run's memory beside its inputs and outputs, and on that of each further thread
THREAD_BYTES = 8 << 20
# Multiply-adds that take as long as a score, a number of a key or value, and a tile beside its products.
SCORE_SIZE, NUMBER_SIZE, TILE_SIZE = 64, 8, 3 << 19


class Terminated(RuntimeError):
    """Another thread has ended this run."""


def streaming_graph(signature: Signature) -> Graph | None:
    """A graph that computes a block of dot-product attention over stored keys; None for any other block.

    A request with inputs or outputs that it lacks is refused by ``Graph.can_serve``: the model's own graphs serve it.
    """
    spec = signature.spec
    if spec is None or spec.block not in SCALES or spec.dtype != "float32":
        return None
    inputs = frozenset(INPUTS) & signature.inputs.keys()
    defaults = {name: spec.inputs[name].default for name in signature.parameters if name not in inputs}
    scale, threads = SCALES[spec.block], machine.cpus()
    return Graph(
        StreamingSession(scale, 1),
        inputs,
        frozenset(OUTPUTS) & signature.outputs.keys(),
        FastPathSpec(fast_path="streaming", rows=MAX_ROWS),
        {name: default for name, default in defaults.items() if default is not None},
        multi_threaded=MultiThreadedSession(lambda: StreamingSession(scale, threads), threads) if threads > 1 else None,
        workspace_bytes=WORKSPACE_BYTES + threads * THREAD_BYTES,
        shared=SHARED_PASS,
    )


def run_size(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> int:
    """What the cost of a run grows with: multiply-adds, and those that would take as long as the rest."""
    batch, heads, m, d_k = query.shape
    kv_heads, n = key.shape[1:3]
    tiles: int = batch * kv_heads * _tile_count(heads // kv_heads * m, value.shape[3])
    scores: int = batch * heads * m * n * (d_k + SCORE_SIZE)
    return scores + NUMBER_SIZE * (key.size + value.size) + TILE_SIZE * tiles


def _tile_count(rows: int, d_v: int) -> int:
    """The tiles of the queries of one key head."""
    return -(-rows // max(1, min(MAX_ROWS, MAX_STATE_NUMBERS // max(1, d_v))))


class StreamingSession(Session):
    """Computes in place of an ONNX Runtime session.

    Args:
        scale: of the scores where the inputs have none; None = 1 / sqrt(d_k).
        threads: that work on one run.
    """

    def __init__(self, scale: float | None, threads: int) -> None:
        limit_blas_threads()
        self.scale = scale
        self._threads = threads

    def run(self, inputs: Arrays, outputs: Sequence[str], options: RunOptions | None = None) -> dict[str, np.ndarray]:
        """The arrays of ``outputs`` in float32: output [batch, heads, m, d_v], weights and scores [batch, heads, m, n],
        lse [batch, heads, m]. In float64 the sums to merge with those of other keys: top and total [batch, heads, m],
        weighted [batch, heads, m, d_v].

        Args:
            inputs: query [batch, heads, m, d_k] in float32; key [batch, kv_heads, n, d_k] and value [batch, kv_heads,
                n, d_v] in float32 or float16, of any strides, where heads is a multiple of kv_heads; parameters as in
                the block, or in place of masks first_key and last_key [batch, m] as ``attended_keys`` answers. Without
                an output of d_v numbers no value is needed. Only attended keys are read.
            options: end the run between two blocks if ``options.terminate`` becomes true.

        Raises:
            Terminated: the run was ended so.
            KeyError: an output that it does not have, or no value for the output.
        """
        attention = _Attention(inputs, outputs, self.scale, options)
        _for_each((part for tile in attention.tiles() for part in tile.parts), attention.attend, self._threads)
        _for_each((part for tile in attention.in_parts for part in tile.parts), attention.normalize, self._threads)
        return {name: attention.outputs[name].reshape(attention.shapes[name]) for name in outputs}


@dataclass(slots=True, eq=False)
class _Part:
    """Some keys of a tile, for one thread."""

    tile: "_Tile"
    start: int
    stop: int
    sums: Sums | None = None
    tops: list[np.ndarray] = field(default_factory=list)  # of each block, [R, 1]: exp(score - top) is in the weights


@dataclass(slots=True, eq=False)
class _Tile:
    """Some queries of one key head, and the keys that any of them may attend to."""

    index: tuple[int, int, slice]  # batch row, key head, and rows of [batch, kv_heads, heads / kv_heads * m]
    first: np.ndarray  # [R, 1] of each query, the first key that it may attend to
    last: np.ndarray  # [R, 1], and the one after the last
    common: slice  # the keys that all of them may attend to
    parts: list[_Part] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)  # numbers from 0, one for each part; ``pop`` is atomic
    lse: np.ndarray | None = None  # [R, 1]


class _Buffers:
    """Arrays of one thread that are used again for each block."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def take(self, name: str, *shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        if name not in self._arrays or self._arrays[name].size < size:
            self._arrays[name] = np.empty(size, np.float32)
        return self._arrays[name][:size].reshape(shape)

    def float32(self, name: str, rows: np.ndarray) -> np.ndarray:
        """``rows``, or a copy of float16 in the buffer ``name``."""
        if rows.dtype == np.float32:
            return rows
        copy = self.take(name, *rows.shape)
        from_float16(rows, copy)
        return copy


class _Attention:
    """The arrays of one run. In ``outputs`` heads and queries are one axis, [batch, kv_heads, heads / kv_heads * m]."""

    def __init__(self, inputs: Arrays, outputs: Sequence[str], scale: float | None, options: RunOptions | None) -> None:
        query, self.key = inputs["query"], inputs["key"]
        self.value = inputs["value"] if {"output", "weighted"}.intersection(outputs) else None
        batch, heads, m, d_k = query.shape
        kv_heads, n = self.key.shape[1:3]
        d_v = 0 if self.value is None else self.value.shape[3]
        given = inputs.get("scale")
        if given is not None and not np.isnan(given):
            scale = float(given)
        rows = (batch, kv_heads, heads // kv_heads * m)
        self.query = (query * np.float32(d_k**-0.5 if scale is None else scale)).reshape(*rows, d_k)
        self.softcap = np.float32(inputs.get("softcap", 0))
        self._options = options
        pairs = (batch, heads, m, n)
        self.shapes = {
            **dict.fromkeys(("weights", "scores"), pairs),
            **dict.fromkeys(("output", "weighted"), (*pairs[:3], d_v)),
            **dict.fromkeys(("lse", "top", "total"), pairs[:3]),
        }
        self.outputs = {
            name: np.zeros((*rows, *self.shapes[name][3:]), np.float64 if name in SUMS else np.float32)
            for name in outputs
        }
        for name in {"lse", "top"}.intersection(outputs):
            self.outputs[name][...] = -np.inf
        self._tile_rows = -(-rows[2] // _tile_count(rows[2], d_v))
        self._block_keys = max(1, min(MAX_BLOCK_KEYS, MAX_BLOCK_NUMBERS // self._tile_rows))
        if np.float16 in (self.key.dtype, self.value.dtype if self.value is not None else None):
            self._block_keys = max(1, min(self._block_keys, MAX_COPY_NUMBERS // max(d_k, d_v)))
        self._attended = attended_keys(inputs, batch, m, n)
        self.in_parts: list[_Tile] = []  # of several parts, whose weights are to be normalized

    def tiles(self) -> Iterator[_Tile]:
        """The tiles, made as they are asked for: all at once they would take the garbage collector long."""
        first, last = self._attended
        m, rows = first.shape[1], self.query.shape[:3]
        for b, head in np.ndindex(rows[:2]):
            for row in range(0, rows[2], self._tile_rows):
                end = min(row + self._tile_rows, rows[2])
                queries = np.arange(row, end) % m
                bounds = first[b, queries, None], last[b, queries, None]
                common = slice(int(bounds[0].max()), int(bounds[1].min()))
                tile = _Tile((b, head, slice(row, end)), *bounds, common)
                attends = tile.last > tile.first
                start = int(tile.first[attends].min()) if attends.any() else 0
                stop = int(tile.last[attends].max()) if attends.any() else 0
                if "scores" in self.outputs:
                    self.outputs["scores"][tile.index][:, :start] = -np.inf
                    self.outputs["scores"][tile.index][:, stop:] = -np.inf
                blocks = -(-max(PART_KEYS, -(-(stop - start) // MAX_PARTS)) // self._block_keys)
                step = blocks * self._block_keys
                tile.parts += [_Part(tile, at, min(at + step, stop)) for at in range(start, stop, step)]
                tile.unfinished += range(len(tile.parts))
                yield tile

    def _blocks(self, part: _Part) -> Iterator[slice]:
        """The keys of each block of ``part``, as long as the run is not ended."""
        for start in range(part.start, part.stop, self._block_keys):
            if self._options is not None and self._options.terminate:
                raise Terminated("this run was ended")
            yield slice(start, min(start + self._block_keys, part.stop))

    def attend(self, part: _Part, buffers: _Buffers) -> None:
        """Compute the sums of ``part``; the last part of a tile to end also merges those of the tile."""
        with np.errstate(over="ignore", invalid="ignore"):
            for keys in self._blocks(part):
                sums = self._attend_block(part, keys, buffers)
                part.sums = sums if part.sums is None else part.sums.merge(sums)
        if part.tile.unfinished.pop() == 0:
            self._finish(part.tile)

    def _attend_block(self, part: _Part, keys: slice, buffers: _Buffers) -> Sums:
        b, head, _ = index = part.tile.index
        query, size = self.query[index], keys.stop - keys.start
        scores = buffers.take("scores", len(query), size)
        _products(query, buffers.float32("rows", self.key[b, head, keys]), scores, buffers)
        top = scores.max(1, keepdims=True)
        masked = None
        if keys.start < part.tile.common.start or keys.stop > part.tile.common.stop:
            j = np.arange(keys.start, keys.stop)
            masked = (j < part.tile.first) | (j >= part.tile.last)
        # A score that overflows to -inf would look like a masked key: a wrong result that looks right.
        if not (isfinite(scores.min()) and isfinite(top.max())):
            overflows = ~np.isfinite(scores)
            scores[(overflows if masked is None else overflows & ~masked).any(1)] = np.nan
            top = scores.max(1, keepdims=True)
        if self.softcap > 0:
            scores /= self.softcap
            np.tanh(scores, out=scores)
            scores *= self.softcap
            top = scores.max(1, keepdims=True)
        if masked is not None:
            scores[masked] = -np.inf
            top = scores.max(1, keepdims=True)
        if "scores" in self.outputs:
            self.outputs["scores"][index][:, keys] = scores
        np.subtract(scores, np.maximum(top, FLOAT32_MIN), out=scores)
        np.exp(scores, out=scores)
        if "weights" in self.outputs:
            self.outputs["weights"][index][:, keys] = scores
            part.tops.append(top)
        total = scores.sum(1, keepdims=True).astype(np.float64)
        weighted = None
        if self.value is not None:
            weighted = _weighted(scores, buffers.float32("rows", self.value[b, head, keys]))
        return Sums(top.astype(np.float64), total, weighted)

    def _finish(self, tile: _Tile) -> None:
        sums = reduce(Sums.merge, (part.sums for part in tile.parts if part.sums))
        for part in tile.parts:
            part.sums = None
        tile.lse = sums.lse
        results = {"lse": tile.lse[:, 0], "top": sums.top[:, 0], "total": sums.total[:, 0]}
        if sums.weighted is not None:
            results |= {"weighted": sums.weighted, "output": sums.output}
        for name in results.keys() & self.outputs.keys():
            self.outputs[name][tile.index] = results[name]
        if "weights" in self.outputs and len(tile.parts) > 1:
            self.in_parts.append(tile)
            return
        if "weights" in self.outputs:
            self.normalize(tile.parts[0])
        tile.parts.clear()  # which refer to the tile: it is freed at once

    def normalize(self, part: _Part, _: _Buffers | None = None) -> None:
        """Normalize the exponentials that ``attend`` wrote for ``part``."""
        assert part.tile.lse is not None, "all parts have been attended to"
        weights = self.outputs["weights"][part.tile.index]
        for keys, top in zip(self._blocks(part), part.tops, strict=True):
            weights[:, keys] *= np.exp(np.maximum(top, FLOAT32_MIN) - np.maximum(part.tile.lse, FLOAT32_MIN)).astype(
                np.float32
            )


def _products(query: np.ndarray, key: np.ndarray, scores: np.ndarray, buffers: _Buffers) -> None:
    """Write query key^T, [R, n], to ``scores``."""
    rows, n = scores.shape
    if rows == 1 or rows > MAX_NARROW_ROWS:
        np.matmul(query, key.T, out=scores)
        return
    turned = buffers.take("turned", n, rows)
    step = _keys_per_product(rows, key.shape[1], n)
    whole = n - n % step
    columns = np.ascontiguousarray(query.T)
    np.matmul(key[:whole].reshape(-1, step, key.shape[1]), columns, out=turned[:whole].reshape(-1, step, rows))
    if whole < n:
        np.matmul(key[whole:], columns, out=turned[whole:])
    scores[...] = turned.T


def _weighted(weights: np.ndarray, value: np.ndarray) -> np.ndarray:
    """weights value, [R, d_v], in float64: sums of few keys in float32, added up."""
    rows, n = weights.shape
    step = _keys_per_product(rows, value.shape[1], n)
    whole = n - n % step
    parts = weights[:, :whole].reshape(rows, -1, step).swapaxes(0, 1) @ value[:whole].reshape(-1, step, value.shape[1])
    total: np.ndarray = parts.sum(0, dtype=np.float64)
    return total + weights[:, whole:] @ value[whole:] if whole < n else total


def _keys_per_product(rows: int, depth: int, n: int) -> int:
    """The number of keys, of n, in one product."""
    return min(n, max(256, MAX_SMALL_PRODUCT // (rows * depth)))


def from_float16(halves: np.ndarray, target: np.ndarray) -> None:
    """Write float16 numbers to the float32 array ``target`` of their shape: by their bits, as numpy's own conversion
    takes them one by one and several times as long.

    The bits of a half, moved to those of a float32, mean a number that is 2^112 times too small. Infinity and NaN would
    become numbers.
    """
    bits = target.view(np.int32)
    np.copyto(bits, halves.view(np.int16))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, np.int32(-0x70000001), out=bits)  # without the copies of the sign
    np.multiply(target, np.float32(2.0**112), out=target)
    if halves.size == 0:
        return
    if halves.view(np.int16).max() >= HALF_INFINITY or halves.view(np.uint16).max() >= 0x8000 + HALF_INFINITY:
        np.copyto(target, halves)


def _for_each(tasks: Iterator[T], function: Callable[[T, _Buffers], None], threads: int) -> None:
    """Call ``function`` with each of ``tasks``, taken in their order by this thread and up to ``threads`` - 1 others.

    Helpers that are busy with other runs are not waited for. After an exception no further task is begun.
    """
    first = list(islice(tasks, threads))
    waiting: Iterator[T] = chain(first, tasks)
    lock = Lock()  # a generator is for one thread at a time

    def take() -> T | None:
        with lock:
            return next(waiting, None)

    def work() -> None:
        nonlocal waiting
        buffers = _Buffers()
        try:
            while (task := take()) is not None:
                function(task, buffers)
        except BaseException:
            with lock:
                waiting = iter(())
            raise

    helpers = [_helpers().submit(work) for _ in range(len(first) - 1)]
    try:
        work()
    finally:
        running = [helper for helper in helpers if not helper.cancel()]
        wait(running)
    for helper in running:
        helper.result()


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, machine.cpus() - 1), "heed-memory")
