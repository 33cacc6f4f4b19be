"""One loaded version of a model: its graphs, which of them serves a request, and its run."""

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from service.base.errors import HeedError, Invalid, NotEnoughMemory, OutOfMemory, TooMuchMemory
from service.base.messages import size_words, sizes_words
from service.model import checks, estimate
from service.model.batching import BatchingRules
from service.model.estimate import RunEstimate
from service.model.graph import Arrays, Graph, RunOptions
from service.model.spec import BlockSpec, Signature
from service.ort.failures import RUN_ERRORS
from service.ort.placement import CUDA, Placement, provider_label
from service.ort.provider import Provider, shrink_arena
from service.telemetry.logs import UNRUNNABLE
from service.tensors.dims import Sizes, symbol
from service.tensors.spec import TensorSpec

OUTPUT = "output"
MAX_INDEXED = 1 << 31  # numbers of a tensor on a GPU; with 2^33 ONNX Runtime's outputs were wrong


@dataclass(eq=False)
class Model:
    """``<repository>/<name>/<version>``, loaded by ``service/model/loader.py``."""

    name: str
    version: int
    signature: Signature
    graphs: list[Graph]  # by preference; the last one, the canonical graph, serves every request
    placement: dict[str, Placement]  # by graph
    providers: list[str]
    provider: Provider
    max_batch_size: int = 0  # rows of a request; 0 = no batch axis
    batched: frozenset[str] = frozenset()  # inputs and outputs whose first axis is the batch
    batching: BatchingRules | None = None  # how requests share a run; None = they never do
    tokenizer: Any = None  # of a model that takes token ids; features set this and the next five
    preprocessor: Any = None  # of a model that takes images
    generate: Any = None  # how it generates, in words of its description
    generate_refused: str | None = None  # why it does not
    interventions: Any = None  # the shapes of the activations that a request may change
    interventions_refused: str | None = None  # why it may not
    load_seconds: float = 0.0  # that it took to load
    file_bytes: int = 0  # of all files of the version

    def __post_init__(self) -> None:
        self.spec: BlockSpec | None = self.signature.spec
        self.inputs: dict[str, TensorSpec] = self.signature.inputs
        self.outputs: dict[str, TensorSpec] = self.signature.outputs
        on_request = self.spec.on_request if self.spec else ()
        self.all_outputs = [name for name in self.outputs if name not in on_request]  # of a request that names none
        self.masks: list[str] = self.signature.masks
        self.checked = (*self.masks, *(name for name, _ in self.signature.ranges))  # inputs whose numbers are checked
        self.parameters: dict[str, TensorSpec] = self.signature.parameters
        self._omissible = frozenset(self.signature.omissible)

    @cached_property
    def is_on_cuda(self) -> bool:
        return self.providers[0] == CUDA

    def clock(self) -> int:
        """Nanoseconds that count for the cost of a run: on the CPU those of the thread, which do not include its waits
        for the interpreter's lock."""
        return time.perf_counter_ns() if self.is_on_cuda else time.thread_time_ns()

    @cached_property
    def nodes(self) -> Counter[str]:
        """How many nodes of all graphs run on each provider: CPU, CUDA."""
        counts: Counter[str] = Counter()
        for placement in self.placement.values():
            counts.update({provider_label(provider): nodes.total() for provider, nodes in placement.items()})
        return counts

    def max_tokens(self, name: str) -> int | None:
        """The upper limit on the length of the input ``name``, token ids; None if it has none, or is no input."""
        if self.spec is None or name not in self.inputs:
            return None
        return self.spec.limits.get(symbol(self.inputs[name].shape[-1]))

    def bind(self, inputs: Arrays, may_be_empty: bool = False) -> Sizes:
        """The size of each symbolic dimension; see ``checks.bind``.

        Raises:
            Invalid: a rank, a size or a number does not fit; an input needs or excludes another.
        """
        return checks.bind(self.signature, inputs, may_be_empty)

    def graph_for(self, inputs: Arrays, outputs: Collection[str], sizes: Sizes) -> Graph:
        """The fastest graph that computes ``outputs`` from ``inputs``."""
        pairs, queries = estimate.pair_count(self.signature, sizes), estimate.query_count(self.signature, sizes)
        return next(graph for graph in self.graphs if graph.can_serve(inputs, outputs, pairs, queries))

    def estimate(
        self,
        inputs: Arrays,
        outputs: Collection[str],
        sizes: Sizes,
        max_memory: int | None = None,
        graph: Graph | None = None,
    ) -> RunEstimate:
        """The needs of a run for ``outputs``; ``sizes`` are those that ``bind`` returned for ``inputs``.

        It is of ``graph``, or of the fastest of the model's graphs.

        Raises:
            TooMuchMemory: more than ``max_memory`` bytes, or than the GPU has; a tensor that its kernels cannot index.
        """
        graph = graph or self.graph_for(inputs, outputs, sizes)
        memory = estimate.memory(self.signature, graph, inputs, outputs, sizes)
        on_device = self.provider.available_bytes or math.inf
        if max_memory is not None and memory > min(max_memory, on_device):
            limit = "max_memory_bytes" if max_memory <= on_device else "device_memory_bytes"
            most = int(min(max_memory, on_device))
            got, allowed = sizes_words(memory, most)
            raise TooMuchMemory(
                f"this request needs about {got}, which exceeds the maximum allowed, {allowed} ({limit}); "
                + self._way_out(inputs, outputs, sizes, most)
            )
        if max_memory is not None and self.is_on_cuda:
            pairs = estimate.pairs_in_memory(self.signature, graph, outputs, sizes)
            if pairs > MAX_INDEXED:
                raise TooMuchMemory(
                    f"this request has {pairs:,} pairs of query and key, and the GPU's kernels can index "
                    f"{MAX_INDEXED:,}; send fewer rows or queries in a request"
                )
        return RunEstimate(sizes, graph, estimate.run_size(self.signature, inputs, sizes), memory)

    def _way_out(self, inputs: Arrays, outputs: Collection[str], sizes: Sizes, most: int) -> str:
        """Advice for a request that needs more than ``most`` bytes: the output alone, where that fits."""
        alone = [OUTPUT]
        is_block = self.spec is not None and OUTPUT in self.outputs
        if is_block and {*outputs} != {OUTPUT} and not self.signature.missing(inputs, alone):
            graph = self.graph_for(inputs, alone, sizes)
            memory = estimate.memory(self.signature, graph, inputs, alone, sizes)
            if memory <= most:
                return f'"outputs": ["{OUTPUT}"] needs about {size_words(memory)}'
        return "send fewer rows or queries in a request"

    def run(
        self, graph: Graph, inputs: Arrays, outputs: Sequence[str], options: RunOptions | None = None
    ) -> dict[str, np.ndarray]:
        """The arrays of ``outputs``, by name, for ``inputs`` that ``bind`` has checked.

        ``options`` let another thread end the run. Where the CPU's arena is full, memory that earlier runs needed is
        freed, and the run is tried once more.

        Raises:
            Invalid: a foreign graph cannot take inputs of these shapes.
            OutOfMemory, NotEnoughMemory, DeviceLost: the device cannot run it now, or has failed.
        """
        selected = graph.select_inputs(inputs)
        if not self._omissible <= inputs.keys():
            selected = {**selected, **graph.select_inputs(checks.omitted(self.signature, inputs))}
        try:
            return graph.session.run(selected, outputs, options)
        except RUN_ERRORS as error:
            failure = self._translate(error, inputs)
            if self.provider.name != "cpu" or not isinstance(failure, OutOfMemory | NotEnoughMemory):
                raise (failure or error) from None
        with suppress(Exception):  # which needs some memory itself
            shrink_arena(self.provider)
        try:
            return graph.session.run(selected, outputs, options)
        except RUN_ERRORS as error:
            raise (self._translate(error, inputs) or error) from None

    def _translate(self, error: Exception, inputs: Arrays) -> HeedError | None:
        """The error for the client; None for a block's graph that fails, which is a fault of the server."""
        failure = self.provider.translate(error)
        if failure or self.spec:
            return failure
        UNRUNNABLE.log(logging.INFO, "model %s failed on a request: %s", self.name, error)
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
        return Invalid(f"model '{self.name}' cannot run on these inputs: {shapes}")
