"""What stands between a decoded request and ONNX Runtime: a bounded queue, and threads that run what waits in it.

Work that comes while a thread is free begins at once. What comes while all are busy waits its turn, by urgency and then
by arrival, and a thread that gets free takes all of it that can share a run and is quicker for it (service/run.py).

There are two lanes of threads. What is expected to take long, or was never run, has its own, so that short work never
stands behind it.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

import numpy as np

from service.cost import Cost
from service.counts import Counts
from service.errors import NotReady, Overloaded, TimedOut, TooManyRequests
from service.graph import Graph
from service.queue import Queue
from service.run import Run, Told
from service.settings import Settings
from service.work import Work

P = ParamSpec("P")
T = TypeVar("T")
Answer = dict[str, np.ndarray]
LONG = 50e6  # nanoseconds
LARGE = 64 << 20  # bytes
HOPS = 50  # measured at the start
SHARED = 2  # hops that a work takes at most, to share a run
HOPEFUL = 0.5  # how much of the time until its deadline a work may be expected to wait, as forecasts err
IN_FLIGHT = 2  # runs at one time on a GPU, in each lane: one is computed while another is copied
WAIT = 200_000  # nanoseconds for which the event loop waits for a GPU: it could decode meanwhile
PACED = 0.1  # how far a run moves what is known of the lane's pace


class Lane:
    """A queue, and the threads that empty it."""

    def __init__(self) -> None:
        self.waiting = Queue()
        self.running = 0  # runs
        self.pace = 1.0  # the time that runs take, for each nanosecond forecast: others share the machine, works a run
        self.asleep = 0  # threads that wait for the bell
        self.surplus = 0  # threads that are to end
        self.bell: SimpleQueue[None] = SimpleQueue()

    def learn(self, works: Sequence[Work], taken: int) -> None:
        """A run of ``works`` took a thread so many nanoseconds."""
        forecast = sum(work.forecast for work in works)
        if forecast and all(work.is_known for work in works):
            self.pace += PACED * (taken / forecast - self.pace)

    def ring(self) -> None:
        if self.asleep and self.waiting:
            self.asleep -= 1
            self.bell.put(None)


class Engine:
    """Runs works in threads, ``settings.concurrency`` at a time in each lane. One event loop may ask it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._threads_each = 0
        self._most_waiting = settings.max_queue
        self._overloaded = TooManyRequests if settings.overload_status == "429" else Overloaded
        self._most_bytes: float = settings.max_running_bytes
        self._most_held = settings.max_bodies_bytes
        self.held = 0  # bytes of bodies
        self._batching = settings.batching == "auto"
        self._inline_nanoseconds = 0
        self._lock = threading.Lock()
        self._lanes = self._short, self._long = Lane(), Lane()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bytes = 0  # that running work needs
        self._hop = 0.0  # nanoseconds from the event loop to a thread and back
        self._on_gpu = False
        self.large: float | None = None  # when the last run ended that needed much memory, of time.monotonic
        self._closing = False
        self._others = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="heed-aside")
        self._threads: list[threading.Thread] = []
        self.counts = Counts()
        self.fit(settings.concurrency)

    def must_have_room(self) -> None:
        """Raises Overloaded where there is no use in looking at a request: it could neither be run now nor wait."""
        if not self.is_idle:
            self._must_have_room()

    def hold(self, more: int, own: int) -> None:
        """Take in ``more`` bytes of the body of a request that has brought ``own`` already.

        Raises:
            Overloaded: together with those of others they are too many.
        """
        if own < self.held and self.held + more > self._most_held:
            self.counts.refused["max_bodies_bytes"] += 1
            words = f"the bodies of requests take {self.held:,} bytes, of {self._most_held:,} (max_bodies_bytes)"
            raise self._overloaded(words, 1)
        self.held += more

    def fit(self, threads: int, on_gpu: bool = False, room: int = 0) -> None:
        """Have so many threads in each lane, and wait as long for a run, and let run as much, as suits the device.

        A GPU has ``room`` bytes for what runs. More than ``IN_FLIGHT`` runs at one time would only take of them; what
        queues meanwhile can share the next one.
        """
        with self._lock:
            self._on_gpu = on_gpu
            self._most_bytes = min(self._settings.max_running_bytes, room or math.inf)
            before, self._threads_each = self._threads_each, threads
            inline = 1000 * self._settings.inline_microseconds
            self._inline_nanoseconds = min(inline, WAIT) if on_gpu else inline
            for lane in self._lanes:
                lane.surplus += max(0, before - threads)
                for _ in range(min(lane.surplus, lane.asleep)):
                    lane.asleep -= 1
                    lane.bell.put(None)
        for name, lane in (("short", self._short), ("long", self._long)):
            for index in range(before, threads):
                thread = threading.Thread(target=self._serve, args=(lane,), name=f"heed-{name}-{index}", daemon=True)
                self._threads.append(thread)
                thread.start()

    async def open(self) -> None:
        """Measure what it costs to run anything in a thread: sharing a run saves that, and pays where the work is less.

        Before that no work shares a run.
        """
        hops = []
        for _ in range(HOPS):
            start = time.perf_counter_ns()
            await self.aside(time.perf_counter_ns)
            hops.append(time.perf_counter_ns() - start)
        self._hop = sorted(hops)[HOPS // 2]

    @property
    def queued(self) -> int:
        return len(self._short.waiting) + len(self._long.waiting)

    @property
    def running(self) -> int:
        """Runs in threads, right now."""
        return self._short.running + self._long.running

    @property
    def is_idle(self) -> bool:
        """A thread for short work is free, and nothing waits for one: such work may be run by whoever brings it."""
        return self._short.running < self._threads_each and not self._short.waiting

    def fits_here(self, work: Work) -> bool:
        """The engine is idle, and ``work`` in time and so short that the event loop may run it itself."""
        return self.is_short(work.expected) and not work.is_late

    def is_short(self, nanoseconds: float) -> bool:
        """The engine is idle, and something that takes so long may be done on the event loop."""
        return nanoseconds <= self._inline_nanoseconds and self.is_idle

    def run_here(self, work: Work) -> Answer:
        """Run ``work`` where the caller is, at once."""
        self.counts.here += 1
        return work.run()

    async def run(self, work: Work) -> Answer:
        """Run ``work`` in a thread, in its turn, alone or with others; the answer is the same.

        Raises:
            Overloaded: as many works wait as may, or too many for its deadline.
            TimedOut: its deadline passed before it was begun.
            Exception: what the run of it alone raises.
        """
        self._loop = loop = asyncio.get_running_loop()
        work.future = loop.create_future()
        work.prepare(SHARED * self._saved(work.graph) if self._batching else 0)
        lane = self._long if work.forecast > LONG else self._short
        work.queued = time.perf_counter_ns()
        with self._lock:
            self._admit(work, lane)
        alarm = None
        if work.deadline is not None:
            alarm = loop.call_later(max(0, work.deadline - work.queued) / 1e9, self._expire, work, lane)
        try:
            return await work.future
        except asyncio.CancelledError:
            with self._lock:
                self.counts.cancelled += lane.waiting.drop(work)
            raise
        finally:
            work.future = None
            if alarm:
                alarm.cancel()

    async def aside(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``function``'s result, worked out off the event loop: the decoding of a large body, say."""
        return await asyncio.get_running_loop().run_in_executor(self._others, partial(function, *args, **kwargs))

    async def measured(self, cost: Cost, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``function``'s result, worked out here if it is known to be short, else off the loop; ``cost`` learns."""

        def timed() -> T:
            start = time.thread_time_ns()
            result = function(*args, **kwargs)
            cost.learn(size, time.thread_time_ns() - start)
            return result

        return timed() if cost.expected(size) <= self._inline_nanoseconds else await self.aside(timed)

    def close(self) -> None:
        """End the threads, once what they run is done; what still waits is cancelled, and nothing more is taken."""
        with self._lock:
            self._closing = True
            for lane in self._lanes:
                for work in lane.waiting.clear():
                    self._tell([(work, asyncio.CancelledError())])
                for _ in self._threads:
                    lane.bell.put(None)
        for thread in self._threads:
            thread.join()
        self._others.shutdown()

    def _saved(self, graph: Graph) -> float:
        """Nanoseconds that a work saves if it needs no run of its own.

        That is the way to a thread; and on a GPU what the least of runs takes, for the launches of its kernels.
        """
        least = graph.cost.expected(0) if self._on_gpu else 0.0
        return self._hop + (least if math.isfinite(least) else 0.0)

    def _admit(self, work: Work, lane: Lane) -> None:
        if self._closing:
            raise NotReady("the server is shutting down")
        self._must_have_room()
        if work.deadline is not None and lane.waiting:
            wait = lane.waiting.forecast(work.rank) * lane.pace / self._threads_each
            if wait > HOPEFUL * (work.deadline - work.queued):
                self.counts.refused["deadline"] += 1
                words = f"it would wait {wait / 1e9:.1f} s, too long to be run before its deadline"
                raise self._overloaded(words, max(1, math.ceil(wait / 1e9)))
        lane.waiting.put(work)
        lane.ring()

    def _must_have_room(self) -> None:
        if self.queued >= self._most_waiting:
            self.counts.refused["max_queue"] += 1
            seconds = max(lane.waiting.forecast() * lane.pace for lane in self._lanes) / self._threads_each / 1e9
            words = f"{self._most_waiting} requests wait, the most there may (max_queue)"
            raise self._overloaded(words, max(1, math.ceil(seconds)))

    def _serve(self, lane: Lane) -> None:
        while not self._closing:
            with self._lock:
                if lane.surplus:
                    lane.surplus -= 1
                    return
                run = self._next(lane)
                if run is None:
                    lane.asleep += 1
            if run is None:
                lane.bell.get()
            else:
                self._execute(run, lane)

    def _next(self, lane: Lane) -> Run | None:
        """What a thread of this lane does next, taken from the queue; None if nothing waits, or memory is short."""
        while lane.waiting:
            run = Run(lane.waiting.first())
            first = run.works[0]
            if first.is_late:
                lane.waiting.drop(first)
                self._tell([(first, self._too_late(first))])
                continue
            free = int(self._most_bytes) - self._bytes
            if run.memory > free and self._bytes:
                return None
            share = math.ceil(len(lane.waiting) / self._threads_each)
            saved = self._saved(first.graph)
            run.stack(lane.waiting.mates(first, first.alike), share, free, saved)
            run.pad(lane.waiting.mates(first, first.akin), share, free, saved)
            now = time.perf_counter_ns()
            for work in run.works:
                lane.waiting.drop(work)
                work.waited = now - work.queued
            lane.running += 1
            self._bytes += run.memory
            return run
        return None

    def _execute(self, run: Run, own: Lane) -> None:
        start = time.perf_counter_ns()
        told = run.answers()
        with self._lock:
            own.learn(run.works, time.perf_counter_ns() - start)
            own.running -= 1
            self._bytes -= run.memory
            if run.memory > LARGE:
                self.large = time.monotonic()
            self.counts.runs[len(run.works)] += 1
            for lane in self._lanes:
                lane.ring()
        self._tell(told)

    def _tell(self, told: Told) -> None:
        """Hand answers over to the event loop, all with one wake-up."""
        assert self._loop is not None, "they were queued"
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            self._loop.call_soon_threadsafe(_resolve, told)

    def _expire(self, work: Work, lane: Lane) -> None:
        with self._lock:
            if not lane.waiting.drop(work):
                return
            late = self._too_late(work)
        _resolve([(work, late)])

    def _too_late(self, work: Work) -> TimedOut:
        self.counts.refused["deadline"] += 1
        work.waited = time.perf_counter_ns() - work.queued
        return TimedOut(f"Request timeout expired: it waited {work.waited // 1000:,} microseconds in the queue")


def _resolve(told: Told) -> None:
    for work, answer in told:
        future = work.future
        if future is None or future.done():  # nobody waits for it any more
            continue
        if isinstance(answer, asyncio.CancelledError):
            future.cancel()
        elif isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
