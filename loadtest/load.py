"""The load one process makes on one server, from its event loop.

Closed: each connection posts again as soon as it is answered. Open: requests begin at Poisson's instants, whatever the
server does, and latency counts from the instant a request should have begun: a server that stands still is charged with
every request that came due meanwhile (coordinated omission corrected at its root).
"""

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass
from itertools import cycle
from random import Random

import numpy as np

from loadtest.arrivals import Arrivals
from loadtest.connection import Connection, Request

RETRY = 0.1  # seconds until a connection that could not be made, or broke, is tried again
BEAT = 0.02  # seconds between looks at how late the event loop is
ORDER = 4096  # requests are drawn by their shares once, and asked in that order over and over


@dataclass(frozen=True)
class Turn:
    """What a process is to do: ``connections`` is the load of a closed loop, and the most of an open one."""

    host: str
    port: int
    tls: bool
    requests: list[Request]
    shares: list[float]
    connections: int
    rate: float | None  # a second; None: closed
    timeout: float  # seconds
    tick: float  # seconds
    seed: int


@dataclass(frozen=True)
class Tick:
    """What happened in a process since its last tick. Latencies are seconds, float32."""

    phase: str  # warm-up, measured, or late: answers to measured requests after the end
    seconds: float
    arrived: int
    answered: int  # with 200
    latencies: np.ndarray
    kinds: np.ndarray  # of those requests
    errors: dict[str, int]
    cpu: float  # seconds of this process
    lags: np.ndarray  # seconds by which this process itself was late
    waiting: int  # requests begun and not answered
    last: bool


class Load:
    """One turn. Phases follow each other: ``measure`` ends the warm-up, ``finish`` the measured one."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._loop = asyncio.get_running_loop()
        random = Random(turn.seed)
        self._next = cycle(random.choices(turn.requests, turn.shares, k=ORDER)).__next__
        self._arrivals = Arrivals(self._loop, turn.rate, random, self._arrive) if turn.rate else None
        self._open: set[Connection] = set()
        self._making = 0  # connections
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[Connection] = []
        self._queue: deque[tuple[Request, float]] = deque()  # of an open loop, when no connection is free
        self._phase = "warm-up"
        self._since = 0.0  # an open loop counts what should have begun from here on
        self._reset()

    def start(self) -> None:
        self._beat_due = time.perf_counter() + BEAT
        self._beating = self._loop.call_later(BEAT, self._beat)
        for _ in range(1 if self._arrivals else self.turn.connections):
            self._connect()
        if self._arrivals:
            self._arrivals.start()

    def measure(self) -> Tick:
        tick = self.tick()
        self._phase = "measured"
        if self._arrivals:
            self._since = time.perf_counter()
        return tick

    async def finish(self) -> tuple[Tick, Tick]:
        """The last measured tick; and one of what came late, which only an open loop waits for."""
        measured = self.tick()
        self._phase = "late"
        if self._arrivals:
            self._arrivals.stop()
            end = time.perf_counter() + self.turn.timeout
            while self._waiting and time.perf_counter() < end:
                await asyncio.sleep(0.01)
            if self._waiting:
                self._errors["never answered"] += self._waiting
        self._phase = "over"
        self._beating.cancel()
        for connection in [*self._open]:
            connection.abort("")
        for task in [*self._tasks]:
            task.cancel()
        tick = self.tick("late", last=True)
        return measured, tick

    def tick(self, phase: str | None = None, last: bool = False) -> Tick:
        """All since the last one. Requests older than the timeout are given up."""
        now = time.perf_counter()
        for connection in [each for each in self._open if each.waits and now - each.sent > self.turn.timeout]:
            connection.abort("timeout")
        cpu = time.process_time()
        tick = Tick(
            phase or self._phase,
            now - self._began,
            self._arrived,
            self._answered,
            np.array(self._latencies, np.float32),
            np.array(self._kinds, np.uint16),
            dict(self._errors),
            cpu - self._cpu,
            np.array(self._lags, np.float32),
            self._waiting,
            last,
        )
        self._reset()
        return tick

    def _reset(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        self._arrived = self._answered = 0
        self._latencies: list[float] = []
        self._kinds: list[int] = []
        self._lags: list[float] = []
        self._errors: Counter[str] = Counter()

    @property
    def _waiting(self) -> int:
        return len(self._queue) + sum(each.waits for each in self._open)

    def _connect(self) -> None:
        if self._phase == "over":
            return
        self._making += 1
        task = self._loop.create_task(self._make())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make(self) -> None:
        turn = self.turn
        try:
            await self._loop.create_connection(
                lambda: Connection(self._done, self._free, self._lost), turn.host, turn.port, ssl=turn.tls or None
            )
        except OSError as error:
            self._errors[f"no connection: {error.strerror or error}"] += 1
            self._loop.call_later(RETRY, self._connect)
        finally:
            self._making -= 1

    def _free(self, connection: Connection) -> None:
        self._open.add(connection)
        now = time.perf_counter()
        if self._arrivals:
            if self._queue:
                connection.post(*self._queue.popleft(), now)
            else:
                self._idle.append(connection)
        elif self._phase != "over":
            self._arrived += 1
            connection.post(self._next(), now, now)

    def _arrive(self, due: float) -> None:
        """In an open loop: a request is due since the second ``due``."""
        if self._phase not in ("warm-up", "measured"):
            return
        now = time.perf_counter()
        self._lags.append(now - due)
        self._arrived += 1
        if self._idle:
            self._idle.pop().post(self._next(), due, now)
            return
        self._queue.append((self._next(), due))
        if self._making < len(self._queue) and len(self._open) + self._making < self.turn.connections:
            self._connect()

    def _done(self, request: Request, began: float, how: int | str) -> None:
        if how == 200:
            self._answered += 1
            if began >= self._since:
                self._latencies.append(time.perf_counter() - began)
                self._kinds.append(request.kind)
        elif self._phase != "over" and began >= self._since:
            self._errors[f"status {how}" if isinstance(how, int) else how] += 1

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._arrivals or self._queue:
            self._loop.call_later(0 if connection.answers else RETRY, self._connect)

    def _beat(self) -> None:
        now = time.perf_counter()
        if not self._arrivals:
            self._lags.append(max(0.0, now - self._beat_due))
        self._beat_due = now + BEAT
        self._beating = self._loop.call_later(BEAT, self._beat)
