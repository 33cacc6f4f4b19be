"""The supervisor of the worker processes: accepts, hands each connection to the least busy, replaces the dead."""

import gc
import itertools
import logging
import math
import multiprocessing
import os
import resource
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from types import FrameType

from uvicorn.config import STARTUP_FAILURE

from service.board import Board
from service.channel import Channel
from service.server import GRACE, LINGER

log = logging.getLogger("heed")

TICK = 0.1  # seconds between looks at the workers
BATCH = 64  # connections accepted between two such looks, at most
SILENT = 1.0  # seconds without a turn of its event loop after which a worker is passed over
HUNG = 30.0  # and after which it is killed
SPARE_DESCRIPTORS = 100  # of a worker, for all but its connections
YOUNG = 10.0  # a worker that ends sooner after its start has failed to start
MOST_FAILURES = 6  # one after another, with no older worker left
FIRST_DELAY, LONGEST_DELAY = 0.25, 30.0  # seconds before a worker that failed to start is replaced


class Supervisor:
    """Runs ``serve`` in ``count`` processes that share ``listeners``.

    Workers are forked from this process, which starts no thread and opens no session; so they share the memory of the
    code. Each connection goes to the worker with the fewest open; one that is still loading, or whose event loop stands
    still, gets none while another can take it. SIGTERM and SIGINT end the service, after a time to drain; SIGHUP renews
    the workers. Each worker is told when all are ready, as it answers for all.
    """

    def __init__(
        self,
        serve: Callable[[Channel], None],
        count: int,
        listeners: Sequence[socket.socket],
        drain_seconds: float,
        shutdown_seconds: float,
        board: Board,
    ) -> None:
        self._serve = serve
        self._count = count
        self._listeners = listeners
        self._drain_seconds = drain_seconds
        self._drained = math.inf  # when the time to drain is over
        self._board = board
        self._time_to_end = LINGER + shutdown_seconds + 2 * GRACE
        self._workers: list[_Worker] = []
        self._renewed: deque[_Worker] = deque()  # workers that SIGHUP has still to replace
        self._waiting: deque[socket.socket] = deque()  # accepted, and nobody can take them yet
        self._selector = selectors.DefaultSelector()
        self._failures = 0
        self._next_start = 0.0
        self._able: list[_Worker] = []  # those who are given connections
        self._proven = False  # a worker has been live, so the settings are good
        self._started = False  # all have been live at once
        self._complete = False  # all have been ready at once
        self._status = 0
        self._signals: list[int] = []

    def run(self) -> int:
        """Supervise until a signal ends it; answers the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)
        gc.freeze()  # the workers' garbage collectors leave what is here alone, so its memory stays shared
        log.info("supervisor %d starts %d workers", os.getpid(), self._count)
        try:
            while self._tend():
                self._turn()
            self._end()
        finally:
            for worker in self._workers:
                worker.channel.close()  # what still runs notices, and finishes
        return self._status

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _tend(self) -> bool:
        """Look after the workers; False when it is time to end."""
        if self._ends:
            if math.isinf(self._drained):
                self._drained = time.monotonic() + self._drain_seconds
            if self._ends > 1 or time.monotonic() >= self._drained:
                return False
        elif self._signals:
            self._signals.clear()
            log.info("renewing the workers, one after another")
            self._renewed.extend(worker for worker in self._workers if not worker.leaving_since)
        self._bury()
        if self._status:
            return False
        self._free_the_stuck()
        for worker in self._workers:
            if worker.channel.leaving:
                worker.dismiss()
            self._proven |= worker.channel.live
        staying = [worker for worker in self._workers if not worker.leaving_since]
        if self._renewed and len(staying) > self._count and all(worker.channel.ready for worker in staying):
            self._renewed.popleft().dismiss()
        wanted = self._count + bool(self._renewed) if self._proven else 1  # the first shows that the settings are good
        if time.monotonic() >= self._next_start:
            for _ in range(wanted - len(staying)):
                self._start()
        self._choose()
        self._hand_out()
        for worker in self._workers:
            worker.channel.welcome(self._complete and not self._ends)
        return True

    @property
    def _ends(self) -> int:
        """Signals to end that have come."""
        return len(self._signals) - self._signals.count(signal.SIGHUP)

    def _choose(self) -> None:
        """Settle on who is given connections: those whose event loop turns, of them those that are ready.

        Nobody until all are live for the first time, and all alike until all are ready for the first time: so
        connections spread over all from the start.
        """
        able = [worker for worker in self._workers if worker.channel.live and not worker.leaving_since]
        self._started |= len(able) >= self._count
        if not self._started:
            return
        able = [worker for worker in able if worker.channel.silence < SILENT] or able
        ready = [worker for worker in able if worker.channel.ready]
        self._complete |= len(ready) >= self._count
        self._able = (ready or able) if self._complete else able

    def _turn(self) -> None:
        """Accept and hand out connections until it is time to look at the workers."""
        if self._waiting or not self._able:
            time.sleep(TICK)
        until = time.monotonic() + TICK
        while not self._waiting and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._accept(key.data)

    def _accept(self, listener: socket.socket) -> bool:
        """Accept and hand out what has come; False when that is all, or more than the workers can take."""
        for _ in range(BATCH):
            try:
                connection, _address = listener.accept()
            except ConnectionError:  # it is gone already
                continue
            except BlockingIOError:
                return False
            except OSError as error:
                log.error("cannot accept: %s", error.strerror)
                time.sleep(TICK)
                return False
            self._waiting.append(connection)
            if not self._hand_out():
                return False
        return True

    def _hand_out(self) -> bool:
        """Give what waits to the least busy workers; False when something is left."""
        while self._waiting:
            connection = self._waiting[0]
            if not any(worker.hand(connection) for worker in sorted(self._able, key=_Worker.claim)):
                return False
            self._waiting.popleft().close()
        return True

    def _start(self) -> None:
        slot = self._board.take()
        if slot is None:  # those that are leaving have them
            return
        channel = Channel(slot)
        process = multiprocessing.get_context("fork").Process(target=self._work, args=(channel,))
        process.start()
        self._workers.append(_Worker(process, channel))

    def _work(self, channel: Channel) -> None:
        """In the worker: let go of all that is not its own, so that its end is noticed and theirs too; then serve."""
        self._selector.close()
        for other in self._workers:
            other.channel.close()
        for held in (*self._listeners, *self._waiting):
            held.close()
        channel.enter()
        self._serve(channel)

    def _bury(self) -> None:
        now = time.monotonic()
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            self._remove(worker)
            if worker.leaving_since:
                continue
            code = worker.process.exitcode
            if code == STARTUP_FAILURE and not self._proven:  # and it has said why
                self._status = 1
                return
            log.error("worker %d ended (%s)", worker.process.pid, _told(code))
            self._failures = self._failures + 1 if now - worker.born < YOUNG else 0
            if self._failures > 1:
                self._next_start = now + min(FIRST_DELAY * 2 ** (self._failures - 1), LONGEST_DELAY)
            if self._failures >= MOST_FAILURES and not any(now - other.born > YOUNG for other in self._workers):
                log.critical("%d workers in a row ended within %.0f s of their start: giving up", self._failures, YOUNG)
                self._status = 1
                return

    def _remove(self, worker: "_Worker") -> None:
        self._workers.remove(worker)
        with suppress(ValueError):
            self._renewed.remove(worker)
        self._take_back(worker)
        worker.channel.close()
        worker.process.join()
        self._board.give_back(worker.channel.slot)

    def _free_the_stuck(self) -> None:
        """Pass on what waits for a worker whose event loop stands still; end one that hangs or will not go."""
        fresh = any(worker.channel.silence < SILENT for worker in self._able)
        for worker in self._workers:
            if worker.channel.live and not worker.leaving_since and worker.channel.silence > SILENT:
                if fresh:
                    self._take_back(worker)
                if worker.channel.silence > HUNG:
                    log.error("worker %d has hung for %.0f s and is killed", worker.process.pid, HUNG)
                    worker.process.kill()
            if worker.leaving_since and time.monotonic() - worker.leaving_since > self._time_to_end:
                log.error("worker %d did not end in time and is killed", worker.process.pid)
                worker.process.kill()
                self._status = self._status or int(bool(self._signals))

    def _take_back(self, worker: "_Worker") -> None:
        for connection in worker.channel.take_back():
            self._waiting.append(connection)
            worker.handed -= 1

    def _end(self) -> None:
        """Hand out what has been accepted, let the workers finish, see them end; at a second signal, at once."""
        for listener in self._listeners:
            while self._accept(listener):
                pass
            listener.close()
        log.info("ending %d workers", len(self._workers))
        for worker in self._workers:
            worker.dismiss()
        while self._workers:
            if self._ends > 1:
                self._status = 128 + self._signals[-1]
                for worker in self._workers:
                    worker.process.kill()
            self._free_the_stuck()
            for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
                self._status = self._status or int(bool(worker.process.exitcode))
                self._remove(worker)
            time.sleep(TICK / 2)


_TURNS = itertools.count(1)


class _Worker:
    """A worker, as the supervisor sees it."""

    def __init__(self, process: BaseProcess, channel: Channel) -> None:
        self.process = process
        self.channel = channel
        self.born = time.monotonic()
        self.handed = 0
        self._turn = 0
        self.leaving_since = 0.0
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = max(descriptors - SPARE_DESCRIPTORS, descriptors // 2)

    def claim(self) -> tuple[int, int]:
        """Its open connections, those on their way to it included, and its turn: the lowest gets the next one."""
        return self.handed - self.channel.closed, self._turn

    def hand(self, connection: socket.socket) -> bool:
        """Give it the connection; False when it or its channel is full."""
        if self.handed - self.channel.closed >= self._most or not self.channel.hand(connection):
            return False
        self.handed += 1
        self._turn = next(_TURNS)
        return True

    def dismiss(self) -> None:
        """Let it finish and go."""
        if not self.leaving_since:
            self.leaving_since = time.monotonic()
            self.channel.end()


def _told(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"status {code}"
