"""Between the supervisor and one worker: connections go one way, and a page of memory that both see tells the rest."""

import mmap
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

from service.board import Slot

CLOSED, BEAT, LIVE, READY, LEAVING, WELCOMING = range(6)


class Channel:
    """Made before the worker is forked, so that both have it.

    What waits in the channel is not lost: the supervisor can take it back from a worker that hangs or has died. The
    channel's end, by ``end()`` or by the supervisor's death, is what tells a worker to finish.
    """

    def __init__(self, slot: Slot) -> None:
        self.slot = slot  # where the worker puts up what it counts
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._page = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")

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
        with suppress(BlockingIOError):
            while (connection := self._receive()) is not None:
                yield connection

    def end(self) -> None:
        """No more connections; what is in the channel still arrives."""
        self._near.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of both ends, in this process."""
        self._near.close()
        self._far.close()

    def welcome(self, welcoming: bool) -> None:
        """Tell the worker whether the service as a whole is ready."""
        self._page[WELCOMING] = welcoming

    @property
    def closed(self) -> int:
        """Connections taken and closed by now."""
        return self._page[CLOSED]

    @property
    def silence(self) -> float:
        """Seconds since the worker's event loop last turned."""
        return (time.monotonic_ns() - self._page[BEAT]) / 1e9

    @property
    def live(self) -> bool:
        """The worker answers."""
        return bool(self._page[LIVE])

    @property
    def ready(self) -> bool:
        """Its models are loaded."""
        return bool(self._page[READY])

    @property
    def leaving(self) -> bool:
        """It asks to be let go."""
        return bool(self._page[LEAVING])

    # The worker's side.

    def enter(self) -> None:
        """This process is the worker: from here on only the supervisor holds the near end."""
        self._near.close()

    def fileno(self) -> int:
        """What to wait on for connections."""
        return self._far.fileno()

    def take(self, most: int) -> Iterator[socket.socket]:
        """The connections that have come, ``most`` at a time.

        Raises:
            EOFError: there will be no more.
        """
        with suppress(BlockingIOError):
            for _ in range(most):
                connection = self._receive()
                if connection is None:
                    raise EOFError
                yield connection

    @property
    def welcoming(self) -> bool:
        """All workers are ready, and the service is not about to end."""
        return bool(self._page[WELCOMING])

    def count_closed(self) -> None:
        """A connection is closed."""
        self._page[CLOSED] += 1

    def beat(self, ready: bool) -> None:
        """The event loop turns."""
        self._page[BEAT] = time.monotonic_ns()
        self._page[LIVE] = True
        self._page[READY] = ready

    def leave(self) -> None:
        """Ask for the channel's end."""
        self._page[LEAVING] = True

    def _receive(self) -> socket.socket | None:
        while True:
            word, descriptors, _, _ = socket.recv_fds(self._far, 1, 1)
            if descriptors:
                return socket.socket(fileno=descriptors[0])
            if not word:
                return None
            self.count_closed()  # this process has no descriptor free; the kernel closed the connection
