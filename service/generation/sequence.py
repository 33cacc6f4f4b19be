"""One sequence that grows token by token: its keys and values, and the run of each step as a task of the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.base.errors import Invalid
from service.engine.task import Execute, InferenceTask
from service.generation.decoder import DECODE, ENCODER, ITEM_BYTES, LOGITS, OUTPUT, PAST, Decoder
from service.generation.sampling import Sampler, softmax
from service.http.response import TEXT_BYTES
from service.model.estimate import RunEstimate
from service.model.graph import Graph
from service.ort.io_binding import run_into
from service.selection.answer import Answer, graph_outputs, needs_answer, plan_answer
from service.selection.options import NO_SELECTION, Selection
from service.selection.reductions import largest
from service.tensors.dims import Sizes, dim_size
from service.tokens.next_tokens import TOKEN_BYTES

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
        self.model = decoder.model
        self.prompt, self.length, self.most = len(prompt), len(prompt), most
        self.ids = np.concatenate([prompt, np.zeros(most, np.int64)])
        self._source, self._sampler, self._wanted = source, sampler, wanted
        self._computed = 0  # tokens whose keys and values are in the buffers
        self._buffers: dict[str, np.ndarray] = {}
        self._encoded: dict[str, np.ndarray] = {}  # inputs of each step that the encoder has computed, and its mask

    @property
    def memory(self) -> int:
        """Bytes of its keys and values at its end, and of those of the encoder."""
        return self.decoder.position_bytes * (1 + len(self.ids) + self._source_length)

    def task(self, deadline: int | None = None) -> InferenceTask:
        """The run of the next step: of the prompt at first, then of the last token."""
        new, model = self.length - self._computed, self.model
        sizes, spec = {"batch": 1, "m": new, "n": self._computed}, model.spec
        assert spec is not None, "only blocks generate"
        layers, heads = self._heads
        size = layers * heads * new * self.length * dim_size(spec.depth, sizes) + new * spec.learned
        graph = self.decoder.graph(DECODE if self._wanted.of_graph else OUTPUT)
        estimate = RunEstimate(sizes, graph, size, self.step_memory(new, self.length))
        return InferenceTask(model, estimate, {}, (), deadline=deadline, stored=self)

    @property
    def _heads(self) -> tuple[int, int]:
        layers, _, heads, *_ = self.model.outputs["weights"].shape
        return int(layers), int(heads)

    def step_memory(self, new: int, length: int) -> int:
        """Bytes of a run of ``new`` tokens that ends with ``length``, about: scores, weights, logits."""
        layers, heads = self._heads
        scores = heads * min(new, PREFILL) * length
        return ITEM_BYTES * (4 * scores + 2 * layers * heads * length + 4 * self.decoder.vocabulary)

    @property
    def answer_bytes(self) -> int:
        """Upper bound on the JSON of one token, and on the arrays that it is made of.

        Raises:
            Invalid: the model does not have what an option selects.
        """
        sizes = {"batch": 1, "m": 1, "n": len(self.ids) - 1, "s": self._source_length}
        count = self.decoder.vocabulary if LOGPROBS in self._wanted.outputs else 0
        if self._wanted.of_graph:
            count += sum(output.count for output in self._plan(sizes).outputs)
        return count * (ITEM_BYTES + TEXT_BYTES) + (1 + self._wanted.alternatives) * TOKEN_BYTES

    def _plan(self, sizes: Sizes) -> Answer:
        """The answer of a step; of fewer keys than ``weights_top_k`` all are answered."""
        selection, keys = self._wanted.selection, sizes["n"] + sizes["m"]
        if selection.weights_top_k and selection.weights_top_k > keys:
            selection = replace(selection, weights_top_k=keys)
        return plan_answer(self.decoder.signature, self._wanted.of_graph, selection, sizes, self.model.name)

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
        """Positions of the encoder: as many as its tokens, or always the same number for a spectrogram."""
        if not self.decoder.generation.two_stacks:
            return 0
        length = self.model.outputs["encoder_weights"].shape[-1]
        return length if isinstance(length, int) else next(iter(self._source.values())).shape[1]

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

    def _answered(self, outputs: Arrays, sizes: Sizes) -> dict[str, np.ndarray]:
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
        plan = self._plan(sizes)
        arrays = plan.apply(outputs)
        return {
            one.name: arrays[one.name].squeeze(one.axes.index(batch[one.source]))
            if batch[one.source] in one.axes
            else arrays[one.name]
            for one in plan.outputs
        }
