"""The runs of a sweep: one without changes, and then one for several cells of the grid, each a row of its batch.

Where there are graphs of the layers, a run begins at the first layer that its cells change: nothing below changes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from service.base.errors import Invalid
from service.engine.task import InferenceTask
from service.interventions.changes import COPIES, ITEM_BYTES
from service.interventions.intervenable import ANSWER, END, HEAD, HIDDEN, START, Intervenable, layer_name
from service.interventions.metrics import Metric
from service.interventions.request import ONE
from service.interventions.sites import along_of
from service.interventions.sweep.grid import LAYERS, Grid
from service.interventions.tasks import MAX_POSITIONS, batches, task_of
from service.interventions.values import OUTPUT, WHOLE, Values, check_memory
from service.model.estimate import RunEstimate, number_count
from service.model.graph import Arrays, Graph, RunOptions
from service.model.model import Model
from service.selection.indices import Indices
from service.tensors.cast import is_finite
from service.tokens.next_tokens import last_places

MAX_CELLS = 1 << 16
MAX_ROWS = 64  # of a run
CELL_BYTES = 64  # memory for each number, as an array and as JSON


class Sweep:
    """The sweep of a request; ``inputs`` are those of its run, of one row. ``position`` is that of the output.

    Raises:
        Invalid: an index out of range, a tensor of another shape, or too many cells; ``field`` names it.
    """

    def __init__(
        self,
        version: Intervenable,
        values: Values,
        inputs: Arrays,
        axes: tuple[str, ...],
        metric: Metric,
        position: int | None,
    ) -> None:
        self._version, self.inputs, self.metric, self.position = version, inputs, metric, position
        self.model: Model = values.model
        # Another run that was sent without images is run with those of the sweep: the metric's output may need some.
        omissible = {name: array for name, array in inputs.items() if name in self.model.signature.omissible}
        others = {run: {**omissible, **its} for run, its in values.inputs.items()}
        self._values = values = replace(values, inputs=others)
        self.sizes = self.model.bind(inputs)
        metric.check(self.model, self.sizes)
        values.check_places(inputs, self.sizes)
        (intervention,) = values.interventions
        try:
            place = values.place(intervention, inputs, self.sizes)
        except Invalid as error:
            axis = (error.field or "").removeprefix(f"{ONE}.")
            if axis not in axes:
                raise
            raise Invalid(error.detail.removeprefix(f"{error.field}: "), f"over.{axis}") from None
        self.grid = Grid(place, axes)
        if self.grid.count > MAX_CELLS:
            raise Invalid(f"expected a grid of at most {MAX_CELLS:,} cells, got {self.grid.count:,}", "over")
        self.numbers = np.full(self.grid.shape, np.nan)
        if position is not None and len(self.model.outputs[metric.of].shape) == 2:
            raise Invalid(f"not accepted: {metric.of} has no positions", "position")
        self.unchanged = self.source = np.nan  # the numbers of the run without changes, and of the one in ``from``
        self._hidden: np.ndarray | None = None  # hidden states without changes: [layers + 1, 1, positions, width]
        self._scores: np.ndarray | None = None  # those of the answer without changes: [width]
        self._value: np.ndarray | None = None

    @property
    def graphs(self) -> list[str]:
        """The graphs that its runs need."""
        parts = [HEAD, *map(layer_name, range(self.grid.place.shape[LAYERS]))]
        return [WHOLE, *(parts if self._starts else [OUTPUT])]

    @property
    def kept_bytes(self) -> int:
        """Bytes of what its runs share, and of its numbers."""
        hidden = number_count(self.model.signature, [HIDDEN], self.sizes) if self._starts else 0
        return ITEM_BYTES * (hidden + prod(self.grid.place.selected)) + CELL_BYTES * self.grid.count

    def first_task(self, max_bytes: int) -> InferenceTask:
        """The run without changes, and those whose activations the changes take.

        Raises:
            TooMuchMemory: more than ``max_bytes``.
        """
        graph = self._version.graphs.graph(WHOLE)
        estimate = self._values.estimate(graph, self.inputs, [self.metric.of], max_bytes, has_own=True)
        check_memory(estimate.memory, max_bytes)
        return task_of(self.model, estimate, self.compute_unchanged)

    def tasks(self, max_bytes: int) -> Iterator[InferenceTask]:
        """The runs of all cells. As many share a run as ``max_bytes`` allow.

        Raises:
            TooMuchMemory: the run of one cell needs more.
        """
        place = self.grid.place
        length = place.shape[along_of(place.intervention.at)]
        rows = max(1, min(MAX_ROWS, MAX_POSITIONS // max(1, length)))
        for layers, cells in self.grid.cells_of_layers():
            for some, estimate in batches(cells, rows, partial(self._estimate, max_bytes, layers)):
                yield task_of(self.model, estimate, partial(self.compute_cells, layers, some))

    def compute_unchanged(self, graph: Graph, options: RunOptions | None) -> None:
        """Run the model without changes, and the other runs.

        Raises:
            Invalid: an activation is not finite.
        """
        outputs = [self.metric.of]
        runs = self._values.runs(graph, self.inputs, options, outputs, [*outputs, *([HIDDEN] if self._starts else [])])
        self._hidden = runs[None].outputs.get(HIDDEN)
        self._value = self._values.value(self.grid.place, runs, self.inputs)
        scores = self._at_position(runs[None].outputs[self.metric.of], self.inputs).copy()
        self._scores = scores[0]
        self.unchanged = float(self.metric(scores, scores[0])[0])
        source = self.grid.place.intervention.source
        if source is not None:
            theirs = runs[source].outputs[self.metric.of]
            has_images = theirs.shape[-1] == scores.shape[-1]  # as many as the sweep
            length = theirs.shape[1] if theirs.ndim > 2 else 0
            if has_images and (self.position is None or not length or -length <= self.position < length):
                scores_there = self._at_position(theirs, self._values.inputs[source])
                self.source = float(self.metric(scores_there, scores[0])[0])

    def compute_cells(self, layers: Sequence[int], cells: np.ndarray, graph: Graph, options: RunOptions | None) -> None:
        """Compute the numbers of ``cells``, which change ``layers``.

        Raises:
            Invalid: the output is not finite.
        """
        assert self._scores is not None, "the unchanged run is first"
        inputs = self._version.in_rows(self.inputs, len(cells))
        if self._starts:
            output = self._through_layers(graph, layers, cells, inputs, options)
        else:
            inputs |= self.grid.inputs(cells, self._value, graph, None)
            output = self.model.run(graph, inputs, [self.metric.of], options)
        scores = self._at_position(output[self.metric.of], self.inputs)
        if not is_finite(scores):
            raise Invalid(f"{self.metric.of} is not finite after a change: it overflows float32", ONE)
        for cell, number in zip(cells.tolist(), self.metric(scores, self._scores), strict=True):
            self.numbers[tuple(cell)] = number

    def _through_layers(
        self, graph: Graph, layers: Sequence[int], cells: np.ndarray, inputs: Arrays, options: RunOptions | None
    ) -> dict[str, np.ndarray]:
        """The output, from the unchanged hidden states before the first of ``layers``."""
        assert self._hidden is not None, "the unchanged run is first"
        hidden = np.repeat(self._hidden[layers[0]], len(cells), axis=0)
        for layer in range(layers[0], self.grid.place.shape[LAYERS]):
            part = self._version.graphs.beside(graph, layer_name(layer))
            changes = self.grid.inputs(cells, self._value, part, layer) if layer in layers else {}
            hidden = self.model.run(part, {**inputs, **changes, START: hidden}, [END], options)[END]
        head = self._version.graphs.beside(graph, HEAD)
        if self.metric.of == ANSWER and self._version.sites.has_positionwise_head:
            place = [self._place(hidden.shape[1], self.inputs)]
            hidden, inputs = np.ascontiguousarray(hidden[:, place]), self._version.at_positions(inputs, place)
        return self.model.run(head, {**inputs, START: hidden}, [self.metric.of], options)

    def _estimate(self, max_bytes: int, layers: Sequence[int], rows: int) -> RunEstimate:
        inputs = self._version.rows_of(self.inputs, rows)
        graph = self._version.graphs.graph(WHOLE if self._starts else OUTPUT)
        sizes = self._version.sizes_of(self.sizes, rows)
        own = self._values.estimate_own(graph, inputs, [self.metric.of], max_bytes, sizes)
        shape = self.grid.place.shape
        changed = shape[1:] if self._starts else shape
        memory = own.memory + COPIES * ITEM_BYTES * rows * prod(changed)
        check_memory(memory, max_bytes)
        size = own.size * (shape[LAYERS] - layers[0]) // shape[LAYERS] if self._starts else own.size
        return replace(own, graph=graph, size=size, memory=memory)

    @property
    def _starts(self) -> bool:
        """Whether runs begin at the first layer that changes."""
        return self._version.sites.has_layers

    def _place(self, length: int, inputs: Arrays) -> int:
        """The position of the output: by default the last token of a language model, the first one of others.

        ``inputs`` have one row.
        """
        if self.position is not None:
            return int(np.arange(length)[Indices((self.position,)).resolve("position", length)][0])
        return int(last_places(inputs, 1, length)[0]) if self.model.signature.predicts_tokens else 0

    def _at_position(self, output: np.ndarray, inputs: Arrays) -> np.ndarray:
        """The scores or the vector of each row: at one position, if the output has several. All rows are those of the
        one row of ``inputs``."""
        if output.ndim == 2:
            return output
        return output[:, self._place(output.shape[1], inputs) if output.shape[1] > 1 else 0]
