"""One serving process: uvicorn's server, with a shutdown that loses no request and ends in time."""

import asyncio
import ctypes
import errno
import logging
import math
import os
import resource
import select
import signal
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import HANDLED_SIGNALS

from service.base.budget import Reservation
from service.base.errors import HeedError
from service.http.fast_path import FastProtocol
from service.http.limits import LimitedProtocol
from service.http.tls import CONNECTION_BYTES, LimitedContext
from service.ort.provider import ProviderUnavailable
from service.settings import Settings
from service.workers import last_resort
from service.workers.application import Application
from service.workers.channel import HUNG_S, ServiceState

log = logging.getLogger("heed")

LINGER_S = 0.5  # at the end an idle connection is closed after this time, without an answer that announces it
MIN_WAIT_S = 0.1  # for tasks, after the connections are closed
HANDSHAKE_S = 0.1  # for connections that are being opened to be accepted
NOT_READY = 3  # exit status of a process that lacks required models, if ready_when is all-or-exit or any-or-exit
DEVICE_LOST = 70  # exit status of a process whose device has failed: EX_SOFTWARE of sysexits.h
RETRY_S = 0.1  # before the next tick when one found no memory, and before the next accept when none was possible
SPARE_DESCRIPTORS = 100  # of a process that serves, for everything but its connections
LOG_EVERY_S = 10.0  # that connections wait
TLS_CLOSE_S = 1.0  # for a client's part in the end of a TLS connection
# Accepted before the event loop serves requests. A TLS handshake takes about a millisecond.
MAX_CONNECTIONS_PER_TURN, MAX_HANDSHAKES_PER_TURN = 32, 8
GRACE_S = 2.0  # beyond the time of the settings, to end in good order
SO_ATTACH_FILTER = 26  # of asm/socket.h
DROP_SYN = [  # a program for Linux's packet filter, as (code, jump if true, jump if false, operand)
    (0x30, 0, 0, 13),  # load the byte of the TCP header that holds its flags
    (0x45, 0, 1, 0x02),  # go on where SYN is among them, else skip one
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFFFFFF),  # keep it whole
]


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


def accepted(listener: socket.socket, limit: int) -> Iterator[socket.socket]:
    """The connections that wait at ``listener``, which does not block; at most ``limit``.

    Raises:
        OSError: one cannot be accepted now, for want of descriptors or memory.
    """
    with suppress(BlockingIOError):
        for _ in range(limit):
            with suppress(ConnectionError):  # the client has closed it already
                connection, _address = listener.accept()
                yield connection


def ignore_new_connections(listener: socket.socket) -> None:
    """Have the kernel drop requests to connect, on Linux; connections being opened can still be accepted.

    Closing a listener resets the connections that it has not accepted. A client whose packet was dropped tries again
    after a second; then the port is closed and refuses it, or another process listens and accepts it.
    """
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in DROP_SYN))
    with suppress(OSError):
        address = ctypes.addressof(program)
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(DROP_SYN), address))


def close_overdue(connections: Iterable[asyncio.Protocol]) -> None:
    """Close the connections whose client was too slow."""
    now = time.monotonic()
    for connection in list(connections):
        assert isinstance(connection, LimitedProtocol)
        connection.close_if_overdue(now)


def max_connections() -> int:
    """The limit on a process's connections: that on its descriptors, less those that it needs itself."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(descriptors - SPARE_DESCRIPTORS, descriptors // 2)


class Server(uvicorn.Server):
    """uvicorn's server with a shutdown of its own.

    A signal ends it: for ``settings.drain_seconds`` it goes on serving, but is not ready. Then it accepts no more
    connections, closes each with its next answer or when it is idle, and finishes its runs. If that takes longer than
    ``settings.shutdown_seconds``, it exits with status 1. A second signal ends it at once. A failed device ends it the
    same way, with status 70, and with ``settings.exits_unless_ready`` a first load after which the service is not
    ready, with status 3. A process whose event loop hangs exits with status 1.
    """

    def __init__(self, app: Application, settings: Settings, service: ServiceState) -> None:
        super().__init__(configuration(app, settings))
        self.config.load()
        self._service = service
        self.config.lifespan_class = _Lifespan
        self.protocol = partial(
            FastProtocol,
            settings=settings,
            counts=app.counts,
            budget=app.budget,
            clock=app.clock,
            fast_path=app.fast_path,
        )
        app.clock.connections = lambda: self.server_state.connections
        self.max_connections_per_turn = MAX_HANDSHAKES_PER_TURN if self.config.is_ssl else MAX_CONNECTIONS_PER_TURN
        self._max_connections = max_connections()
        self._connecting: set[asyncio.Task[None]] = set()
        self._next_log = 0.0  # when it may say again that connections wait
        self._budget = app.budget
        self._readiness = app.readiness
        self._repository = app.repository
        self.status = 0  # the exit status, where the process ends in good order
        self._exit_unless_ready = settings.exits_unless_ready
        self._handshake_seconds = settings.transfer_timeout_seconds
        self._drain_seconds = settings.drain_seconds
        self._drained = math.inf  # when the time to drain is over
        self._shutdown_seconds = settings.shutdown_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the connections of ``sockets``.

        uvloop would accept one in each turn of the event loop, however many wait: under load, when a turn takes long,
        they would wait for seconds.
        """
        await super().startup([])
        for listener in sockets or []:
            listener.setblocking(False)
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def main_loop(self) -> None:
        """Tick until it is time to end. A tick that finds no memory does not end the server, which serves on."""
        while True:
            with suppress(MemoryError):
                return await super().main_loop()
            with suppress(MemoryError):
                await asyncio.sleep(RETRY_S)

    async def on_tick(self, counter: int) -> bool:
        self._beat()
        if counter % 10 == 0:  # once a second
            self._end_unless_called_again(HUNG_S)
            close_overdue(self.server_state.connections)
        if self._repository.unrecoverable and not self._readiness.draining:
            log.critical("process %d ends: its device has failed", os.getpid())
            self.drain()
        if self._exit_unless_ready and self._repository.load_has_ended and not self._repository.unrecoverable:
            self._exit_unless_ready = False  # it is about the first load only
            if not self._repository.is_complete and not self._service.is_ready:
                log.critical("process %d ends: the service is not ready (HEED_READY_WHEN)", os.getpid())
                self.status = NOT_READY
                self.should_exit = True
        return await super().on_tick(counter) or time.monotonic() >= self._drained

    def _beat(self) -> None:
        """Publish that the event loop runs, and whether the service is ready: this process is all of it."""
        self._service.beat(bool(self._readiness))

    def connect(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted."""
        task = asyncio.get_running_loop().create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def on_not_connected(self) -> None:
        """A connection was closed, or its TLS handshake failed, before it was served."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal ends the process gracefully, a second one at once."""
        if _is_main_thread():
            for number in HANDLED_SIGNALS:
                signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        if self._readiness.draining:
            os._exit(128 + sig)
        self.drain()

    def drain(self) -> None:
        """Answer that it is not ready, and end after ``drain_seconds``, in which load balancers notice."""
        self._readiness.draining = True
        self._drained = time.monotonic() + self._drain_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, answer the requests on open connections, finish the runs, and end."""
        self._readiness.draining = True
        self._end_unless_called_again(self._shutdown_seconds + 2 * GRACE_S)
        watchdog = threading.Timer(self._shutdown_seconds + GRACE_S, _cut_off)
        watchdog.daemon = True
        watchdog.start()
        start = time.monotonic()
        await self._close_connections(sockets or [])
        remaining_s = self._shutdown_seconds - (time.monotonic() - start)
        # With 0 uvicorn would report a timeout where nothing is left to wait for.
        self.config.timeout_graceful_shutdown = max(MIN_WAIT_S, remaining_s)  # type: ignore[assignment]  # a float too
        for listener in sockets or []:
            asyncio.get_running_loop().remove_reader(listener)
        await super().shutdown(sockets)
        watchdog.cancel()
        if self._repository.unrecoverable:
            logging.shutdown()
            os._exit(DEVICE_LOST)  # to end sessions on a lost device may never end

    def _accept(self, listener: socket.socket) -> None:
        room = self._max_connections - len(self.server_state.connections) - len(self._connecting)
        if room <= 0:
            self._pause(
                listener, f"{self._max_connections} are open, the most that the limit of open files allows (ulimit -n)"
            )
        try:
            for connection in accepted(listener, min(room, self.max_connections_per_turn)):
                self.connect(connection)
        except OSError as error:
            self._pause(listener, error.strerror or str(error))

    def _pause(self, listener: socket.socket, reason: str) -> None:
        """Let new connections wait for ``RETRY_S``."""
        now = time.monotonic()
        if now >= self._next_log:
            log.error("cannot accept connections, new ones wait: %s", reason)
            self._next_log = now + LOG_EVERY_S
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)

        def watch() -> None:
            if listener.fileno() >= 0:  # it is not closed
                loop.add_reader(listener, self._accept, listener)

        loop.call_later(RETRY_S, watch)

    async def _connect(self, connection: socket.socket) -> None:
        protocol = partial(self.protocol, self.config, self.server_state, self.lifespan.state)
        tls = self.config.ssl
        handshake = Reservation(self._budget)
        try:
            if tls:
                handshake.add(CONNECTION_BYTES)
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                connection,
                ssl=tls,
                ssl_handshake_timeout=self._handshake_seconds if tls else None,
                ssl_shutdown_timeout=TLS_CLOSE_S if tls else None,
            )
        except (OSError, MemoryError, HeedError):
            self.on_not_connected()
            connection.close()
        finally:
            handshake.release()

    def _end_unless_called_again(self, seconds: float) -> None:
        if _is_main_thread():  # else the process belongs to the caller
            last_resort.end_unless_called_again(seconds)

    async def _close_connections(self, listeners: list[socket.socket]) -> None:
        """Close each connection with its next answer, or when it has been idle for ``LINGER_S``.

        Where no descriptor was free, clients still wait to be accepted: to close the listeners would reset them.
        """
        state, waiting = self.server_state, select.poll()
        state.default_headers = [*state.default_headers, (b"connection", b"close")]
        for listener in listeners:
            ignore_new_connections(listener)
            waiting.register(listener, select.POLLIN)
        for connection in state.connections:
            assert isinstance(connection, LimitedProtocol)
            connection.announce_close()
        start = now = time.monotonic()
        # A connection counts from the end of its TLS handshake on.
        opened = start + (LINGER_S if self.config.is_ssl else HANDSHAKE_S)
        idle_since: dict[LimitedProtocol, float] = {}
        end = start + self._shutdown_seconds
        while now < opened or (now < end and (state.connections or waiting.poll(0))):
            for connection in list(state.connections):
                assert isinstance(connection, LimitedProtocol)
                if not connection.is_idle:
                    idle_since.pop(connection, None)
                elif now - idle_since.setdefault(connection, now) > LINGER_S:
                    connection.transport.close()
            await asyncio.sleep(0.01)
            now = time.monotonic()
        unread = [connection for connection in state.connections if connection.is_writing]  # type: ignore[union-attr]
        for connection in unread:
            connection.transport.abort()
        if unread:
            log.warning("connections closed because clients did not read their responses in time: %d", len(unread))


def configuration(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """The configuration of uvicorn for ``app``."""
    return uvicorn.Config(
        app,
        http="httptools",
        lifespan="on",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        ssl_context_factory=_tls_context if settings.tls_certificate else None,
        timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]  # it takes fractions, too
        timeout_graceful_shutdown=settings.shutdown_seconds,
    )


def _tls_context(config: uvicorn.Config, _: object) -> ssl.SSLContext:
    """As uvicorn has it, with limits."""
    context = LimitedContext(config.ssl_version)
    assert config.ssl_certfile is not None, "it is called for TLS only"
    context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    return context


class _Lifespan(LifespanOn):
    """Reports a provider that is not available in one line; any other failure to start keeps its traceback."""

    async def send(self, message: Any) -> None:
        failure = sys.exception()
        if isinstance(message, Mapping) and isinstance(failure, ProviderUnavailable):
            message = {**message, "message": str(failure)}
        await super().send(message)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _cut_off() -> None:
    log.error("worker %d did not finish within the time to shut down and exits", os.getpid())
    logging.shutdown()
    os._exit(1)
