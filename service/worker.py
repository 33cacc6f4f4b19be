"""A worker: a server that does not listen, but is handed its connections."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from service.app import Application
from service.channel import Channel
from service.server import Server
from service.settings import Settings

AT_ONCE = 16  # connections taken before requests get their turn


class Worker(Server):
    """Serves the connections of ``channel`` until it ends. ``ready`` tells whether the models are loaded."""

    def __init__(self, app: Application, settings: Settings, channel: Channel, ready: Callable[[], bool]) -> None:
        super().__init__(app, settings)
        self._channel = channel
        app.readiness.others = lambda: channel.welcoming
        self._ready = ready
        self._connecting: set[asyncio.Task[None]] = set()
        plain: Any = self.config.http_protocol_class

        class Counted(plain):  # type: ignore[misc]
            def connection_lost(self, error: Exception | None) -> None:
                channel.count_closed()
                super().connection_lost(error)

        self._protocol = Counted

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets or [])
        self._channel.beat(self._ready())
        asyncio.get_running_loop().add_reader(self._channel, self._take)

    async def on_tick(self, counter: int) -> bool:
        self._channel.beat(self._ready())
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM asks the supervisor to be let go; SIGINT and SIGHUP, sent to all by a terminal, are its affair."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self.handle_exit)
        yield

    def handle_exit(self, _sig: int, _frame: FrameType | None) -> None:
        self._channel.leave()

    def drain(self) -> None:
        """Ask the supervisor to be let go; it hands out no more connections and starts another worker."""
        self._readiness.draining = True
        self._channel.leave()

    def _take(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            for connection in self._channel.take(AT_ONCE):
                task = loop.create_task(self._connect(connection))
                self._connecting.add(task)
                task.add_done_callback(self._connecting.discard)
        except EOFError:
            loop.remove_reader(self._channel)
            self.should_exit = True

    async def _connect(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._speak, connection, ssl=self.config.ssl)
        except OSError:  # it is gone already, or its TLS handshake failed
            self._channel.count_closed()
            connection.close()

    def _speak(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self._protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol
