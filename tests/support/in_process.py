"""A server in a thread of this process, and a client that tells which of its requests got a task."""

import json
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import parse_headers
from pathlib import Path
from unittest import mock

import pytest

from service.app import create_app
from service.base.budget import MemoryBudget
from service.engine import engine
from service.http import fast_path, routing
from service.settings import Settings
from service.workers.channel import shared_state
from service.workers.server import Server, listen
from tests.support.http_client import is_ready
from tests.support.http_requests import CRLF, add, http
from tests.support.waiting import until

LOOP = logging.getLogger("asyncio")
MEASURED = re.compile(rb"waited [\d,]+ microseconds")
OF_ITS_OWN = {"date", "x-request-id", "server-timing"}  # of each answer


class ServerThread:
    """A real server over ``models`` in a thread of this process, so that its protocol can be looked at."""

    def __init__(self, models: Path, **more) -> None:
        chosen = Settings(model_repository=models, **{"shutdown_seconds": 20, **more})
        self.server = Server(create_app(chosen), chosen, shared_state())
        self.tasks = 0  # started; a request without one was answered on the fast path

        def count_one() -> None:
            self.tasks += 1

        class Counted(fast_path.FastProtocol):
            def _start_task(self) -> None:
                count_one()
                super()._start_task()

        self.server.protocol = partial(Counted, **self.server.protocol.keywords)
        (listener,) = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, args=([listener],))

    @property
    def budget(self) -> MemoryBudget:
        return self.server.protocol.keywords["budget"]

    @property
    def connections(self) -> set:
        return self.server.server_state.connections

    def is_ready(self) -> bool:
        return self.server.started and is_ready(self.port)


@contextmanager
def serving_in_process(models: Path, inline_ns: int = 10**12, **more) -> Iterator[ServerThread]:
    """It ends in good order, and nothing went wrong on the event loop, behind the answers.

    Work that is estimated to take longer than ``inline_ns`` runs in a thread.
    """
    with mock.patch.object(engine, "INLINE_NS", inline_ns):
        yield from _serving_in_process(models, **more)


def _serving_in_process(models: Path, **more) -> Iterator[ServerThread]:
    service, errors = ServerThread(models, **more), Errors(logging.ERROR)
    LOOP.addHandler(errors)
    service.thread.start()
    try:
        until(service.is_ready)
        yield service
    finally:
        service.server.should_exit = True
        service.thread.join(60)
        LOOP.removeHandler(errors)
    assert not service.thread.is_alive()
    assert not service.connections
    assert not errors.messages


class Errors(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(logging.Formatter().format(record))


class Answer:
    """Status, headers and body; ``alike`` is what two answers to one request have in common."""

    def __init__(self, status: int, fields: list[tuple[str, str]], body: bytes) -> None:
        self.status, self.fields, self.body = status, dict(fields), body
        assert len(self.fields) == len(fields)
        others = [field for field in fields if field[0] not in OF_ITS_OWN and field[0] != "content-length"]
        self.alike = status, others, MEASURED.sub(b"waited", body)
        assert int(self.fields.get("content-length", len(body))) == len(body)

    def sum(self) -> list[float]:
        assert self.status == 200, self.body
        return json.loads(self.body)["outputs"][0]["data"]


class Client:
    """One connection."""

    def __init__(self, service: ServerThread, room: int = 0) -> None:
        self.service = service
        self.socket = socket.socket()
        self.socket.settimeout(30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if room:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        self.socket.connect(("127.0.0.1", service.port))
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self.file.close()
        self.socket.close()

    @property
    def connection(self) -> fast_path.FastProtocol:
        """The server's end."""
        address = self.socket.getsockname()
        return until(lambda: next((of for of in list(self.service.connections) if of.client == address), None))

    def end_read_time(self, early_s: float = 0) -> None:
        """Let the server look at what is awaited as it does when the time for it is over, or ``early_s`` before."""
        own = self.connection
        until(lambda: own._awaited_since < math.inf)
        assert own._awaited_since > time.monotonic() - 60, "it counts from a request before"
        now = own._awaited_since + own.read_timeout_seconds + 0.1 - early_s
        own.loop.call_soon_threadsafe(own.close_if_overdue, now)

    def reset(self) -> None:
        """Have the connection be reset, not ended, when it is closed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def send(self, *pieces: bytes) -> None:
        """Each in a packet of its own, as far as the machine lets it."""
        for piece in pieces:
            self.socket.sendall(piece)
            if len(pieces) > 1:
                time.sleep(0.002)

    def answer(self) -> Answer:
        line = self.file.readline()
        assert line, "the connection was closed"
        if line == b"HTTP/1.1 100 Continue\r\n":
            assert self.file.readline() == CRLF
            line = self.file.readline()
        status = int(line.split()[1])
        fields = parse_headers(self.file).items()
        return Answer(status, fields, self.file.read(int(dict(fields)["content-length"])))

    def ask(self, *pieces: bytes) -> Answer:
        self.send(*pieces)
        return self.answer()

    def ask_quick(self, *pieces: bytes) -> Answer:
        """An answer that has to be given on the fast path."""
        before = self.service.tasks
        answer = self.ask(*pieces)
        assert self.service.tasks == before
        return answer

    def ask_ordinary(self, request: bytes) -> Answer:
        """The answer of an ASGI task, which a client gets that waits for ``100 Continue``."""
        before = self.service.tasks
        answer = self.ask(request.replace(CRLF, CRLF + b"Expect: 100-continue" + CRLF, 1))
        assert self.service.tasks == before + 1
        return answer

    def learn(self, request: bytes) -> Answer:
        """Ask until it is answered on the fast path: what the request costs has to be known first."""
        for _ in range(3 * routing.SKIP_AFTER_MISS):
            before = self.service.tasks
            answer = self.ask(request)
            assert answer.status == 200, answer.body
            if self.service.tasks == before:
                return answer
        pytest.fail("it always had a task")

    def is_closed(self, seconds: float = 60) -> bool:
        """The server closes it in that time, without another word."""
        self.socket.settimeout(seconds)
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


def known(client: Client) -> bytes:
    """A request that is answered on the fast path."""
    client.learn(http(add(1.5)))
    return http(add(2.5))
