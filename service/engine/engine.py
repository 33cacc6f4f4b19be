"""The scheduler between decoded requests and ONNX Runtime: a bounded queue, and threads that run its tasks.

A task that comes while a thread is free begins at once. While all threads are busy, tasks wait, the most urgent first
(queue.py), and a thread that gets free takes all tasks that are faster in one run than apart (run.py).

There are two lanes of threads. A task that is expected to take long, or whose kind never ran, has its own lane, so that
short tasks never wait behind it.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from service.base.budget import MemoryBudget
from service.base.errors import NotReady, Overloaded, TimedOut
from service.engine.admission import Admission
from service.engine.batch import Arrays
from service.engine.offload import Offload
from service.engine.queue import Lane
from service.engine.run import Outcome, Run, run_alone
from service.engine.task import InferenceTask
from service.model.graph import Graph
from service.settings import Settings
from service.telemetry.counters import RequestCounters

log = logging.getLogger("heed")

LONG_RUN_NS = 50e6  # forecast above which a task is of the lane for long ones
MEASURED_HOPS = 50  # at the start, of which the median counts
MAX_SHARED_HOPS = 2  # a task may share a run if its own takes at most this many times what sharing saves
RUNS_IN_FLIGHT_PER_GPU = 2  # in each lane: one is computed while another is copied
INLINE_NS = 2_000_000  # work that is estimated to take longer runs in a thread, not on the event loop
MAX_GPU_WAIT_NS = 200_000  # for which the event loop waits for a GPU: it could decode meanwhile


class Engine:
    """Runs tasks in ``settings.max_concurrent_runs`` threads a lane. To be used by one event loop.

    ``offload`` does other work than runs; ``budget`` bounds the memory of requests outside of runs.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._threads_per_lane = 0
        self._max_run_bytes: float = settings.memory_budget_bytes // 2
        self._is_batching = settings.batching != "off"
        self._lock = threading.Lock()
        self._lanes = self._short, self._long = Lane(), Lane()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run_bytes = 0  # that the runs in progress need
        self._hop_ns = 0.0  # from the event loop to a thread and back
        self._on_gpu = False
        self._in_progress: set[Run] = set()
        self._closing = False
        self._threads: list[threading.Thread] = []
        self.counts = RequestCounters()
        self._admission = Admission(settings, self._lanes, self.counts.refused)
        self.budget = MemoryBudget(settings.memory_budget_bytes // 2, Overloaded, self.counts.refused)
        self.offload = Offload(settings.max_concurrent_runs)
        self.configure_device(settings.max_concurrent_runs)

    def check_queue(self) -> None:
        """Raises Overloaded where a request need not be decoded: no thread is free, and the queue is full."""
        if not self.is_idle:
            self._admission.check_queue(self._threads_per_lane)

    def configure_device(self, threads: int, on_gpu: bool = False, room: int = 0) -> None:
        """Fit the number of threads in each lane, the inline limit and the memory of runs to the device.

        A GPU has ``room`` bytes for runs (0 = no limit). More runs at a time than ``RUNS_IN_FLIGHT_PER_GPU`` would
        only take memory; tasks that are queued meanwhile can share the next run.
        """
        with self._lock:
            self._on_gpu = on_gpu
            self._max_run_bytes = min(self._settings.memory_budget_bytes // 2, room or math.inf)
            before, self._threads_per_lane = self._threads_per_lane, threads
            self.offload.inline_ns = min(INLINE_NS, MAX_GPU_WAIT_NS) if on_gpu else INLINE_NS
            for lane in self._lanes:
                lane.resize(threads, before)
        for name, lane in (("short", self._short), ("long", self._long)):
            for index in range(before, threads):
                thread = threading.Thread(target=self._serve, args=(lane,), name=f"heed-{name}-{index}", daemon=True)
                self._threads.append(thread)
                thread.start()

    async def open(self) -> None:
        """Measure the way to a thread and back, which tasks save that share a run. Before that none does."""
        hops = []
        for _ in range(MEASURED_HOPS):
            start = time.perf_counter_ns()
            await self.offload(time.perf_counter_ns)
            hops.append(time.perf_counter_ns() - start)
        self._hop_ns = sorted(hops)[MEASURED_HOPS // 2]

    @property
    def queued(self) -> int:
        """Tasks that wait."""
        return len(self._short.waiting) + len(self._long.waiting)

    @property
    def running(self) -> int:
        """Runs in progress in threads."""
        return self._short.running + self._long.running

    @property
    def is_idle(self) -> bool:
        """A thread for short tasks is free, and none waits for one: a short task may be run on the event loop."""
        lane = self._short
        return lane.running < self._threads_per_lane and not lane.waiting

    def can_run_inline(self, task: InferenceTask) -> bool:
        """The engine is idle, and ``task`` is in time and so short that the event loop may run it itself."""
        return task.may_run_inline and self.is_cheap(task.expected_ns)

    def is_cheap(self, nanoseconds: float) -> bool:
        """The engine is idle, and something that takes so long may be done on the event loop."""
        return nanoseconds <= self.offload.inline_ns and self.is_idle

    def run_inline(self, task: InferenceTask) -> Arrays:
        """The outputs of ``task``, run at once in this thread.

        Raises:
            Exception: what ``Model.run`` raises.
        """
        self.counts.inline_runs += 1
        return run_alone(task)

    async def run(self, task: InferenceTask) -> Arrays:
        """The outputs of ``task``, run in a thread, alone or with others; they are the same.

        Raises:
            Overloaded: the queue is full, or the task would probably wait too long for its deadline.
            TooLong: the run, of a block, is forecast to take longer than ``max_run_seconds``.
            TimedOut: its deadline passed before it was begun, or the run took longer than ``max_run_seconds``.
            Exception: what ``Model.run`` raises.
        """
        self._loop = loop = asyncio.get_running_loop()
        task.future = loop.create_future()
        task.compute_queue_keys(MAX_SHARED_HOPS * self._saved_ns(task.graph) if self._is_batching else 0)
        lane = self._long if task.forecast_ns > LONG_RUN_NS else self._short
        task.queued_at_ns = time.perf_counter_ns()
        with self._lock:
            if self._closing:
                raise NotReady("the server is shutting down")
            self._admission.check(task, lane, self._threads_per_lane)
            lane.waiting.put(task)
            lane.wake_one()
        alarm = None
        if task.deadline is not None:
            alarm = loop.call_later(max(0, task.deadline - task.queued_at_ns) / 1e9, self._expire, task, lane)
        try:
            return await task.future
        except asyncio.CancelledError:
            with self._lock:
                self.counts.cancelled += lane.waiting.drop(task)
            task.terminate()
            raise
        finally:
            task.future = None
            if alarm:
                alarm.cancel()

    def terminate_overdue(self) -> None:
        """End runs that take longer than ``max_run_seconds``, and refuse their requests. To be called regularly."""
        limit = self._settings.max_run_seconds
        now = time.perf_counter_ns()
        with self._lock:
            overdue = [run for run in self._in_progress if limit and now - run.began_ns > limit * 1e9]
        for run in overdue:
            for task in run.tasks:
                task.terminate()  # each time: a task whose shared run failed is run again alone
            if not run.is_overdue:
                run.is_overdue = True
                self.counts.refused["max_run_seconds"] += len(run.tasks)
                words = f"the run took longer than the {limit:g} s allowed (max_run_seconds)"
                _set_results([(task, TimedOut(words)) for task in run.tasks])

    def close(self) -> None:
        """Cancel the tasks that wait, and end the threads when their runs are done; further tasks are refused."""
        with self._lock:
            self._closing = True
            for lane in self._lanes:
                self._resolve([(task, asyncio.CancelledError()) for task in lane.waiting.clear()])
                for _ in self._threads:
                    lane.wakeups.put(None)
        for thread in self._threads:
            thread.join()
        self.offload.close()

    def _saved_ns(self, graph: Graph) -> float:
        """What a task saves by sharing a run: the way to a thread, and on a GPU what the smallest run takes, which is
        the time to launch its kernels."""
        smallest = graph.cost.expected(0) if self._on_gpu else 0.0
        return self._hop_ns + (smallest if math.isfinite(smallest) else 0.0)

    def _serve(self, lane: Lane) -> None:
        while not self._closing:
            with self._lock:
                if lane.excess_threads:
                    lane.excess_threads -= 1
                    return
                run = self._next(lane)
                if run is None:
                    lane.idle_threads += 1
            if run is None:
                lane.wakeups.get()
            else:
                self._execute(run, lane)

    def _next(self, lane: Lane) -> Run | None:
        """The next run of this lane, its tasks taken from the queue; None if none waits or memory is short."""
        waiting = lane.waiting
        while waiting:
            first = waiting.first()
            if first.is_late:
                waiting.drop(first)
                self._resolve([(first, self._too_late(first))])
                continue
            try:
                run = self._planned(first, lane)
            except Exception as error:  # it would end this thread, and the next one that takes the task
                log.exception("a run could not be planned")
                waiting.drop(first)
                self._resolve([(first, error)])
                continue
            if run is None:
                return None
            now = time.perf_counter_ns()
            for task in run.tasks:
                waiting.drop(task)
                task.queue_ns = now - task.queued_at_ns
            run.has_threads = self._has_free_cpus(lane)
            lane.running += 1
            self._run_bytes += run.memory
            run.began_ns = now
            self._in_progress.add(run)
            return run
        return None

    def _planned(self, first: InferenceTask, lane: Lane) -> Run | None:
        """The run of ``first`` with the tasks that may share it; None if memory is short."""
        run, waiting = Run(first), lane.waiting
        free = int(self._max_run_bytes) - self._run_bytes
        if run.memory > free and self._run_bytes:
            return None
        share, saved = math.ceil(len(waiting) / self._threads_per_lane), self._saved_ns(first.graph)
        if first.graph.shared:  # a task saves a run of its own
            share, saved = len(waiting), saved + first.forecast_ns
        run.stack(waiting.batch_candidates(first), share, free, saved)
        return run

    def _has_free_cpus(self, lane: Lane) -> bool:
        """Whether a run that begins now may use several threads: there are at most half as many runs as CPUs.

        More runs compute more with one thread each, as none waits for the threads of another. Of other workers it is
        assumed that they have as many. For a long run only other long ones count: short ones take little from it.
        """
        lanes = self._lanes if lane is self._short else (self._long,)
        others = sum(each.running + len(each.waiting) for each in lanes)
        runs = self._settings.workers * min(1 + others, self._threads_per_lane) if others else 1
        return runs == 1 or 2 * runs <= self._settings.intra_op_threads

    def _execute(self, run: Run, own: Lane) -> None:
        start = time.perf_counter_ns()
        try:
            outcomes = run.execute()
        except BaseException as error:  # it would end this thread, while the tasks wait
            log.exception("a run ended in an error of the engine")
            outcomes = [(task, error) for task in run.tasks]
        with self._lock:
            own.learn(run.tasks, time.perf_counter_ns() - start)
            own.running -= 1
            self._run_bytes -= run.memory
            self._in_progress.discard(run)
            self.counts.runs[len(run.tasks)] += 1
            for lane in self._lanes:
                lane.wake_one()
        self._resolve(outcomes)

    def _resolve(self, outcomes: Sequence[Outcome]) -> None:
        """Pass outcomes on to the event loop, all with one wake-up."""
        if outcomes:
            assert self._loop is not None, "tasks are queued from an event loop"
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_set_results, outcomes)

    def _expire(self, task: InferenceTask, lane: Lane) -> None:
        with self._lock:
            if not lane.waiting.drop(task):
                return
            error = self._too_late(task)
        _set_results([(task, error)])

    def _too_late(self, task: InferenceTask) -> TimedOut:
        self.counts.refused["deadline"] += 1
        task.queue_ns = time.perf_counter_ns() - task.queued_at_ns
        if task.is_accepted:
            return TimedOut("Request timeout expired: the deadline passed between the runs of the request")
        return TimedOut(f"Request timeout expired: the request waited {task.queue_ns // 1000:,} µs in the queue")


def _set_results(outcomes: Sequence[Outcome]) -> None:
    for task, outcome in outcomes:
        future = task.future
        if future is None or future.done():  # its request has ended
            continue
        if isinstance(outcome, asyncio.CancelledError):
            future.cancel()
        elif isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
