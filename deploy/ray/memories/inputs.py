"""The inputs of a request that are in a cluster's memory: their nodes compute with them, or they are fetched."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import ray

from deploy.ray.memories.layout import Holder, missing
from deploy.ray.memories.memory import CALL_S, ClusterMemory
from deploy.ray.memories.parts import Part, merge_parts, part_outputs
from service.base.errors import Gone, NotFound, TooMuchMemory
from service.engine.task import Execute
from service.memories.stored import KEY_VALUE, PRESENT, Reference, StoredInputs, check_finite
from service.memories.streaming import StreamingSession
from service.memories.sums import attended_keys
from service.model.estimate import RunEstimate
from service.model.graph import Arrays, Graph, RunOptions
from service.model.model import Model


class ClusterInputs(StoredInputs):
    """The inputs of one request that are on other nodes: the nodes attend to their parts, which are merged here.

    If a block needs all keys in one place, they are fetched.
    """

    is_quick = False  # it waits for other nodes

    def __init__(self, memory: ClusterMemory, reference: Reference, model: Model, store: Any) -> None:
        super().__init__(memory, reference, model, store)
        self._cluster, self._snapshot = store, memory.snapshot

    def estimate(self, inputs: Arrays, outputs: Sequence[str], most_memory: int) -> RunEstimate:
        """As ``StoredInputs.estimate``.

        Raises:
            TooMuchMemory: all keys are needed in one place, and are larger than ``most_memory`` bytes.
        """
        estimate = super().estimate(inputs, outputs, most_memory)
        size = self.memory.description.nbytes(self._state.length)
        if estimate.graph.shared is None and size > most_memory:
            raise TooMuchMemory(f"this block needs all keys and values of the memory in one place: {size:,} bytes")
        return estimate

    def verify(self) -> None:
        """Do nothing: the nodes check their parts."""

    def run(
        self, graph: Graph, execute: Execute, inputs: Arrays, outputs: Sequence[str], _options: RunOptions | None
    ) -> dict[str, np.ndarray]:
        """As ``StoredInputs.run``.

        Raises:
            PartsMissing, Gone: all nodes with some of the keys are lost, or their files are damaged.
            Conflict: another request has appended in the meantime.
        """
        if isinstance(graph.session, StreamingSession):
            computed = self._attend(graph.session, inputs, outputs)
        else:
            computed = execute(self._converted(self._fetched(inputs)), outputs)
        if self._appends:
            check_finite(computed)
            if self._is_past:
                new = [computed[name][..., self._state.length :, :] for name in PRESENT]
            else:
                new = self._new_rows()
            counts = [new[0].shape[-2]] * self.memory.description.rows
            self._cluster.append(self.memory, new[0], new[1], self._state.lengths, counts)
        return computed

    def _new_rows(self) -> list[np.ndarray]:
        """The request's own keys and values, in the memory's type and rank."""
        return [self._unshaped(self._new[name]).astype(self.memory.description.dtype) for name in KEY_VALUE]

    def _parts(self) -> dict[int, Part]:
        """The parts that have keys, by their numbers."""
        layout = self._snapshot.layout
        parts = {place: layout.part(place, self._state.lengths) for place in range(len(layout.parts))}
        return {place: part for place, part in parts.items() if max(part.lengths)}

    def _attend(self, session: StreamingSession, inputs: Arrays, outputs: Sequence[str]) -> dict[str, np.ndarray]:
        query, n = inputs["query"], inputs["key"].shape[2]
        first, last = attended_keys(inputs, query.shape[0], query.shape[2], n)
        shared = {name: inputs[name] for name in ("query", "scale", "softcap") if name in inputs}
        wanted, parts = part_outputs(outputs), self._parts()

        def own(part: Part) -> Arrays:
            return {"first_key": part.local(first), "last_key": part.local(last)}

        def ask(node: Any, held: Mapping[int, str]) -> Any:
            work = [(id, parts[place].lengths, own(parts[place])) for place, id in held.items()]
            return node.attend.remote(work, shared, session.scale, wanted)

        results = [(parts[place], answer) for place, answer in self._answers(parts, ask).items()]
        if self._appends:
            key, value = self._new_rows()
            part = Part(self._state.lengths, [key.shape[2]] * len(key))
            results.append((part, session.run({**shared, **own(part), "key": key, "value": value}, wanted)))
        return merge_parts(results, outputs, n)

    def _fetched(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """``inputs`` with all stored keys and values."""
        description, parts = self.memory.description, self._parts()

        def ask(node: Any, held: Mapping[int, str]) -> Any:
            return node.rows.remote([(id, parts[place].lengths) for place, id in held.items()])

        pieces = [(parts[place], rows) for place, rows in self._answers(parts, ask).items()]
        length = self._state.length
        if self._appends and not self._is_past:
            new = self._new_rows()
            count = new[0].shape[-2]
            pieces.append((Part(self._state.lengths, [count] * description.rows), new))
            length += count
        whole = [np.zeros(shape, description.dtype) for shape in description.shapes(length)]
        for part, rows in pieces:
            for row, (start, count) in enumerate(zip(part.starts, part.lengths, strict=True)):
                for array, own in zip(whole, rows, strict=True):
                    target = description.row(array, row)[..., start : start + count, :]
                    target[...] = description.row(own, row)[..., :count, :]
        return {**inputs, **{name: self._shaped(name, array) for name, array in zip(self.names, whole, strict=True)}}

    def _answers(self, parts: Mapping[int, Part], ask: Callable[[Any, Mapping[int, str]], Any]) -> dict[int, Any]:
        """The answers of holders of ``parts``. ``ask`` calls a node with the ids of its parts, by their numbers.

        Raises:
            PartsMissing, Gone, NotFound: no holder of a part answers or can read it, or the memory was deleted.
        """
        answers: dict[int, Any] = dict.fromkeys(parts)
        errors: dict[Holder, Exception | None] = {}  # of holders that did not answer
        waiting = {*parts}
        while waiting:
            chosen: dict[str, dict[int, str]] = {}
            for place in sorted(waiting):
                holder = self._holder(place, parts[place], errors, chosen)
                chosen.setdefault(holder.store, {})[place] = holder.id
            calls = {store: ask(self._snapshot.nodes[store], held) for store, held in chosen.items()}
            for store, call in calls.items():
                for (place, id), answer in zip(chosen[store].items(), _results(call, len(chosen[store])), strict=True):
                    if answer is None or isinstance(answer, (NotFound, Gone)):
                        errors[Holder(store, id)] = answer
                    elif isinstance(answer, Exception):
                        raise answer
                    else:
                        answers[place] = answer
                        waiting.discard(place)
        for holder, error in errors.items():
            if error is not None:
                self._cluster.drop(self.memory.id, holder)
        return answers

    def _holder(
        self, place: int, part: Part, errors: Mapping[Holder, Exception | None], chosen: Mapping[str, Mapping[int, str]]
    ) -> Holder:
        """The holder of a part with the fewest other parts to work on, among those that have not failed."""
        for is_last_try in (False, True):
            holders = self._snapshot.layout.parts[place].holders
            there = [holder for holder in holders if holder.store in self._snapshot.nodes and holder not in errors]
            if there:
                return min(there, key=lambda holder: len(chosen.get(holder.store, ())))
            if not is_last_try:
                self._snapshot = self._cluster.call("get", self.memory.id, None)  # it may have new copies
        damaged = [error for holder in holders if isinstance(error := errors.get(holder), Gone)]
        if damaged:
            raise damaged[0]
        raise missing(part)


def _results(call: Any, count: int) -> Sequence[Any]:
    """A node's answers for ``count`` parts; None for each if the node is lost."""
    try:
        answers: Sequence[Any] = ray.get(call, timeout=CALL_S)
        return answers
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except (ray.exceptions.RayError, TimeoutError):
        return [None] * count
