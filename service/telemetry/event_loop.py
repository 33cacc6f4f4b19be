"""The load of the event loop: its lag, and the time for which requests waited for it.

Short requests are answered on the event loop itself. Under load they wait in the kernel, before this process knows of
them, so no queue grows: what shows is that the loop is late, and that its thread never rests.
"""

import asyncio
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any

from service.telemetry.counters import histogram_of

SAMPLE_S = 0.05  # between two measurements of the lag
WINDOW_S = 15.0  # of the largest lag and of the busy share: the usual interval of scrapes
LATE_NS = 5_000_000  # of a timer, whose clock has steps of 1 ms
UNREAD_S = 1.0  # between two counts of connections with unread bytes
MIN_WAIT_NS = 8_000_000  # from which the kernel is asked how long a request waited; its clock has steps of some 4 ms
TURN_GAP_NS = 500_000  # between two turns of the loop, up to which the loop did not rest between them
LAST_DATA_RECEIVED = 52  # offset in Linux's struct tcp_info of the milliseconds since data came, four bytes
TCP_INFO_BYTES = 56


class EventLoopClock:
    """Measures the event loop that calls ``sample``. Other threads may read the numbers."""

    def __init__(self) -> None:
        self.connections: Callable[[], Collection[Any]] = list  # that are open, as uvicorn's protocols
        self._lag_bits = [0] * 64  # samples by the bits of their nanoseconds
        self._lag_ns = 0  # their sum
        self.unread = 0  # connections with bytes that are not read yet, when they were counted last
        self._counted = 0.0
        self._samples: deque[tuple[float, int, int]] = deque()  # time, lag and processor time, both in nanoseconds
        self._turn_began = self._turn_ended = self._last_turn = 0  # a turn reads what has come on all connections

    @property
    def lags(self) -> list[int]:
        """The histogram of lags."""
        return histogram_of(self._lag_bits, self._lag_ns)

    @property
    def busy_ns(self) -> int:
        """Processor time of the event loop's thread."""
        return self._samples[-1][2] if self._samples else 0

    @property
    def busy_share(self) -> float:
        """The share of the last ``WINDOW_S`` in which the event loop was busy.

        That is the share in which its thread computed, or, if that is larger, in which a timer was late: a thread that
        waits for a processor computes nothing, and answers nothing either.
        """
        samples = [*self._samples]
        if len(samples) < 2:
            return 0.0
        computed = (samples[-1][2] - samples[0][2]) / 1e9 / (samples[-1][0] - samples[0][0])
        late_s = sum(now - before for (before, *_), (now, lag, _) in pairwise(samples) if lag > LATE_NS)
        return min(1.0, max(computed, late_s / (samples[-1][0] - samples[0][0])))

    @property
    def largest_lag_s(self) -> float:
        """The largest lag of the last ``WINDOW_S``, in seconds."""
        return max((lag for _, lag, _ in [*self._samples]), default=0) / 1e9

    def sample(self) -> None:
        """Measure the lag. To be called by the event loop ``SAMPLE_S`` after the last call, and so as late as it is."""
        now, computed = time.perf_counter(), time.thread_time_ns()
        if self._samples:
            lag = max(0, round(1e9 * (now - self._samples[-1][0] - SAMPLE_S)))
            self._lag_bits[lag.bit_length()] += 1
            self._lag_ns += lag
        else:
            lag = 0
        self._samples.append((now, lag, computed))
        while self._samples[0][0] < now - WINDOW_S:
            self._samples.popleft()
        if now - self._counted > UNREAD_S:
            self._counted, self.unread = now, self._count_unread()

    def arrival_ns(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> int:
        """When the data just read from ``transport`` came to this machine, by ``time.perf_counter_ns``.

        A busy loop reads late: the data of a turn was there when the turn began, and without a rest before it, came
        during the last turn. If the wait may be long, the kernel's measurement decides, after a gap between turns too:
        the loop rested in it, or its thread was preempted. To be called for each request, as it is read.
        """
        now = time.perf_counter_ns()
        if not self._turn_began:
            self._turn_began = now
            loop.call_soon(self._end_turn)
        has_gap = self._turn_began - self._turn_ended > TURN_GAP_NS
        if now - self._turn_ended + self._last_turn >= MIN_WAIT_NS:
            waited = _waited_ns(transport.get_extra_info("socket"))
            if waited >= MIN_WAIT_NS or not has_gap:
                return now - waited
        return self._turn_began if has_gap else self._turn_began - self._last_turn // 2

    def _count_unread(self) -> int:
        poll = select.poll()
        for connection in self.connections():
            raw: socket.socket | None = connection.transport.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                poll.register(raw.fileno(), select.POLLIN)
        return len(poll.poll(0))

    def _end_turn(self) -> None:
        self._turn_ended = time.perf_counter_ns()
        self._last_turn, self._turn_began = self._turn_ended - self._turn_began, 0


def _waited_ns(raw: socket.socket | None) -> int:
    """How long the last data waited in the kernel; 0 where the kernel does not report it."""
    try:
        information = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES) if raw else b""
    except (OSError, AttributeError):  # it is closed; or another system
        return 0
    return 1_000_000 * int.from_bytes(information[LAST_DATA_RECEIVED : LAST_DATA_RECEIVED + 4], "little")
