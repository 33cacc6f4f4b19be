"""A worker: a server that does not listen, but gets its connections from the supervisor."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from service.settings import Settings
from service.workers.application import Application
from service.workers.channel import Channel, ServiceState
from service.workers.server import Server


class Worker(Server):
    """Serves the connections of ``channel`` until it ends."""

    def __init__(self, app: Application, settings: Settings, channel: Channel, service: ServiceState) -> None:
        super().__init__(app, settings, service)
        self._channel = channel
        app.readiness.is_complete = lambda: service.is_ready
        self.protocol = partial(self.protocol, on_closed=channel.count_closed)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets or [])
        self._beat()
        asyncio.get_running_loop().add_reader(self._channel, self._take)

    def on_not_connected(self) -> None:
        self._channel.count_closed()

    def _beat(self) -> None:
        self._channel.beat(self._repository.ready.is_set(), self._repository.is_complete)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM asks the supervisor for the end; SIGINT and SIGHUP, which a terminal sends to all, are ignored.

        The kernel also sends SIGTERM when the supervisor ends, for each of its threads.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self.handle_exit)
        yield

    def handle_exit(self, _sig: int, _frame: FrameType | None) -> None:
        self._channel.state.exit_requested = True

    def drain(self) -> None:
        """Ask the supervisor for the end; it hands out no more connections and starts another worker."""
        self._readiness.draining = True
        self._channel.state.exit_requested = True

    def _take(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            for connection in self._channel.take(self.max_connections_per_turn):
                self.connect(connection)
        except EOFError:
            loop.remove_reader(self._channel)
            self.should_exit = True
