"""Clients that keep one connection each, as a browser or a proxy does, and requests for the hand-written models."""

import http.client
import json
import re
import ssl
import threading
from contextlib import ExitStack, closing
from typing import Protocol

from tests.support.waiting import until

ADD = json.dumps(
    {"inputs": [{"name": name, "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]} for name in ("x", "z")]}
)
ADDED = [3.0, 5.0, 7.0]
CLOSED = (http.client.IncompleteRead, ConnectionError)


def rows_of_512(rows: int) -> str:
    """A request to a ``slow`` model: its run takes as much longer as it has more rows."""
    tensor = {"name": "x", "shape": [rows, 512], "datatype": "FP32", "data": [1.0] * rows * 512}
    return json.dumps({"inputs": [tensor]})


SLOW = rows_of_512(128)


class Addressed(Protocol):
    """A server on this machine."""

    @property
    def port(self) -> int: ...


class Connection(http.client.HTTPConnection):
    """A client that keeps its one connection, and never opens another by itself."""

    auto_open = 0

    def __init__(self, port: int, trust: ssl.SSLContext | None = None) -> None:
        super().__init__("127.0.0.1", port, timeout=60)
        self.connect()
        if trust:
            self.sock = trust.wrap_socket(self.sock, server_hostname="127.0.0.1")
        self.own_port = self.sock.getsockname()[1]
        self.closing = False

    def ask(self, path: str, body: str | None = None) -> bytes:
        """The body of a good answer; ``closing`` when the server announced that it is the last."""
        self.request("POST" if body else "GET", path, body)
        response = self.getresponse()
        assert response.status == 200, response.read()
        self.closing = response.will_close
        return response.read()

    def add(self) -> None:
        assert json.loads(self.ask("/v2/models/adder/infer", ADD))["outputs"][0]["data"] == ADDED


def is_ready(port: int, trust: ssl.SSLContext | None = None) -> bool:
    """Whether the server is ready; of several workers, the next in turn answers."""
    with closing(Connection(port, trust)) as connection:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200


def gauge(port: int, name: str, trust: ssl.SSLContext | None = None) -> float:
    """The metric ``heed_<name>``, over all workers; 0 where it has no such series yet."""
    with closing(Connection(port, trust)) as connection:
        metrics = connection.ask("/metrics").decode()
    sample = re.search(rf"^heed_{re.escape(name)} (\S+)$", metrics, re.MULTILINE)
    return float(sample[1]) if sample else 0.0


def open_connections(server: Addressed, count: int, stack: ExitStack) -> list[Connection]:
    """New connections, each with an answer; ``stack`` closes them."""
    connections = [stack.enter_context(closing(Connection(server.port))) for _ in range(count)]
    for connection in connections:
        connection.add()
    return connections


class Clients:
    """``count`` clients that ask without pause and note what failed, until the server refuses their connections.

    When a request fails or the server closes a connection, a client opens another, or with ``reopen`` False leaves it
    at that; with ``keep`` False it opens one for each request.
    """

    def __init__(self, server: Addressed, count: int, reopen: bool = True, keep: bool = True) -> None:
        self.connections = [Connection(server.port) for _ in range(count)]
        self.asked = [0] * count
        self.failed: list[int] = []  # the client's port, for each request
        self.wrong: list[BaseException] = []
        self._server = server
        self._reopen, self._keep = reopen, keep
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        until(lambda: self.wrong or min(self.asked) > 20)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.wrong

    def each_asks(self, times: int) -> None:
        before = list(self.asked)
        until(lambda: self.wrong or all(now >= then + times for now, then in zip(self.asked, before, strict=True)))

    def _ask(self, number: int) -> None:
        connection = self.connections[number]
        try:
            while not self._stop.is_set():
                try:
                    connection.add()
                except CLOSED:
                    self.failed.append(connection.own_port)
                    connection.closing = True
                self.asked[number] += 1
                if connection.closing or not self._keep:
                    connection.close()
                    if not self._reopen:
                        return
                    try:
                        connection = self.connections[number] = Connection(self._server.port)
                    except ConnectionRefusedError:
                        return
        except BaseException as error:
            self.wrong.append(error)
        finally:
            connection.close()
