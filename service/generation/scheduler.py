"""Which sequences share runs, and when: each group of sequences runs one step after the other.

A step begins as soon as the one before has ended, while its tokens are written. It waits for prompts that are being
run, so that their sequences share it, too: else each group of requests would need more steps than its longest sequence.
A sequence whose client reads too slowly leaves its group, which does not wait for it. Where a run fails, each of its
sequences goes on alone, so that an error is that of the sequence that causes it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress

from service.base.budget import Reservation
from service.base.errors import NotReady
from service.engine.engine import Engine
from service.generation.counters import GenerationCounters
from service.generation.decoder import Decoder
from service.generation.group import SequenceGroup
from service.generation.past import Past
from service.generation.sequence import Arrays, GrowingSequence
from service.ort.failures import RUN_ERRORS

MAX_PAUSE_S = 0.5  # of a group, for prompts
PAUSE_SHARE = 0.25  # of the time of its steps, for which it may pause again
MAX_UNREAD = 2  # steps of a sequence that are not read yet; its next one is not begun before


class Member:
    """A sequence, and its steps that are not read yet. ``accept`` takes a step and says whether another follows."""

    def __init__(self, sequence: GrowingSequence, accept: Callable[[Arrays], bool]) -> None:
        self.sequence = sequence
        self.group: Group | None = None
        self.is_late = False  # the group does not wait for it
        self._accept = accept
        self._unread: asyncio.Queue[Arrays | Exception] = asyncio.Queue()

    @property
    def is_ready(self) -> bool:
        """Whether its next step may begin; after it was late, only when all before are read."""
        return self._unread.qsize() < (1 if self.is_late else MAX_UNREAD)

    def put(self, step: Arrays | Exception) -> None:
        """Add a step, or the error that ends the sequence."""
        self.is_late = False
        try:
            self.sequence.has_ended |= isinstance(step, Exception) or not self._accept(step)
        except Exception as error:  # it is this sequence's, not its group's
            step, self.sequence.has_ended = error, True
        self._unread.put_nowait(step)

    async def steps(self) -> AsyncGenerator[Arrays]:
        """Each step as it comes.

        Raises:
            Exception: the error that ended the sequence.
        """
        while not self._unread.empty() or not self.sequence.has_ended:
            step = await self._unread.get()
            if self.group is not None:
                self.group.change.set()
            if isinstance(step, Exception):
                raise step
            yield step


class Group(SequenceGroup):
    """A group whose steps are run until no member is left."""

    def __init__(self, sequence: GrowingSequence, engine: Engine) -> None:
        super().__init__(sequence)
        self.all: list[Member] = []
        self.change = asyncio.Event()  # set when a step was read
        self.extra = Reservation(engine.budget)
        self.step_s = 0.0  # time of the last step
        self.pause_s = MAX_PAUSE_S  # that are left
        self.runs: asyncio.Task[None] | None = None

    def add(self, member: Member) -> None:
        """Let ``member`` share the next run."""
        member.group = self
        self.all.append(member)
        self.change.set()

    def drop_ended(self) -> None:
        self.all = [member for member in self.all if not member.sequence.has_ended]

    async def ready(self) -> list[Member]:
        """The members that share the next run; none if none is left.

        It waits until there is one, and for the others at most as long as a step takes: then they are late.
        """
        latest = time.perf_counter() + self.step_s
        while True:
            self.drop_ended()
            ready = [member for member in self.all if member.is_ready]
            awaited = [member for member in self.all if not member.is_ready and not member.is_late]
            if len(ready) == len(self.all) or (ready and not awaited):
                return ready
            left = latest - time.perf_counter() if ready else None
            if left is not None and left <= 0:
                for member in awaited:
                    member.is_late = True
                return ready
            self.change.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.change.wait(), left)


class Scheduler:
    """Runs the sequences of all requests with ``engine``; ``is_sharing``: several in one run, of at most ``max_bytes``.

    To be used by one event loop.
    """

    def __init__(self, engine: Engine, counters: GenerationCounters, is_sharing: bool, max_bytes: int) -> None:
        self._engine = engine
        self.counters = counters
        self._is_sharing = is_sharing
        self._max_bytes = max_bytes
        self._groups: dict[Decoder, list[Group]] = {}
        self._prompts: dict[GrowingSequence, asyncio.Future[None]] = {}  # whose runs are queued or in progress

    async def steps(
        self,
        sequence: GrowingSequence,
        accept: Callable[[Arrays], bool],
        deadline: int | None,
        is_accepted: bool = False,
    ) -> AsyncGenerator[Arrays]:
        """The steps of ``sequence`` until ``accept`` says that no other follows; its prompt is run before ``deadline``.

        Where the sequence ``is_accepted``, as are all steps but the first, a full queue does not matter.

        Raises:
            Overloaded: the queue is full.
            TimedOut: the deadline passed before the prompt was run, or a run took too long.
            Invalid: a logit is not finite.
        """
        member, own = Member(sequence, accept), Group(sequence, self._engine)
        try:
            with self._beginning(sequence):
                await self._engine.run(own.task(deadline, is_accepted))
                member.put(own.steps[sequence])
                if not sequence.has_ended:
                    group = self._group_for(sequence)
                    if group is None:
                        self._begin(member, own)
                    else:
                        sequence.past = own.past
                        group.add(member)
            async for step in member.steps():
                yield step
        finally:
            sequence.has_ended = True
            if member.group is not None:
                self._leave(member.group)

    @contextmanager
    def _beginning(self, sequence: GrowingSequence) -> Iterator[None]:
        """The prompt of ``sequence`` is being run, until it has joined a group."""
        self._prompts[sequence] = end = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._prompts[sequence]
            end.set_result(None)

    async def _await_prompts(self, group: Group) -> None:
        """Wait until each sequence that could share the next run of ``group`` has joined, for ``pause_s`` at most."""
        while self._is_sharing and group.pause_s > 0:
            members = [member.sequence for member in group.all]
            prompts = [
                end
                for one, end in self._prompts.items()
                if one.most > 1 and one.decoder is group.decoder and group.accepts(one, members, self._max_bytes)
            ]
            if not prompts or not members:
                return
            start = time.perf_counter()
            await asyncio.wait(prompts, timeout=group.pause_s, return_when=asyncio.FIRST_COMPLETED)
            group.pause_s -= time.perf_counter() - start
            group.drop_ended()

    def _group_for(self, sequence: GrowingSequence) -> Group | None:
        """A group with which ``sequence`` may share runs."""
        for group in self._groups.get(sequence.decoder, ()) if self._is_sharing else ():
            group.drop_ended()
            if group.accepts(sequence, [member.sequence for member in group.all], self._max_bytes):
                return group
        return None

    def _begin(self, member: Member, group: Group) -> None:
        """Run the steps of ``member`` in a ``group`` of its own."""
        self._groups.setdefault(group.decoder, []).append(group)
        group.add(member)
        group.runs = asyncio.create_task(self._run(group))

    def _leave(self, group: Group) -> None:
        """End the runs of ``group`` if no member is left."""
        group.drop_ended()
        group.change.set()
        if not group.all:
            self._remove(group)
            if group.runs is not None:
                group.runs.cancel()

    def _remove(self, group: Group) -> None:
        groups = self._groups.get(group.decoder, [])
        if group in groups:
            groups.remove(group)
            if not groups:
                del self._groups[group.decoder]

    async def _run(self, group: Group) -> None:
        """Run steps until no member is left."""
        failure: Exception = NotReady("the server is shutting down")
        try:
            await self._await_prompts(group)
            while ready := await group.ready():
                ready = self._with_room(group, ready)
                start = time.perf_counter()
                try:
                    await self._engine.run(group.task(is_accepted=True))
                    steps: list[Arrays | Exception] = [group.steps[member.sequence] for member in ready]
                except Exception as error:
                    if len(ready) > 1 and isinstance(error, RUN_ERRORS):  # it may be the fault of one of them
                        await self._separate(group, ready)
                        continue
                    steps = [error] * len(ready)
                else:
                    self.counters.observe_step(len(ready))
                group.step_s = time.perf_counter() - start
                group.pause_s = min(MAX_PAUSE_S, group.pause_s + PAUSE_SHARE * group.step_s)
                for member, step in zip(ready, steps, strict=True):
                    member.put(step)
                await self._await_prompts(group)
        except Exception as error:
            failure = error
        finally:
            self._remove(group)
            group.extra.release()
            for member in group.all:
                if not member.sequence.has_ended:
                    member.put(failure)

    async def _separate(self, group: Group, members: list[Member]) -> None:
        """Let each of ``members`` of ``group`` go on in a group of its own."""
        for member in members:
            past = await asyncio.to_thread(group.separated, member.sequence)
            if member in group.all:  # its client has not left meanwhile
                self._begin_alone(member, group, past)

    def _begin_alone(self, member: Member, group: Group, past: Past) -> None:
        """Run the steps of ``member`` behind ``past``, and not in ``group`` any longer."""
        group.all.remove(member)
        own = Group(member.sequence, self._engine)
        own.past = past
        self._begin(member, own)

    def _with_room(self, group: Group, ready: list[Member]) -> list[Member]:
        """The members of the next run: where memory is short, those that are new get a group of their own."""
        group.extra.release()
        group.members = [member.sequence for member in ready]
        budget, extra = group.extra.budget, group.extra_bytes
        if not budget.has_room(extra):
            new = [member for member in ready if member.sequence.past is not None]
            ready = [member for member in ready if member not in new] or [new.pop(0)]
            group.members = [member.sequence for member in ready]
            for member in new:
                self._begin_alone(member, group, group.separated(member.sequence))
            extra = group.extra_bytes
        if budget.has_room(extra):
            group.extra.add(extra)
        return ready
