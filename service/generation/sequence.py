"""One sequence that grows token by token: its keys and values, and the run of each step as a task of the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.base.errors import Invalid
from service.engine.task import Execute, InferenceTask
from service.generation.decoder import DECODE, ENCODER, ITEM_BYTES, LOGITS, OUTPUT, PAST, Decoder
from service.generation.sampling import Sampler, softmax
from service.model.estimate import RunEstimate
from service.model.graph import Graph
from service.ort.io_binding import run_into
from service.selection.answer import graph_outputs, needs_answer, plan_answer
from service.selection.options import NO_SELECTION, Selection
from service.selection.reductions import largest
from service.tensors.dims import dim_size

PREFILL = 256  # tokens of a prompt in one run
LOGPROBS = "logprobs"  # the output that no graph has
TOKEN, LOGPROB, IDS, PROBABILITIES = "token", "logprob", "ids", "probabilities"  # of the arrays of a step
MASK = "attention_mask"
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is answered of each token: outputs of its step, options of the weights, and how many alternatives."""

    outputs: Sequence[str] = ()
    selection: Selection = NO_SELECTION
    alternatives: int = 0

    @property
    def of_graph(self) -> list[str]:
        return [name for name in self.outputs if name != LOGPROBS]


class GrowingSequence:
    """A prompt and the tokens behind it, of which there are at most ``most``.

    ``source`` are the encoder's inputs of a model with two stacks. Keys and values stay in buffers for the longest
    sequence, of which ONNX Runtime reads the first rows and writes the next ones; the first row is zeros.
    """

    is_quick = False  # a step shares no run, and runs in a thread

    def __init__(
        self, decoder: Decoder, prompt: np.ndarray, most: int, source: Arrays, sampler: Sampler, wanted: Wanted
    ) -> None:
        self.decoder = decoder
        self.prompt, self.length, self.most = len(prompt), len(prompt), most
        self.ids = np.concatenate([prompt, np.zeros(most, np.int64)])
        self._source, self._sampler, self._wanted = source, sampler, wanted
        self._computed = 0  # tokens whose keys and values are in the buffers
        self._buffers: dict[str, np.ndarray] = {}
        self._encoded: dict[str, np.ndarray] = {}  # inputs of each step that the encoder has computed, and its mask

    @property
    def memory(self) -> int:
        """Bytes of its keys and values at its end, and of those of the encoder."""
        heads = self.decoder.position_bytes
        source = max((array.shape[1] for array in self._source.values() if array.ndim == 2), default=0)
        if self.decoder.generation.two_stacks and not source:
            source = int(self.decoder.model.outputs["encoder_weights"].shape[-1])  # of a spectrogram
        return heads * (1 + len(self.ids) + source)

    def task(self, deadline: int | None = None) -> InferenceTask:
        """The run of the next step: of the prompt at first, then of the last token."""
        new = self.length - self._computed
        sizes = {"batch": 1, "m": new, "n": self._computed}
        model = self.decoder.model
        spec = model.spec
        assert spec is not None, "only blocks generate"
        layers, _, heads, *_ = (dim_size(dim, {"batch": 1, "n": 1, "m": 1}) for dim in model.outputs["weights"].shape)
        scores = layers * heads * new * self.length
        size = scores * dim_size(spec.depth, sizes) + new * spec.learned
        rows = min(new, PREFILL)
        memory = ITEM_BYTES * (4 * heads * rows * self.length + 2 * layers * heads * self.length)
        memory += 16 * self.decoder.vocabulary
        graph = self.decoder.graph(DECODE if self._wanted.of_graph else OUTPUT)
        task = InferenceTask(model, RunEstimate(sizes, graph, size, memory), {}, (), stored=self)
        task.deadline = deadline
        return task

    def verify(self) -> None:
        """Nothing is to be checked."""

    def run(self, graph: Graph, _execute: Execute, _inputs: Arrays, _outputs: Sequence[str]) -> dict[str, np.ndarray]:
        """Choose the next token: the arrays TOKEN, LOGPROB, IDS and PROBABILITIES of alternatives, and the outputs.

        Raises:
            Invalid: a logit is not finite.
        """
        if not self._buffers:
            self._begin()
        logits = np.empty((1, self.decoder.vocabulary), np.float32)
        while (new := self.length - 1 - self._computed) > 0:
            size = min(new, PREFILL)
            self._step(self.decoder.graph(OUTPUT).for_size(size * self.length, False), size, {LOGITS: logits})
        names = graph_outputs(self._wanted.of_graph, self.decoder.signature) if self._wanted.of_graph else []
        sizes = {"batch": 1, "m": 1, "n": self._computed, "s": self._source_length}
        shapes = self.decoder.output_shapes(names, sizes) if names else {}
        outputs = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
        self._step(graph, 1, {LOGITS: logits, **outputs})
        return self._chosen(logits[0]) | self._answered(outputs, sizes)

    def _begin(self) -> None:
        """Allocate the buffers, and run the encoder."""
        rows = 1 + len(self.ids)
        self._buffers = {name: np.empty((rows, 1, *shape), np.float32) for name, shape in self.decoder.past.items()}
        for buffer in self._buffers.values():
            buffer[0] = 0
        if not self.decoder.generation.two_stacks:
            return
        session = self.decoder.graph(ENCODER).session
        names = [node.name for node in session.onnx.get_outputs() if node.name.startswith("cross_")]
        self._encoded = session.run(self._source, names)
        if MASK in {node.name for node in self.decoder.graph(OUTPUT).session.onnx.get_inputs()}:
            self._encoded[MASK] = np.ones((1, self._source_length), np.int64)

    @property
    def _source_length(self) -> int:
        return next((len(array) for name, array in self._encoded.items() if name != MASK), 0)

    def _step(self, graph: Graph, new: int, outputs: Arrays) -> None:
        """Compute ``new`` tokens, whose keys and values go to the buffers, and the ``outputs``."""
        past, end = self._computed, self._computed + new
        inputs = {self.decoder.ids: self.ids[None, past:end], **self._encoded}
        if not self.decoder.generation.two_stacks:
            inputs[MASK] = np.ones((1, end), np.int64)
        inputs |= {f"{PAST}{name}": buffer[: 1 + past] for name, buffer in self._buffers.items()}
        written = {name: buffer[1 + past : 1 + end] for name, buffer in self._buffers.items()}
        run_into(graph.session.onnx, inputs, {**outputs, **written})
        self._computed = end

    def _chosen(self, logits: np.ndarray) -> dict[str, np.ndarray]:
        if not np.isfinite(logits).all():
            raise Invalid("the logits of the next token are not finite: the model overflows float32")
        scores = logits.astype(np.float64)
        token = self._sampler.choose(scores, self.ids[: self.length], self.length - self.prompt)
        self.ids[self.length] = token
        self.length += 1
        p = softmax(scores)
        with np.errstate(divide="ignore"):
            logprobs = np.log(p)
        chosen = {TOKEN: np.int64(token), LOGPROB: np.float64(logprobs[token])}
        arrays = {name: np.asarray(number) for name, number in chosen.items()}
        if self._wanted.alternatives:
            ids, _ = largest(logits[None], self._wanted.alternatives)
            arrays |= {IDS: ids[0], PROBABILITIES: p[ids[0]]}
        if LOGPROBS in self._wanted.outputs:
            arrays[LOGPROBS] = logprobs.astype(np.float32)
        return arrays

    def _answered(self, outputs: Arrays, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        """The outputs that are answered, without the axis of the batch."""
        wanted, signature = self._wanted, self.decoder.signature if outputs else None
        if signature is None:
            return {}
        requested = wanted.of_graph
        batch = {
            name: [*map(str, one.shape)].index("batch") - len(one.shape) for name, one in signature.outputs.items()
        }
        if not needs_answer(requested, wanted.selection, signature):
            return {name: array.squeeze(batch[name]) for name, array in outputs.items()}
        plan = plan_answer(signature, requested, wanted.selection, dict(sizes), self.decoder.model.name)
        arrays = plan.apply(outputs)
        return {
            one.name: arrays[one.name].squeeze(one.axes.index(batch[one.source]))
            if batch[one.source] in one.axes
            else arrays[one.name]
            for one in plan.outputs
        }
