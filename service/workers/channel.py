"""Between the processes of a service: pages of memory with their state, and a socket that carries connections."""

import mmap
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from ctypes import Structure, c_bool, c_int64

from service.telemetry.shared_metrics import WorkerSlot

HUNG_S = 30.0  # a process whose event loop has not run for this time is ended


class State(Structure):
    """The state that a worker and the supervisor share, in memory that both have mapped."""

    closed: int  # connections that the worker has taken and closed
    heartbeat_ns: int  # of time.monotonic_ns: when the worker's event loop last turned
    live: bool  # the worker answers requests
    ready: bool  # it has loaded the models that can be loaded, and can run them
    complete: bool  # it has loaded as many models as the service needs to be ready
    exit_requested: bool  # the worker asks the supervisor to end the channel

    _fields_ = (
        *((name, c_int64) for name in ("closed", "heartbeat_ns")),
        *((name, c_bool) for name in ("live", "ready", "complete", "exit_requested")),
    )


class ServiceState(Structure):
    """The state of the service, which the process that serves, or supervises, tells all processes."""

    heartbeat_ns: int  # of time.monotonic_ns: when that process last turned
    is_ready: bool  # all workers have been ready and complete at one time, and the service is not about to end

    _fields_ = (("heartbeat_ns", c_int64), ("is_ready", c_bool))

    def beat(self, is_ready: bool) -> None:
        """Say that the process runs, and whether the service is ready. To be called several times a second."""
        self.is_ready, self.heartbeat_ns = is_ready, time.monotonic_ns()

    @property
    def is_live(self) -> bool:
        """Whether the process turned lately: one that hangs for longer is ended."""
        return time.monotonic_ns() - self.heartbeat_ns < HUNG_S * 1e9


def shared_state() -> ServiceState:
    """A state in memory that processes forked later share."""
    return ServiceState.from_buffer(mmap.mmap(-1, mmap.PAGESIZE))


class Channel:
    """Made before the worker is forked, so that both have it.

    Connections that wait in the channel are not lost: the supervisor can take them back from a worker that hangs or has
    exited. A worker finishes when the channel ends, by ``end()`` or because the supervisor has exited.
    """

    def __init__(self, slot: WorkerSlot) -> None:
        self.slot = slot  # where the worker publishes its metrics
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self.state = State.from_buffer(mmap.mmap(-1, mmap.PAGESIZE))

    # The supervisor's side.

    def hand(self, connection: socket.socket) -> bool:
        """Give the worker a connection; False when the channel is full."""
        try:
            socket.send_fds(self._near, [b"c"], [connection.fileno()])
        except OSError:  # EAGAIN; ETOOMANYREFS, too many on their way
            return False
        return True

    def take_back(self) -> Iterator[socket.socket]:
        """The connections that the worker has not taken."""
        with suppress(BlockingIOError, EOFError):
            while True:
                yield self._receive()

    def end(self) -> None:
        """End the channel; the connections in it still arrive."""
        self._near.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close both ends in this process."""
        self._near.close()
        self._far.close()

    @property
    def silence_s(self) -> float:
        """Seconds since the worker's event loop last turned."""
        return (time.monotonic_ns() - self.state.heartbeat_ns) / 1e9

    # The worker's side.

    def close_parent_end(self) -> None:
        """In the worker: close the near end, so that only the supervisor has it."""
        self._near.close()

    def fileno(self) -> int:
        """The descriptor that is readable when connections have come."""
        return self._far.fileno()

    def take(self, max_connections: int) -> Iterator[socket.socket]:
        """The connections that have come, at most ``max_connections``.

        Raises:
            EOFError: the channel has ended.
        """
        with suppress(BlockingIOError):
            for _ in range(max_connections):
                yield self._receive()

    def count_closed(self) -> None:
        """Count a closed connection."""
        self.state.closed += 1

    def beat(self, ready: bool, complete: bool) -> None:
        """Publish that the event loop runs, and the worker's state."""
        state = self.state
        state.heartbeat_ns, state.live, state.ready, state.complete = time.monotonic_ns(), True, ready, complete

    def _receive(self) -> socket.socket:
        while True:
            word, descriptors, _, _ = socket.recv_fds(self._far, 1, 1)
            if descriptors:
                return socket.socket(fileno=descriptors[0])
            if not word:
                raise EOFError
            self.count_closed()  # this process has no descriptor free; the kernel closed the connection
