"""A run whose activations are changed, after the other runs whose activations it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import orjson

from service.base.errors import Invalid
from service.engine.task import Execute, StoredInputs
from service.interventions.changes import ITEM_BYTES, Change
from service.interventions.comparison import BASELINE, DIFFERENCE, Changes
from service.interventions.request import FIELD, OF_SITES
from service.interventions.values import OUTPUT, WHOLE, Values, check_memory
from service.model.estimate import RunEstimate, number_count
from service.model.graph import Arrays, Graph, RunOptions

ALONE = ("output", "embedding")  # the outputs of OUTPUT


class Intervened(StoredInputs):
    """The changes of one request, by ``values``; ``compared`` says how they are compared with the run without them."""

    is_long_to_add = True

    def __init__(self, values: Values, compared: Changes) -> None:
        self._values, self._compared = values, compared
        self.outputs = compared.outputs
        self.further: dict[str, Arrays | bytes] = {}
        self._changes: dict[str, Change] = {}
        self._own: Arrays = {}

    @property
    def cache_key(self) -> object:
        """Equal for changes of the same sites beside runs of the same sizes: a plan has their memory and time."""
        values = self._values
        others = tuple(tuple(sizes.items()) for sizes in values.sizes.values())
        sites = tuple(sorted({one.at for one in values.interventions}))
        return FIELD, others, values.has_mean, sites, self._needs_own, self.answer_count

    @property
    def answer_count(self) -> int:
        """How many sets of outputs the answer has."""
        return 1 + self._compared.has_baseline

    @property
    def _needs_own(self) -> bool:
        """Whether outputs of the run without changes are needed."""
        return self._compared.has_baseline or bool(self._compared.metrics)

    def covers(self, given: Sequence[str] | Mapping[str, object]) -> list[str]:
        return [*given]

    def add_to(self, own: Arrays) -> dict[str, np.ndarray]:
        """The request's ``own`` inputs, to which the places of the changes are resolved.

        Raises:
            Invalid: an index out of range, a token that is not there, or a tensor of another shape.
        """
        self._own, values = own, self._values
        for name in values.model.signature.missing(own, OF_SITES):
            raise Invalid(f"missing (required for {FIELD})", name)
        sizes = values.model.bind(own)
        values.check_places(own, sizes)
        for metric in self._compared.metrics:
            metric.check(values.model, sizes)
        self._changes = {}
        for one in values.interventions:
            place = values.place(one, own, sizes)
            self._changes.setdefault(one.at, Change(place.shape)).places.append(place)
        for change in self._changes.values():
            change.check()
        return {**own}

    def estimate(self, inputs: Arrays, outputs: Sequence[str], max_memory_bytes: int) -> RunEstimate:
        """The memory and time of all runs.

        Raises:
            Invalid: an output that is only of runs without changes.
            TooMuchMemory: more than ``max_memory_bytes``.
        """
        values = self._values
        graph = values.graphs.graph(OUTPUT if {*outputs} <= {*ALONE} else WHOLE)
        if missing := [name for name in outputs if name not in graph.outputs]:
            raise Invalid(f"{missing[0]} cannot be returned together with {FIELD}", "outputs")
        estimate = values.estimate(graph, inputs, outputs, max_memory_bytes, self._needs_own)
        memory = estimate.memory + sum(change.memory() for change in self._changes.values())
        if self._needs_own:
            memory += ITEM_BYTES * number_count(values.model.signature, outputs, estimate.sizes)
        check_memory(memory, max_memory_bytes)
        return replace(estimate, memory=memory)

    def run(
        self,
        graph: Graph,
        execute: Execute,
        inputs: Arrays,
        outputs: Sequence[str],
        options: RunOptions | None,
    ) -> dict[str, np.ndarray]:
        """The ``outputs`` of the changed run.

        Raises:
            Invalid: an activation of another run is not finite.
            OutOfMemory, NotEnoughMemory, DeviceLost: the device cannot run it now, or has failed.
        """
        values, compared = self._values, self._compared
        of_own = [*outputs] if compared.has_baseline else [*compared.outputs]
        runs = values.runs(graph, inputs, options, of_own=of_own)
        changes: dict[str, np.ndarray] = {}
        for site, change in self._changes.items():
            found = {place.intervention: values.value(place, runs, self._own) for place in change.places}
            changes |= change.inputs(site, {one: array for one, array in found.items() if array is not None}, graph)
        results = execute({**inputs, **changes}, outputs)
        if self._needs_own:
            unchanged = runs[None].outputs
            if compared.metrics:
                found = compared.differences(results, unchanged, inputs, values.model)
                self.further[DIFFERENCE] = orjson.dumps(found)
            if compared.has_baseline:
                self.further[BASELINE] = {name: unchanged[name] for name in outputs}
        return results
