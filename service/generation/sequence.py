"""One sequence that grows token by token: how its tokens are chosen, and its answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log, prod

import numpy as np

from service.base.errors import Invalid
from service.generation.decoder import ITEM_BYTES, Decoder
from service.generation.past import Past
from service.generation.sampling import Sampler
from service.http.response import TEXT_BYTES
from service.interventions.intervenable import HIDDEN
from service.interventions.lens.steps import StepLens
from service.interventions.steps import SequenceChanges
from service.model.estimate import row_numbers
from service.ort.device_memory import Array
from service.selection.answer import Answer, graph_outputs, needs_answer, plan_answer
from service.selection.options import NO_SELECTION, Selection
from service.selection.reductions import largest
from service.tensors.dims import Sizes, dim_size
from service.tokens.next_tokens import TOKEN_BYTES

PREFILL = 256  # tokens of a prompt in one run
SCORE_COPIES = 5  # of the scores of one layer, that a run has at a time
LOGIT_COPIES = 16  # of the logits, most of them in float64, while the next token is chosen
LOGPROBS = "logprobs"  # the output that no graph has
TOKEN, LOGPROB, IDS, PROBABILITIES = "token", "logprob", "ids", "probabilities"  # of the arrays of a step
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is answered of each token: outputs of its step, options of the weights, how many alternatives, a lens."""

    outputs: Sequence[str] = ()
    selection: Selection = NO_SELECTION
    alternatives: int = 0
    lens: StepLens | None = None

    @property
    def of_graph(self) -> list[str]:
        return [name for name in self.outputs if name != LOGPROBS]


class GrowingSequence:
    """A prompt and the tokens behind it, of which there are at most ``most``.

    ``source`` are the encoder's inputs of a model with two stacks, or the pictures that tokens of the prompt stand for:
    the first run has all of these, and at most ``first_run`` tokens. ``past`` has its keys and values before it shares
    runs with other sequences: of ``computed`` tokens, all but the last one. Before ``begin`` it takes no memory.
    ``changes`` are those of its activations.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt: np.ndarray,
        most: int,
        source: Arrays,
        sampler: Sampler,
        wanted: Wanted,
        changes: SequenceChanges | None = None,
    ) -> None:
        self.decoder = decoder
        self.model = decoder.model
        self.prompt, self.length, self.most = len(prompt), len(prompt), most
        self.ids = prompt  # and zeros up to the most, from the first run on
        self.source, self.wanted, self.changes = source, wanted, changes
        self.past: Past | None = None
        self.computed = 0
        self.first_run = max([PREFILL, *(1 + place for place in self._last_placeholders())])
        self.encoded: dict[str, Array] = {}  # inputs of each step that the encoder has computed, and its mask
        self.has_ended = False
        self._sampler = sampler

    def begin(self) -> None:
        """Take the memory of its ids."""
        self.ids = np.concatenate([self.ids, np.zeros(self.most, np.int64)])

    def _last_placeholders(self) -> list[int]:
        """The last place of a token that stands for a row of each input of the source."""
        placeholders = self.model.signature.placeholders
        tokens = (one.token for name, one in placeholders.items() if name in self.source)
        return [int(np.flatnonzero(self.ids == token)[-1]) for token in tokens]

    @property
    def pictures(self) -> int:
        """How many pictures its prompt has."""
        return sum(len(self.source[name]) for name in self.model.signature.placeholders if name in self.source)

    @property
    def next_run(self) -> int:
        """The most tokens of its prompt in the next run."""
        return PREFILL if self.computed else self.first_run

    @property
    def end(self) -> int:
        """The largest number of tokens that it can have, with those of its prompt."""
        return self.prompt + self.most

    @property
    def is_alone(self) -> bool:
        """Whether it shares no runs with other sequences."""
        return self.changes is not None or self.wanted.lens is not None

    @property
    def remaining(self) -> int:
        """The most tokens that are still to be computed: the last one never is."""
        return self.end - 1 - self.computed

    def release(self) -> None:
        """Free what only steps need, after the last one."""
        self.encoded, self.past = {}, None
        if self.changes:
            self.changes.release()

    @property
    def memory(self) -> int:
        """Bytes of its keys and values at its end, and of those of the encoder."""
        kept = self.changes.kept_bytes if self.changes else 0
        return self.decoder.position_bytes * (1 + self.end + self.source_length) + kept

    def step_size(self, new: int, length: int) -> int:
        """Multiply-adds of a run of ``new`` tokens that ends with ``length``, about; the first has the encoder's."""
        spec = self.model.spec
        assert spec is not None, "only blocks generate"
        encoded = 0 if self.computed else self.source_length
        scores = sum(
            layers * heads * queries * keys
            for (layers, heads), queries, keys in (
                (self.decoder.heads("weights"), new, length),
                (self.decoder.heads("cross_weights"), new, self.source_length),
                (self.decoder.heads("encoder_weights"), encoded, encoded),
            )
        )
        before = self.changes.needs.size if self.changes and not self.computed else 0
        lens = self.wanted.lens.size if self.wanted.lens else 0
        return scores * dim_size(spec.depth, {}) + (new + self._source_rows) * spec.learned + before + lens

    @property
    def _source_rows(self) -> int:
        """Rows of the encoder, or of the pictures, in the next run."""
        spec = self.model.spec
        if self.computed or spec is None:
            return 0
        of_pictures = prod(dim_size(dim, {"images": self.pictures}) for dim in spec.image_rows) if self.pictures else 0
        return self.source_length + of_pictures

    def step_memory(self, new: int, length: int) -> int:
        """Bytes of a run of ``new`` tokens that ends with ``length``, about: scores, weights, activations, logits.

        The first run has the encoder's, too, whose weights are computed, whatever is requested.
        """
        rows = new if self.pictures else min(new, PREFILL)  # of a run
        numbers = LOGIT_COPIES * self.decoder.vocabulary
        numbers += (rows + self._source_rows) * row_numbers(self.model.signature, {})
        for weights, keys in (("weights", length), ("cross_weights", self.source_length)):
            layers, heads = self.decoder.heads(weights)
            numbers += (SCORE_COPIES * heads * rows + 2 * layers * heads) * keys
        if not self.computed:
            layers, heads = self.decoder.heads("encoder_weights")
            numbers += (SCORE_COPIES + layers) * heads * self.source_length**2
            _, heads = self.decoder.heads("vision_weights")
            positions = int(self.model.outputs["vision_weights"].shape[-1]) if heads else 0
            numbers += self.pictures * SCORE_COPIES * heads * positions**2
        memory = ITEM_BYTES * numbers + (self.wanted.lens.memory if self.wanted.lens else 0)
        if self.changes:
            memory += self.changes.memory(rows, length)
            memory += 0 if self.computed else self.changes.needs.memory + self.changes.needs.kept_bytes
        return memory

    @property
    def answer_bytes(self) -> int:
        """Upper bound on the JSON of one token, and on the arrays that it is made of.

        Raises:
            Invalid: the model does not have what an option selects.
        """
        sizes = {"batch": 1, "m": 1, "n": self.end - 1, "s": self.source_length}
        count = self.decoder.vocabulary if LOGPROBS in self.wanted.outputs else 0
        if self.wanted.of_graph:
            count += sum(output.count for output in self._plan(sizes).outputs)
        lens = self.wanted.lens
        tokens = 1 + self.wanted.alternatives + (lens.layers * (1 + lens.count) if lens else 0)
        return count * (ITEM_BYTES + TEXT_BYTES) + tokens * TOKEN_BYTES

    @property
    def source_length(self) -> int:
        """Positions of the encoder: as many as its tokens, or always the same number for a spectrogram."""
        if not self.decoder.generation.two_stacks:
            return 0
        length = self.model.outputs["cross_weights"].shape[-1]
        return length if isinstance(length, int) else next(iter(self.source.values())).shape[1]

    @property
    def graph_outputs(self) -> list[str]:
        """The outputs of the graph that its answers are made of."""
        return graph_outputs(self.wanted.of_graph, self.decoder.signature) if self.wanted.of_graph else []

    @property
    def step_outputs(self) -> list[str]:
        """The outputs of the graph that its steps need."""
        return [*dict.fromkeys([*self.graph_outputs, *([HIDDEN] if self.wanted.lens else [])])]

    def grow(self, logits: np.ndarray, outputs: Arrays, layers: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Choose the next token from ``logits`` [vocabulary]; ``outputs`` of its step have a batch of one row.

        ``layers`` are the logits of the lens.

        The arrays TOKEN, LOGPROB, IDS and PROBABILITIES of alternatives, and the outputs asked for.

        Raises:
            Invalid: a logit is not finite.
        """
        least, most = float(logits.min()), float(logits.max())
        if not (isfinite(least) and isfinite(most)):  # as is a NaN
            raise Invalid("the logits of the next token are not finite: the model overflows float32")
        token = self._sampler.choose(logits, self.ids[: self.length], self.length - self.prompt)
        self.ids[self.length] = token
        sizes = {"batch": 1, "m": 1, "n": self.length - 1, "s": self.source_length}
        self.length += 1
        # The logarithm of the sum that logits are divided by: powers in float32 take a tenth of the time, and their
        # errors, of random signs, leave 8 digits of the sum.
        normalizer = most + log(np.exp(logits - np.float32(most)).sum(dtype=np.float64))
        arrays = {TOKEN: np.asarray(token), LOGPROB: np.asarray(float(logits[token]) - normalizer)}
        if self.wanted.alternatives:
            ids, _ = largest(logits[None], self.wanted.alternatives)
            arrays |= {IDS: ids[0], PROBABILITIES: np.exp(logits[ids[0]].astype(np.float64) - normalizer)}
        if self.wanted.lens is not None and layers is not None:
            arrays |= self.wanted.lens.read(np.concatenate([layers, logits[None]]), token)
        if LOGPROBS in self.wanted.outputs:
            arrays[LOGPROBS] = (logits.astype(np.float64) - normalizer).astype(np.float32)
        return arrays | self._answered(outputs, sizes)

    def _plan(self, sizes: Sizes) -> Answer:
        """The answer of a step; of fewer keys than ``weights_top_k`` all are answered."""
        selection, keys = self.wanted.selection, sizes["n"] + sizes["m"]
        if selection.weights_top_k and selection.weights_top_k > keys:
            selection = replace(selection, weights_top_k=keys)
        return plan_answer(self.decoder.signature, self.wanted.of_graph, selection, sizes, self.model.name)

    def _answered(self, outputs: Arrays, sizes: Sizes) -> dict[str, np.ndarray]:
        """The outputs that are answered, without the axis of the batch."""
        if not outputs:
            return {}
        wanted, axes = self.wanted, self.decoder.batch_axes
        if not needs_answer(wanted.of_graph, wanted.selection, self.decoder.signature):
            return {name: array.squeeze(axes[name]) for name, array in outputs.items()}
        plan = self._plan(sizes)
        arrays = plan.apply(outputs)
        return {
            one.name: arrays[one.name].squeeze(one.axes.index(axes[one.source]))
            if axes[one.source] in one.axes
            else arrays[one.name]
            for one in plan.outputs
        }
