"""One loaded model version: its sessions, what they take and answer, and which of them a request needs."""

import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail, Fail, InvalidArgument, RuntimeException

from service.bfloat16 import BFLOAT16, astype
from service.bound import Shapes
from service.card import Card, InputCard, PathCard
from service.cuda_graphs import Captured
from service.device import Device
from service.errors import HeedError, Invalid, TooMuchMemory
from service.graph import Arrays, Graph, Wide
from service.host_memory import plain
from service.metadata import metadata
from service.placement import CUDA, Placement, heavy_on_cpu, placement, short, written
from service.provider import Provider, giving_back, open_session
from service.shape import Binder, Dim, Sizes, length
from service.statistics import Statistics

if TYPE_CHECKING:
    from service.layout import Layout

log = logging.getLogger("heed")

CANONICAL = "model.onnx"
MOST_PLANS = 512
UNSAID = 3  # times its inputs: what a run of a foreign graph is taken to need
SHARED = "weights.bin"  # what the graphs of a version share, if they do
REFUSALS = (InvalidArgument, Fail, RuntimeException, EPFail)  # what a run raises: for its shapes, or its device
DTYPES: dict[str, type[np.generic] | np.dtype] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
    "tensor(bfloat16)": BFLOAT16,
    **{f"tensor({name})": getattr(np, name) for name in ("int8", "int16", "int32", "int64")},
    **{f"tensor({name})": getattr(np, name) for name in ("uint8", "uint16", "uint32", "uint64")},
}


@dataclass(frozen=True)
class Tensor:
    """An input or output, as the ONNX Runtime session declares it. Shape ``()`` is a parameter."""

    name: str
    dtype: np.dtype
    shape: tuple[Dim, ...]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Need:
    """What a run needs, by the sizes of its inputs."""

    sizes: Sizes
    graph: Graph
    size: int  # what its cost grows with: multiply-adds, or the numbers that a foreign graph takes
    memory: int  # bytes at its peak, about


class Model:
    """``<repository>/<name>/<version>``, loaded. ``card`` is None for a model that Heed did not export."""

    def __init__(self, folder: Path, provider: Provider, threads: int) -> None:
        self.name = folder.parent.name
        self.version = int(folder.name)
        self.statistics = Statistics()
        self.plans: dict[Hashable, Any] = {}  # what a face has understood of requests before, for it to keep
        self._remembering = threading.Lock()
        self.batch_axis: str | None = None  # these three are the repository's to say
        self.max_batch_size = 0
        self.layout: Layout | None = None  # how requests share a run; None = they never do
        shared = (folder / SHARED).is_file()  # prepacked, every session would hold a copy: only small requests need it
        card = metadata(folder / CANONICAL).get("heed")
        self.card = Card(**json.loads(card)) if card else None
        paths = {file: _path(file) for file in sorted(set(folder.glob("*.onnx")) - {folder / CANONICAL})}
        sessions = {}
        for file, path in {folder / CANONICAL: None, **paths}.items():
            if path and path.provider not in (None, provider.name):
                continue
            try:
                sessions[file] = open_session(file, provider, 1, prepack=not shared or file.name == CANONICAL)
            except Exception as error:
                if path is None and self.card and self.card.dtype == "bfloat16" and provider.name == "cpu":
                    raise ValueError("bfloat16 needs CUDA: ONNX Runtime's CPU has no kernels for it") from error
                if path is None:
                    raise
                log.warning("model %s does without %s, which cannot be opened: %s", self.name, file.name, error)
        if self.card and self.card.dtype != "float32" and provider.name == "cpu":
            log.info("model %s: the CPU computes %s in float32, which takes longer", self.name, self.card.dtype)
        canonical = sessions[folder / CANONICAL]
        self.inputs = {
            of.name: _tensor(of, required)
            for required, declared in (
                (True, canonical.get_inputs()),
                (False, canonical.get_overridable_initializers()),
            )
            for of in declared
        }
        if self.card:  # an ONNX session keeps no order between required and optional inputs; the card's is the block's
            self.inputs = {name: self.inputs[name] for name in self.card.inputs}
        self.outputs = {of.name: _tensor(of, True) for of in canonical.get_outputs()}
        self.providers = canonical.get_providers()
        self.placement: dict[str, Placement] = {file.stem: placement(session) for file, session in sessions.items()}
        self._provider = provider
        self._room = provider.room or math.inf
        runs = provider.runs if self.card else None  # what a foreign graph will answer is not known before
        self._runs = runs or (Device(plain()) if self._has_bfloat16 else None)
        self._shapes: dict[Hashable, Shapes] = {}
        # What a run costs: of a CPU, the thread's own time, as waits for the interpreter's lock are not the run's.
        self.is_on_cuda = self.providers[0] == CUDA
        self.clock = time.perf_counter_ns if self.is_on_cuda else time.thread_time_ns
        graphs = [
            _graph(
                session,
                self.card,
                paths.get(file),
                Wide(partial(open_session, file, provider, threads, not shared or file.name == CANONICAL))
                if threads > 1 and not self.is_on_cuda
                else None,
                Captured(partial(open_session, file, provider, 1, captures=True), number=provider.device)
                if provider.graphs and self._runs
                else None,
            )
            for file, session in sessions.items()
        ]
        self.graphs = sorted(graphs, key=Graph.burden)

    @cached_property
    def nodes(self) -> Counter[str]:
        """How many nodes of all graphs each provider runs: CPU, CUDA."""
        found: Counter[str] = Counter()
        for of in self.placement.values():
            found.update({short(provider): nodes.total() for provider, nodes in of.items()})
        return found

    def remember(self, key: Hashable, plan: Any) -> None:
        """Keep a plan for the next request of its kind; of many, what came first goes first."""
        with self._remembering:
            if len(self.plans) >= MOST_PLANS:
                del self.plans[next(iter(self.plans))]
            self.plans[key] = plan

    @cached_property
    def _has_bfloat16(self) -> bool:
        return any(of.dtype == BFLOAT16 for of in (*self.inputs.values(), *self.outputs.values()))

    @cached_property
    def _limited(self) -> list[tuple[str, InputCard]]:
        cards = self.card.inputs.items() if self.card else ()
        return [(name, card) for name, card in cards if card.minimum is not None or card.maximum is not None]

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The inputs that are single numbers or flags."""
        return {name: of for name, of in self.inputs.items() if of.shape == ()}

    def bind(self, inputs: Arrays) -> Sizes:
        """Hold the inputs, all that are required among them, against each other and against what the graph declares.

        Answers the size of each symbol.

        Raises:
            Invalid: a rank, size or number that does not fit; an input that another needs or excludes.
        """
        if not self.card:  # a symbol's sizes need not agree in a foreign graph: only ONNX Runtime knows
            return {}
        binder = Binder()
        given = [of for name, of in self.inputs.items() if name in inputs]
        for of in (of for of in given if not _has_sum(of)):
            binder.bind(of.name, of.shape, inputs[of.name].shape)
        for symbol, size in self.card.left_out.items():
            binder.sizes.setdefault(symbol, size)
        for of in filter(_has_sum, given):  # "past + n", when past and n are known
            binder.bind(of.name, of.shape, inputs[of.name].shape)
        binder.multiple(self.card.multiples)
        binder.limit(self.card.limits)
        for name in inputs:
            self._hold_to_others(name, inputs.keys())
        self.hold_values(inputs, binder.sizes)
        return binder.sizes

    def _hold_to_others(self, name: str, given: Collection[str]) -> None:
        assert self.card is not None
        card = self.card.inputs[name]
        for other in card.needs:
            if other not in given:
                raise Invalid(f"needs {other} beside it", name)
        for other in card.excludes:
            if other in given:
                raise Invalid(f"cannot be given together with {other}", name)

    def hold_values(self, inputs: Arrays, sizes: Sizes) -> None:
        """Hold the numbers in the inputs to what the card says of them, where shapes of ``sizes`` were held before.

        Raises:
            Invalid: a number past its range.
        """
        for name, card in self._limited:
            array = inputs.get(name)
            if array is None:
                continue
            if card.minimum is not None and (array < card.minimum).any():
                raise Invalid(f"expected at least {card.minimum}, got {array.min()}", name)
            if card.maximum is not None:
                most = length(card.maximum, sizes)
                if (array > most).any():
                    raise Invalid(f"expected at most {most} ({card.maximum}), got {array.max()}", name)

    def run(self, graph: Graph, inputs: Arrays, outputs: Sequence[str]) -> dict[str, np.ndarray]:
        """``outputs`` for ``inputs`` that ``bind`` has held, by the ``graph`` that ``graph_for`` has chosen.

        Raises:
            Invalid: a foreign graph cannot take inputs of these shapes.
            OutOfMemory, DeviceLost: of the device it runs on.
        """
        try:
            if self._runs is not None:
                return self._run_bound(self._runs, graph, inputs, outputs)
            answers = graph.run(inputs, outputs)
        except REFUSALS as error:
            failure = self._provider.meaning(error)
            if failure:
                raise failure from error
            if self.card:
                raise
            log.info("model %s refused a request: %s", self.name, error)
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
            raise Invalid(f"model '{self.name}' cannot be run on these inputs: {shapes}") from None
        return dict(zip(outputs, answers, strict=True))

    def _run_bound(self, runs: Device, graph: Graph, inputs: Arrays, outputs: Sequence[str]) -> dict[str, np.ndarray]:
        shapes = self._shapes_of(inputs, outputs) if self.card else None
        return runs.run(graph.session, graph.taken(inputs), outputs, shapes, graph.captured)

    def _shapes_of(self, inputs: Arrays, outputs: Sequence[str]) -> Shapes:
        """The shapes of a block's outputs, which follow from those of its inputs; known from before, if possible."""
        key = (*outputs, *((name, array.shape) for name, array in inputs.items()))
        shapes = self._shapes.get(key)
        if shapes is None:
            sizes = self.bind(inputs)
            asked = [self.outputs[name] for name in outputs]
            shapes = {of.name: (tuple(length(dim, sizes) for dim in of.shape), of.dtype) for of in asked}
            with self._remembering:
                if len(self._shapes) >= MOST_PLANS:
                    self._shapes.clear()
                self._shapes[key] = shapes
        return shapes

    def graph_for(self, given: Arrays, wanted: Collection[str], sizes: Sizes) -> Graph:
        """The graph of the least burden that serves such a request; the canonical one always does."""
        pairs = self.numbers(["weights"], sizes) if self.card else 0
        return next(graph for graph in self.graphs if graph.serves(given, wanted, pairs))

    def tell_placement(self) -> None:
        """Say in the log where the nodes of each graph run; on CUDA a heavy one left to the CPU is a warning."""
        on_cuda = self._provider.name == "cuda"
        for graph, of in self.placement.items():
            log.log(logging.INFO if on_cuda else logging.DEBUG, "model %s, %s: %s", self.name, graph, written(of))
            left = heavy_on_cpu(of)
            if on_cuda and left:
                names = ", ".join(f"{nodes} {operator}" for operator, nodes in sorted(left.items()))
                log.warning("model %s, %s: CUDA has not taken %s, which run on the CPU", self.name, graph, names)

    def warm(self) -> None:
        """Run every graph once on the card's example; a model without a card is warm when it is loaded."""
        if self.card is None:
            return
        example = self._example()
        for graph in list(self.graphs):
            with self.trying(graph):
                self.run(graph, example, sorted(graph.answers))

    @contextmanager
    def trying(self, graph: Graph) -> Iterator[None]:
        """Where ``graph`` fails in here, and is a fast path, the model does without it."""
        try:
            yield
        except Exception as error:
            if graph.card is None or isinstance(error, HeedError):
                raise
            log.warning("model %s does without %s, which cannot run: %s", self.name, graph.card.fast_path, error)
            self.graphs.remove(graph)

    def give_back(self) -> None:
        """Give the system the memory that past runs of any model needed, and that nobody uses now."""
        self.graphs[-1].session.run(None, self._example(), giving_back())

    def _example(self) -> dict[str, np.ndarray]:
        assert self.card is not None, "only a block has an example to run"
        return {name: astype(np.asarray(value), self.inputs[name].dtype) for name, value in self.card.example.items()}

    def numbers(self, outputs: Collection[str], sizes: Sizes) -> int:
        """How many numbers these outputs hold."""
        return sum(prod(length(dim, sizes) for dim in self.outputs[name].shape) for name in outputs)

    def memory(self, inputs: Arrays, outputs: Collection[str], sizes: Sizes, graph: Graph) -> int:
        """Bytes a run needs at its peak, about: every pair of query and key three times (scores, mask, weights).

        A fast path that never holds all pairs (``graph``) needs its tensors a few times, as it splits and joins them.
        A foreign graph says nothing of itself.
        """
        if self.card is None:
            return UNSAID * sum(array.nbytes for array in inputs.values())
        if graph.card is None or graph.card.rows is None:
            every = {name for name in self.outputs if name in ("weights", "scores")} | set(outputs)
            return 4 * (self.numbers(every, sizes) + self.numbers(outputs, sizes))
        required = (of for of in self.inputs.values() if of.required)
        tensors = sum(prod(length(dim, sizes) for dim in of.shape) for of in required) + self.numbers(outputs, sizes)
        m, n = (length(dim, sizes) for dim in self.outputs["weights"].shape[-2:])
        group = prod(sizes[many] // sizes[few] for many, few in self.card.multiples.items()) if self.card else 1
        return 4 * (4 * tensors + 3 * group * min(graph.card.rows, m) * n)

    def need(self, inputs: Arrays, outputs: Collection[str], sizes: Sizes, most_memory: int | None = None) -> Need:
        """What a run needs for ``outputs``, of ``inputs`` that ``bind`` has held, and answered ``sizes`` for.

        Raises:
            TooMuchMemory: more than ``most_memory`` bytes, or than the GPU has.
        """
        graph = self.graph_for(inputs, outputs, sizes)
        memory = self.memory(inputs, outputs, sizes, graph)
        if most_memory is not None and memory > min(most_memory, self._room):
            limit = "max_memory_bytes" if most_memory <= self._room else "device_memory_bytes"
            raise TooMuchMemory(
                f"this request needs about {memory:,} bytes, which exceeds the maximum allowed ({limit}), "
                f"{min(most_memory, self._room):,} bytes"
            )
        return Need(sizes, graph, self.size(inputs, sizes), memory)

    def size(self, inputs: Arrays, sizes: Sizes) -> int:
        """How large a run is, in what its cost grows with: multiply-adds, or a foreign graph's numbers taken."""
        return self.multiplications(sizes) if self.card else sum(array.size for array in inputs.values())

    def multiplications(self, sizes: Sizes) -> int:
        """Multiply-adds of a run, about: of each pair of query and key, and of each row with what is learned."""
        if self.card is None:
            return self.numbers(self.outputs, sizes)
        pairs = self.numbers(["weights"], sizes)
        rows = prod(length(dim, sizes) for dim in self.outputs["output"].shape[:-1])
        return pairs * length(self.card.depth, sizes) + rows * self.card.learned


def _has_sum(of: Tensor) -> bool:
    return any(" + " in str(dim) for dim in of.shape)


def _tensor(of: onnxruntime.NodeArg, required: bool) -> Tensor:
    if of.type not in DTYPES:
        raise ValueError(f"{of.name} is a {of.type}, which no request can carry")
    return Tensor(of.name, np.dtype(DTYPES[of.type]), tuple(of.shape), required)


def _path(file: Path) -> PathCard | None:
    """What a fast path says of itself; None of a graph that is none."""
    said = json.loads(metadata(file).get("heed", "{}"))
    return PathCard(**said) if "fast_path" in said else None


def _graph(
    session: onnxruntime.InferenceSession,
    card: Card | None,
    path: PathCard | None,
    wide: Wide | None,
    captured: Captured | None,
) -> Graph:
    takes = frozenset(of.name for of in [*session.get_inputs(), *session.get_overridable_initializers()])
    answers = frozenset(of.name for of in session.get_outputs())
    defaults = {name: of.default for name, of in card.inputs.items() if of.default is not None} if card else {}
    fixed = {name: value for name, value in defaults.items() if name not in takes} | (path.fixes if path else {})
    return Graph(session, takes, answers, path, fixed, wide=wide, captured=captured)
