"""One serving process: uvicorn's server, and an end to it that loses no request and comes in time."""

import asyncio
import errno
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.lifespan.on import LifespanOn

from service.app import Application
from service.limits import Limits, limited
from service.protocol import speaking
from service.provider import ProviderUnavailable
from service.settings import Settings

log = logging.getLogger("heed")

LINGER = 0.5  # seconds in which clients with open connections hear that they are to be closed
LOST = 70  # exit status of a process whose device is lost: EX_SOFTWARE of sysexits.h
GRACE = 2.0  # seconds, beyond the settings' bound, to end in good order


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of ``host``, all on one port; port 0 takes a free one.

    Raises:
        OSError: there is no such host, or the port is taken.
    """
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
        chosen = listeners[0].getsockname()[1] if listeners else port
        try:
            listeners.append(socket.create_server((address[0], chosen, *address[2:]), family=family, backlog=2048))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            missing = error  # localhost names ::1 even where there is no IPv6
    if missing and not listeners:
        raise missing
    return listeners


class Server(uvicorn.Server):
    """uvicorn's server, but for its end.

    A signal ends it: for ``settings.drain_seconds`` it goes on, but says that it is not ready; for a moment it closes
    each connection with an answer; then it takes no more, finishes what runs, and is cut off (exit status 1) when that
    takes longer than ``settings.shutdown_seconds``. A second signal ends it at once. A lost device ends it the same way
    (exit status 70).
    """

    def __init__(self, app: Application, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                lifespan="on",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                ssl_certfile=settings.tls_certificate,
                ssl_keyfile=settings.tls_key,
                timeout_graceful_shutdown=settings.shutdown_seconds,
            )
        )
        self.config.load()
        self.config.lifespan_class = _Lifespan
        self.config.http_protocol_class = limited(Limits if app.watches else speaking(app), settings, app.counts)
        self._readiness = app.readiness
        self._repository = app.repository
        self._drain_seconds = settings.drain_seconds
        self._drained = math.inf  # when the time to drain is over
        self._bound = settings.shutdown_seconds + GRACE

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Limits)
                connection.look(now)
        if self._repository.is_beyond_help and not self._readiness.draining:
            log.critical("process %d ends: its device is lost", os.getpid())
            self.drain()
        return await super().on_tick(counter) or time.monotonic() >= self._drained

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        """Ends the process gracefully, the second time at once."""
        if self._readiness.draining:
            os._exit(128 + sig)
        self.drain()

    def drain(self) -> None:
        """Say that it is not ready, and end once others had the time to notice."""
        self._readiness.draining = True
        self._drained = time.monotonic() + self._drain_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what runs, and end."""
        self._readiness.draining = True
        watchdog = threading.Timer(self._bound, _cut_off)
        watchdog.daemon = True
        watchdog.start()
        state = self.server_state
        state.default_headers = [*state.default_headers, (b"connection", b"close")]
        loop = asyncio.get_running_loop()
        until = loop.time() + LINGER
        while state.connections and loop.time() < until:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)
        watchdog.cancel()
        if self._repository.is_beyond_help:
            os._exit(LOST)  # to end sessions on a lost device may never end


class _Lifespan(LifespanOn):
    """Says in one line which setting keeps the application from starting; anything else keeps its traceback."""

    async def send(self, message: Any) -> None:
        failure = sys.exception()
        if isinstance(message, Mapping) and isinstance(failure, ProviderUnavailable):
            message = {**message, "message": str(failure)}
        await super().send(message)


def _cut_off() -> None:
    log.error("worker %d still had work past the time to shut down, and was cut off", os.getpid())
    os._exit(1)
