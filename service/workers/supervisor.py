"""The supervisor: accepts connections, hands each to the least busy worker, and replaces workers that end."""

import gc
import logging
import math
import multiprocessing
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess

from uvicorn.config import STARTUP_FAILURE

from service.settings import Settings
from service.telemetry.shared_metrics import SharedMetrics
from service.workers import last_resort
from service.workers.channel import HUNG_S, Channel, ServiceState
from service.workers.server import GRACE_S, LINGER_S, NOT_READY, accepted, ignore_new_connections, max_connections

log = logging.getLogger("heed")

TICK_S = 0.1  # between two checks of the workers
RETRY_S = 0.01  # before connections are handed out again that no worker could take
MAX_ACCEPTS = 64  # connections accepted in a row from one listener
SILENT_S = 1.0  # without a heartbeat of its event loop, after which a worker gets no connections
START_S = 10.0  # a worker that ends sooner after its start has failed to start
MAX_FAILURES = 6  # in a row to start, with no older worker left, before the service was first ready
FIRST_DELAY_S, MAX_DELAY_S = 0.25, 10.0  # before a worker that failed to start is replaced


class Supervisor:
    """Runs ``serve`` in ``settings.workers`` worker processes, and gives them the connections of ``listeners``.

    Workers are forked from this process, whose only thread writes the log; so they share the memory of the
    code. Each connection goes to the worker with the fewest open ones. A worker that is still loading, or whose event
    loop hangs, gets none while another can take it. SIGTERM and SIGINT end the service after a time to drain; SIGHUP
    replaces the workers. Each worker knows when all are ready, as its health check answers for the service.
    """

    def __init__(
        self,
        serve: Callable[[Channel], None],
        settings: Settings,
        listeners: Sequence[socket.socket],
        shared_metrics: SharedMetrics,
        state: ServiceState,
    ) -> None:
        self._serve = serve
        self._state = state
        self._count = settings.workers
        self._listeners = listeners
        self._drain_seconds = settings.drain_seconds
        self._drained = math.inf  # when the time to drain is over
        self._shared_metrics = shared_metrics
        self._time_to_end = LINGER_S + settings.shutdown_seconds + 2 * GRACE_S
        self._workers: list[WorkerHandle] = []
        self._renewed: deque[WorkerHandle] = deque()  # workers that SIGHUP has still to replace
        self._waiting: deque[socket.socket] = deque()  # accepted connections that no worker can take yet
        self._selector = selectors.DefaultSelector()
        self._failures = 0
        self._next_start = 0.0
        self._available: list[WorkerHandle] = []  # workers that get connections
        self._can_start = False  # a worker has been live, so the settings are good
        self._started = False  # all have been live at once
        self._complete = False  # all have been ready at once: from then on the service does not give up
        self._all_loaded = False  # and had loaded the required models; later workers need not
        self._status = 0
        self._signals: list[int] = []

    def run(self) -> int:
        """Supervise until a signal ends it. Returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: self._signals.append(number))
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)
        gc.freeze()  # the workers' garbage collectors skip these objects, so their memory stays shared
        log.info("supervisor %d starts %d workers", os.getpid(), self._count)
        try:
            while self._supervise():
                self._accept_until_tick()
            self._end()
        finally:
            for worker in self._workers:
                worker.channel.close()  # workers that still run see the end of their channel, and finish
        return self._status

    def _supervise(self) -> bool:
        """Start, replace and end workers as needed; False when it is time to end."""
        if self._ends:
            if math.isinf(self._drained):
                self._drained = time.monotonic() + self._drain_seconds
            if self._ends > 1 or time.monotonic() >= self._drained:
                return False
        elif self._signals:
            self._signals.clear()
            log.info("replacing the workers, one after another")
            self._renewed.extend(worker for worker in self._workers if not worker.draining_since)
        self._reap()
        if self._status:
            return False
        self._end_hung_workers()
        for worker in self._workers:
            if worker.channel.state.exit_requested:
                worker.drain()
            self._can_start |= worker.channel.state.live
        staying = [worker for worker in self._workers if not worker.draining_since]
        if self._renewed and len(staying) > self._count and all(worker.channel.state.ready for worker in staying):
            self._renewed.popleft().drain()
        # The first worker shows whether the settings are good.
        wanted = self._count + bool(self._renewed) if self._can_start else 1
        if time.monotonic() >= self._next_start:
            for _ in range(wanted - len(staying)):
                self._start()
        self._choose()
        self._hand_out()
        self._state.beat(self._all_loaded and not self._ends)
        return True

    @property
    def _ends(self) -> int:
        """The number of signals to end."""
        return len(self._signals) - self._signals.count(signal.SIGHUP)

    def _choose(self) -> None:
        """Choose the workers that get connections: those whose event loop runs, and of these those that are ready.

        None until all are live for the first time, and all of them until all are ready for the first time: so
        connections spread over all from the start.
        """
        available = [worker for worker in self._workers if worker.channel.state.live and not worker.draining_since]
        self._started |= len(available) >= self._count
        if not self._started:
            return
        available = [worker for worker in available if worker.channel.silence_s < SILENT_S] or available
        ready = [worker for worker in available if worker.channel.state.ready]
        self._complete |= len(ready) >= self._count
        self._all_loaded |= sum(worker.channel.state.complete for worker in ready) >= self._count
        self._available = (ready or available) if self._complete else available

    def _accept_until_tick(self) -> None:
        """Accept and hand out connections until the next check of the workers."""
        if self._waiting or not self._available:
            time.sleep(TICK_S)
        until = time.monotonic() + TICK_S
        while not self._waiting and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._accept(key.data)

    # Workers that accept while none has fewer connections were tried: 63 % of new connections waited for the one of
    # four workers that was busy for 0.3 s; 25 % do here, as only those handed to it wait.
    def _accept(self, listener: socket.socket) -> None:
        """Accept connections and hand them out, until no more wait or the workers can take no more."""
        try:
            for connection in accepted(listener, MAX_ACCEPTS):
                self._waiting.append(connection)
                if not self._hand_out():
                    return
        except OSError as error:
            log.error("cannot accept: %s", error.strerror)
            time.sleep(TICK_S)

    def _hand_out(self) -> bool:
        """Hand the waiting connections to the least busy workers; False if some are left."""
        while self._waiting:
            connection = self._waiting[0]
            if not any(worker.hand(connection) for worker in sorted(self._available, key=WorkerHandle.load_key)):
                return False
            self._waiting.popleft().close()
        return True

    def _hand_out_backlog(self) -> None:
        """Drain the accept backlog: the kernel resets connections that a closed listener has not accepted."""
        end_s = time.monotonic() + GRACE_S
        while time.monotonic() < end_s and self._ends < 2:
            self._state.beat(False)
            if not self._hand_out():
                time.sleep(RETRY_S)  # the workers' channels are full
            elif ready := self._selector.select(0):
                for key, _ in ready:
                    self._accept(key.data)
            else:
                return

    def _start(self) -> None:
        slot = self._shared_metrics.acquire()
        if slot is None:  # workers that are still ending have them all
            return
        channel = Channel(slot)
        process = multiprocessing.get_context("fork").Process(target=self._work, args=(channel, os.getpid()))
        process.start()
        self._workers.append(WorkerHandle(process, channel))

    def _work(self, channel: Channel, supervisor: int) -> None:
        """In the child: close inherited descriptors, so that each channel ends when its peer exits; then serve."""
        last_resort.send_when_parent_ends(signal.SIGTERM, supervisor)
        self._selector.close()
        for other in self._workers:
            other.channel.close()
        for inherited in (*self._listeners, *self._waiting):
            inherited.close()
        channel.close_parent_end()
        self._serve(channel)

    def _reap(self) -> None:
        now = time.monotonic()
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            self._remove(worker)
            if worker.draining_since:
                continue
            code = worker.process.exitcode
            if code == NOT_READY and worker.channel.state.live and not self._all_loaded:  # the worker has logged why
                self._status = NOT_READY
                return
            if code == STARTUP_FAILURE and not self._can_start:  # and here
                self._status = 1
                return
            log.error("worker %d ended (%s)", worker.process.pid, _exit_reason(code))
            self._failures = self._failures + 1 if now - worker.started < START_S else 0
            if self._failures > 1:
                self._next_start = now + min(FIRST_DELAY_S * 2 ** min(self._failures - 1, 10), MAX_DELAY_S)
            has_older = any(now - other.started > START_S for other in self._workers)
            if self._failures >= MAX_FAILURES and not self._complete and not has_older:
                log.critical(
                    "%d workers in a row exited within %.0f s of their start: giving up", self._failures, START_S
                )
                self._status = 1
                return

    def _remove(self, worker: "WorkerHandle") -> None:
        self._workers.remove(worker)
        with suppress(ValueError):
            self._renewed.remove(worker)
        self._take_back(worker)
        worker.channel.close()
        worker.process.join()
        self._shared_metrics.release(worker.channel.slot)

    def _end_hung_workers(self) -> None:
        """Hand out again the connections of workers that hang; kill a worker that hangs or drains for too long."""
        fresh = any(worker.channel.silence_s < SILENT_S for worker in self._available)
        for worker in self._workers:
            if worker.channel.state.live and not worker.draining_since and worker.channel.silence_s > SILENT_S:
                if fresh:
                    self._take_back(worker)
                if worker.channel.silence_s > HUNG_S + GRACE_S:  # it could not end itself
                    log.error(
                        "worker %d has not responded for %.0f s and is killed", worker.process.pid, HUNG_S + GRACE_S
                    )
                    worker.process.kill()
            if worker.draining_since and time.monotonic() - worker.draining_since > self._time_to_end:
                log.error("worker %d did not exit in time and is killed", worker.process.pid)
                worker.process.kill()
                self._status = self._status or int(bool(self._signals))

    def _take_back(self, worker: "WorkerHandle") -> None:
        for connection in worker.channel.take_back():
            self._waiting.append(connection)
            worker.handed -= 1

    def _end(self) -> None:
        """Hand out the accepted connections and wait for the workers to finish; kill them at a second signal."""
        for listener in self._listeners:
            ignore_new_connections(listener)
        self._accept_until_tick()  # connections that were being opened
        self._hand_out_backlog()
        for listener in self._listeners:
            listener.close()
        log.info("stopping %d workers", len(self._workers))
        for worker in self._workers:
            worker.drain()
        while self._workers:
            if self._ends > 1:
                self._status = 128 + self._signals[-1]
                for worker in self._workers:
                    worker.process.kill()
            self._state.beat(False)
            self._end_hung_workers()
            for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
                self._status = self._status or int(bool(worker.process.exitcode))
                self._remove(worker)
            time.sleep(TICK_S / 2)


class WorkerHandle:
    """The supervisor's view of a worker."""

    def __init__(self, process: BaseProcess, channel: Channel) -> None:
        self.process = process
        self.channel = channel
        self.started = time.monotonic()
        self.handed = 0
        self._last_handed_ns = 0
        self.draining_since = 0.0
        self._max_connections = max_connections()

    def load_key(self) -> tuple[int, int]:
        """Its open connections, and when it got the last one: the worker with the lowest key gets the next one."""
        return self.handed - self.channel.state.closed, self._last_handed_ns

    def hand(self, connection: socket.socket) -> bool:
        """Hand it the connection; False if it or its channel is full."""
        if self.handed - self.channel.state.closed >= self._max_connections or not self.channel.hand(connection):
            return False
        self.handed += 1
        self._last_handed_ns = time.monotonic_ns()
        return True

    def drain(self) -> None:
        """Let it finish its requests and end."""
        if not self.draining_since:
            self.draining_since = time.monotonic()
            self.channel.end()


def _exit_reason(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"status {code}"
