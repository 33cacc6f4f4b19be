"""The runs of a lens (nostalgebraist, interpreting GPT: the logit lens, 2020): the model, then its head on each layer.

The head takes the hidden states that go into each layer. What it makes of those behind the last one is the output.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from service.base.errors import Invalid
from service.engine.task import InferenceTask
from service.interventions.changes import ITEM_BYTES
from service.interventions.comparison import Changes
from service.interventions.intervenable import ANSWER, HEAD, HIDDEN, START, Intervenable
from service.interventions.intervened import Intervened
from service.interventions.tasks import MAX_POSITIONS, batches, task_of
from service.interventions.values import Values, check_memory
from service.model.estimate import RunEstimate, number_count
from service.model.graph import Arrays, Graph, RunOptions
from service.selection.indices import Indices
from service.selection.reductions import largest
from service.tensors.cast import is_finite
from service.tokens.next_tokens import last_places, vocabulary_size

TOKEN_BYTES = 256  # memory for each token of the answer, as arrays and as JSON
LOGIT_COPIES = 3  # logits, their powers, and an order of them
NOT_FINITE = "a logit is not finite: the inputs overflow float32"


class Lens:
    """The lens of a request; ``inputs`` are those of its run, of one row, ``values`` those of its interventions."""

    def __init__(
        self,
        version: Intervenable,
        values: Values,
        inputs: Arrays,
        count: int,
        selected: Mapping[str, Indices],
    ) -> None:
        self._version, self.model, self.inputs = version, values.model, inputs
        self._sizes = sizes = self.model.bind(inputs)
        self._intervened = Intervened(values, Changes(values.interventions))
        self._intervened.add_to(inputs)
        layers, _, length, _ = version.sites.shape("hidden", sizes)
        self.layers = _chosen("layers", selected, layers + 1)
        self.positions = _chosen("positions", selected, length)
        shape = len(self.layers), len(self.positions)
        self.indices = np.zeros((*shape, count), np.int64)
        self.probabilities = np.zeros((*shape, count))
        self.output_probabilities = np.zeros(shape)  # of the output's likeliest token
        self.ranks = np.zeros(shape, np.int64)  # 1 = the likeliest; 0 = no token follows
        self._last_layer, self._length = layers, length
        self._below = [place for place, layer in enumerate(self.layers.tolist()) if layer < layers]
        self._targets = self._target_tokens(length)
        self._hidden: np.ndarray | None = None  # [layers + 1, 1, positions, width]
        self._predicted = np.zeros(len(self.positions), np.int64)  # the output's likeliest tokens

    @property
    def kept_bytes(self) -> int:
        """Bytes of what its runs share, and of its answer."""
        hidden = number_count(self.model.signature, [HIDDEN], self._sizes)
        return ITEM_BYTES * hidden + TOKEN_BYTES * self.indices.size

    def first_task(self, max_bytes: int) -> InferenceTask:
        """The run of the model, with its changes.

        Raises:
            TooMuchMemory: more than ``max_bytes``.
        """
        outputs = [HIDDEN, ANSWER]
        estimate = self._intervened.estimate(self.inputs, outputs, max_bytes)
        if self._below:
            self._estimate(max_bytes, 1)  # which would else be refused after this run
        return task_of(self.model, estimate, self.compute_states)

    def tasks(self, max_bytes: int) -> Iterator[InferenceTask]:
        """The runs of the head.

        Raises:
            TooMuchMemory: that of one layer needs more than ``max_bytes``.
        """
        rows = max(1, MAX_POSITIONS // self._positions_of_run)
        for some, estimate in batches(self._below, rows, partial(self._estimate, max_bytes)):
            yield task_of(self.model, estimate, partial(self.compute_layers, some))

    def compute_states(self, graph: Graph, options: RunOptions | None) -> None:
        """Compute the hidden states, the likeliest tokens of the output, and the lens of the last layer.

        Raises:
            Invalid: a number is not finite.
        """
        execute = partial(self.model.run, graph, options=options)
        outputs = self._intervened.run(graph, execute, self.inputs, [HIDDEN, ANSWER], options)
        self._hidden = outputs[HIDDEN]
        logits = outputs[ANSWER]
        self._predicted = _first_likeliest(logits[0], self.positions)
        for place in np.flatnonzero(self.layers == self._last_layer):
            self._read(logits[:, self.positions], [int(place)])

    def compute_layers(self, places: Sequence[int], graph: Graph, options: RunOptions | None) -> None:
        """Compute the lens of the layers at ``places`` of ``layers``.

        Raises:
            Invalid: a number is not finite.
        """
        assert self._hidden is not None, "the model's run is first"
        hidden, inputs = self._hidden[self.layers[[*places]], 0], self.inputs
        is_positionwise = self._version.sites.has_positionwise_head
        if is_positionwise:
            hidden, inputs = hidden[:, self.positions], self._version.at_positions(inputs, self.positions.tolist())
        inputs = self._version.in_rows(graph.select_inputs(inputs), len(places)) | {START: np.ascontiguousarray(hidden)}
        logits = self.model.run(graph, inputs, [ANSWER], options)[ANSWER]
        self._read(logits if is_positionwise else logits[:, self.positions], places)

    def _read(self, logits: np.ndarray, places: Sequence[int]) -> None:
        """Keep the likeliest tokens of ``logits`` [layers, positions, vocabulary], the probabilities of the output's
        tokens, and the ranks of the next ones.
        """
        for place, scores in zip(places, logits, strict=True):
            totals = log_totals(scores)
            self.indices[place], self.probabilities[place] = likeliest(scores, totals, self.indices.shape[-1])
            predicted = np.take_along_axis(scores, self._predicted[:, None], -1)
            self.output_probabilities[place] = np.exp(predicted - totals)[:, 0]
            known = np.flatnonzero(self._targets >= 0)
            self.ranks[place, known] = ranks_of(self._targets[known], scores[known])

    def _target_tokens(self, length: int) -> np.ndarray:
        """The token that each position predicts: the next one, or of masked models its own; -1 where there is none."""
        ids = next((self.inputs[name] for name in ("decoder_input_ids", "input_ids") if name in self.inputs), None)
        if ids is None:
            return np.full(len(self.positions), -1)
        targets = np.asarray(ids[0], np.int64)
        if self.model.signature.predicts_tokens:
            targets = np.append(targets[1:], -1)
            targets[last_places(self.inputs, 1, length)[0] :] = -1
        chosen: np.ndarray = targets[self.positions]
        return chosen

    def _estimate(self, max_bytes: int, rows: int) -> RunEstimate:
        graph = self._version.graphs.graph(HEAD)
        numbers = rows * self._positions_of_run * vocabulary_size(self.model)
        memory = ITEM_BYTES * LOGIT_COPIES * numbers
        check_memory(memory, max_bytes)
        width = int(self.model.outputs[HIDDEN].shape[-1])
        return RunEstimate({**self._sizes, "batch": rows}, graph, numbers * width, memory)

    @property
    def _positions_of_run(self) -> int:
        return len(self.positions) if self._version.sites.has_positionwise_head else self._length


def log_totals(logits: np.ndarray) -> np.ndarray:
    """The logarithm of the sum of exp(``logits``) [rows, vocabulary] over each row: [rows, 1].

    Raises:
        Invalid: a logit is not finite.
    """
    if not is_finite(logits):
        raise Invalid(NOT_FINITE, ANSWER)
    most = logits.max(-1, keepdims=True)
    totals: np.ndarray = most + np.log(np.exp(logits - most).sum(-1, keepdims=True, dtype=np.float64))
    return totals


def likeliest(logits: np.ndarray, totals: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` likeliest tokens of ``logits`` [rows, vocabulary], and their probabilities; see ``log_totals``."""
    indices, values = largest(logits, count)
    return indices, np.exp(values - totals)


def _first_likeliest(logits: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The likeliest token at each of ``positions`` of ``logits`` [n, vocabulary], of equal ones the first.

    Raises:
        Invalid: its logit is not finite.
    """
    tokens: np.ndarray = logits.argmax(-1)[positions]  # a copy of these rows would take longer
    if not is_finite(logits[positions, tokens]):
        raise Invalid(NOT_FINITE, ANSWER)
    return tokens


def ranks_of(tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """The ranks of ``tokens`` [rows], 1 for the likeliest."""
    ranks: np.ndarray = 1 + (logits > np.take_along_axis(logits, tokens[:, None], -1)).sum(-1)
    return ranks


def _chosen(axis: str, selected: Mapping[str, Indices], size: int) -> np.ndarray:
    every = np.arange(size)
    return np.ascontiguousarray(every[selected[axis].resolve(axis, size)]) if axis in selected else every
