"""The runs of sequences: of a prompt, and then of one new token of each sequence that shares the run.

Sequences of different lengths share a run by zeros before the shorter ones, which a mask leaves out (continuous
batching: Yu et al., Orca, OSDI 2022). All of them read the model's weights once, which is most of a step's time.
"""

from collections.abc import Sequence

import numpy as np

from service.engine.task import Execute, InferenceTask, StoredInputs
from service.generation.decoder import CHANGED, DECODE, ENCODER, LOGITS, OUTPUT, Decoder
from service.generation.past import Past
from service.generation.sequence import Arrays, GrowingSequence
from service.interventions.intervenable import HIDDEN
from service.model.estimate import RunEstimate
from service.model.graph import Graph, RunOptions
from service.ort.device_memory import Array
from service.ort.failures import RUN_ERRORS
from service.ort.io_binding import run_into

MASK = "attention_mask"
PICTURES_BEFORE = "pictures_before"
KEYS = "n + m"  # the dimension of an output that has all keys
MAX_SHARED = 32  # sequences in a run: with more, a step is no longer bound by reading the model's weights
Step = Arrays | Exception


class SequenceGroup(StoredInputs):
    """Sequences in the slots of one past. ``members`` are those of the next run, ``steps`` the results of the last one.

    A sequence that is no longer a member leaves its slot, with a past of its own unless it has ended.
    """

    def __init__(self, sequence: GrowingSequence) -> None:
        self.decoder: Decoder = sequence.decoder
        self.members = [sequence]
        self.steps: dict[GrowingSequence, Step] = {}
        self._slots: list[GrowingSequence | None] = [sequence]
        self.past: Past | None = None

    def task(self, deadline: int | None = None, is_accepted: bool = False) -> InferenceTask:
        """The run of the next step of all members."""
        lead, model = self.members[0], self.decoder.model
        new = lead.length - lead.computed if self.past is None else 1
        slots, _, end = self._layout()
        graph = self.decoder.graph(self._name(DECODE if any(one.step_outputs for one in self.members) else OUTPUT))
        size, memory = slots * lead.step_size(new, end + new), slots * lead.step_memory(new, end + new)
        estimate = RunEstimate({"batch": slots, "m": new, "n": end}, graph, size, memory)
        return InferenceTask(
            model,
            estimate,
            {},
            (),
            deadline=deadline,
            stored=self,
            is_accepted=is_accepted,
            is_step=self.past is not None,
        )

    def accepts(self, sequence: GrowingSequence, others: Sequence[GrowingSequence], max_bytes: int) -> bool:
        """Whether ``sequence`` may share runs with ``others``, which may need ``max_bytes``.

        It does where the zeros cost less than the weights that need not be read for it.
        """
        together = [*others, sequence]
        longest, count = max(one.length for one in together), len(together)
        zeros = count * longest - sum(one.length for one in together)
        return (
            self.decoder.generation.shares_runs
            and not any(one.is_alone for one in together)
            and count <= MAX_SHARED
            and self._are_few(zeros)
            and count * sequence.step_memory(1, longest + sequence.remaining) <= max_bytes
        )

    @property
    def extra_bytes(self) -> int:
        """Bytes of the past of the next run, beyond those that its members have reserved for theirs."""
        slots, rows, _ = self._layout()
        return max(0, slots * rows - sum(one.end for one in self.members)) * self.decoder.position_bytes

    def run(
        self, graph: Graph, _execute: Execute, _inputs: Arrays, _outputs: Sequence[str], options: RunOptions | None
    ) -> dict[str, np.ndarray]:
        """Compute the next step of each member: ``steps``.

        Raises:
            OutOfMemory, NotEnoughMemory, DeviceLost: the device cannot run it now, or has failed.
        """
        try:
            if self.past is None:
                self.past = self._begun(self.members[0], graph, options)
            past = self.past = self._arranged(self.past)
            names = dict.fromkeys(name for one in self.members for name in one.step_outputs)
            sizes = {"batch": past.slots, "m": 1, "n": past.end, "s": self.members[0].source_length}
            shapes = self.decoder.output_shapes([*names], sizes) if names else {}
            outputs = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
            logits = np.empty((past.slots, self.decoder.vocabulary), np.float32)
            lead = self.members[0]
            self._compute(graph, past, lead.length - lead.computed, {LOGITS: logits, **outputs}, options)
            lens, token = lead.wanted.lens, int(lead.ids[lead.length - 1])
            layers = lens.logits(graph, outputs[HIDDEN], token, options) if lens else None
        except RUN_ERRORS as error:
            raise (self.decoder.model.provider.translate(error) or error) from None
        self.steps = {
            one: self._step(one, slot, logits[slot], outputs, layers)
            for slot, one in enumerate(self._slots)
            if one is not None
        }
        return {}

    def separated(self, sequence: GrowingSequence) -> Past:
        """The past of a member, which leaves its slot, for runs of its own."""
        own, sequence.past = sequence.past, None
        if own is None:
            assert self.past is not None
            slot = self._slots.index(sequence)
            own = _taken(self.past, slot, sequence)
            self._slots[slot] = None
        return own

    def _step(
        self, sequence: GrowingSequence, slot: int, logits: np.ndarray, outputs: Arrays, layers: np.ndarray | None
    ) -> Step:
        try:
            of_slot = {name: self._of_slot(name, outputs[name], slot, sequence) for name in sequence.graph_outputs}
            return sequence.grow(logits, of_slot, layers)
        except Exception as error:  # it is this sequence's, not its group's
            return error

    def _name(self, graph: str) -> str:
        """The name of a graph, or of that with changes."""
        return f"{graph}{CHANGED}" if self.members[0].changes else graph

    def _of_slot(self, name: str, array: np.ndarray, slot: int, sequence: GrowingSequence) -> np.ndarray:
        """An output of a step with the batch of ``slot`` alone, and without the keys before the first token."""
        if len(self._slots) > 1:
            array = array.take([slot], self.decoder.batch_axes[name])
        has_keys = self.decoder.signature.outputs[name].shape[-1] == KEYS
        return np.ascontiguousarray(array[..., -sequence.computed :] if has_keys else array)

    def _begun(self, sequence: GrowingSequence, graph: Graph, options: RunOptions | None) -> Past:
        """The past of ``sequence`` with its prompt but the tokens of the next run; its encoder is run.

        The outputs of a step are those of one token. Without outputs, the next run has as many as one may have.
        """
        sequence.begin()
        past = Past(self.decoder.past, sequence.end, allocate=self.decoder.allocate)
        changes = sequence.changes
        if changes:
            changes.begin(graph, options)
        if self.decoder.generation.two_stacks:
            encoder = self.decoder.graph(self._name(ENCODER))
            names = [name for name in encoder.outputs if name.startswith("cross_")]
            source = {**sequence.source, **(changes.of_encoder(encoder) if changes else {})}
            encoded = encoder.session.run(source, names, options)
            sequence.encoded = {name: self.decoder.kept(array) for name, array in encoded.items()}
            if MASK in {node.name for node in graph.session.onnx.get_inputs()}:
                sequence.encoded[MASK] = np.ones((1, sequence.source_length), np.int64)
        logits = np.empty((1, self.decoder.vocabulary), np.float32)
        of_prompt = self.decoder.beside(graph, self._name(OUTPUT))
        while (left := sequence.length - sequence.computed) > (1 if sequence.step_outputs else sequence.next_run):
            self._compute(of_prompt, past, min(left - 1, sequence.next_run), {LOGITS: logits}, options)
        return past

    def _compute(self, graph: Graph, past: Past, new: int, outputs: Arrays, options: RunOptions | None) -> None:
        """Compute ``new`` tokens of each sequence, whose keys and values go to ``past``, and the ``outputs``."""
        ids = np.zeros((past.slots, new), np.int64)
        mask = np.zeros((past.slots, past.end + new), np.int64)
        mask[:, -1] = 1  # a free slot has one token
        for slot, one in enumerate(self._slots):
            if one is not None:
                ids[slot] = one.ids[one.computed : one.computed + new]
                mask[slot, past.end - one.computed :] = 1
        inputs: dict[str, Array] = {self.decoder.ids: ids}
        lead = self.members[0]
        inputs |= lead.encoded if self.decoder.generation.two_stacks else {MASK: mask}
        if not lead.computed and lead.pictures:
            inputs |= lead.source
        if self.decoder.generation.counts_pictures:
            counts = [one.pictures if one and one.computed else 0 for one in self._slots]
            inputs[PICTURES_BEFORE] = np.array(counts, np.int64)
        if lead.changes:
            inputs |= lead.changes.of_step(graph, lead.computed, lead.computed + new)
        run_into(graph.session.onnx, inputs | past.read(), {**outputs, **past.written(new)}, options)
        past.end += new
        for one in self._slots:
            if one is not None:
                one.computed += new

    def _layout(self) -> tuple[int, int, int]:
        """Slots, rows, and the last row of the past of the next run."""
        past, members = self.past, self.members
        longest, remaining = (max(getattr(one, name) for one in members) for name in ("computed", "remaining"))
        if past is None:
            return 1, members[0].end, 0
        if self._fits(past):
            return past.slots, past.rows, past.end
        return len(members), longest + remaining, longest

    def _fits(self, past: Past) -> bool:
        """Whether the members can be in the slots of ``past``, and few enough of its numbers are zeros."""
        members, free = self.members, len(self._slots) - len(self.members)
        zeros = past.slots * past.end - sum(one.computed for one in members)
        return (
            0 <= 2 * free <= len(self._slots)
            and all(one.computed <= past.end <= past.rows - one.remaining for one in members)
            and (past.slots == 1 or self._are_few(zeros))
        )

    def _are_few(self, zeros: int) -> bool:
        """Whether so many positions of zeros are fewer bytes than the model's weights."""
        return zeros * self.decoder.position_bytes <= self.decoder.learned_bytes

    def _arranged(self, past: Past) -> Past:
        """The past with the members, and with no other sequence."""
        staying = {one: slot for slot, one in enumerate(self._slots) if one in self.members}
        if len(staying) == len(self.members) == past.slots:
            return past
        for slot, one in enumerate(self._slots):
            if one is not None and one not in staying and not one.has_ended:
                one.past = _taken(past, slot, one)
        if self._fits(past):
            self._slots = [one if one in staying else None for one in self._slots]
            for one in self.members:
                if one not in staying:
                    slot = self._slots.index(None)
                    past.place(slot, _own(one), 0, one.computed)
                    self._slots[slot], one.past = one, None
            return past
        _, rows, _ = self._layout()
        sources = [
            (past, staying[one], one.computed) if one in staying else (_own(one), 0, one.computed)
            for one in self.members
        ]
        joined = Past.joined(sources, rows)
        self._slots = [*self.members]
        for one in self.members:
            one.past = None
        return joined


def _taken(past: Past, slot: int, sequence: GrowingSequence) -> Past:
    """A past of the sequence in ``slot`` alone, with room for all of its tokens."""
    return Past.joined([(past, slot, sequence.computed)], sequence.end)


def _own(sequence: GrowingSequence) -> Past:
    assert sequence.past is not None, "a sequence without a slot has a past of its own"
    return sequence.past
