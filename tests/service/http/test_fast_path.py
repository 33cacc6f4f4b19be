"""The fast path: which requests take it, that their answers are those of the ordinary way, and abuse."""

import json
import logging
import os
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import parse_headers
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from service.app import create_app
from service.http import fast_path, routing
from service.model.graph import Graph
from service.model.model import Model
from service.settings import Settings
from service.telemetry import tracing
from service.telemetry.spans import Request, Tracer
from service.timing import STAGES
from service.workers.server import Server, listen
from tests.support import graphs
from tests.support.v2 import tensor

LOOP = logging.getLogger("asyncio")
CRLF = b"\r\n"
ADDER = "/v2/models/adder/infer"
SDPA = "/v1/attention/scaled_dot_product"
SLOW = {"inputs": [tensor("x", np.ones((64, 512)))]}
OF_ITS_OWN = {"date", "x-request-id", "server-timing"}  # of each answer


class Service:
    """A real server over ``models`` in a thread of this process, so that its protocol can be looked at."""

    def __init__(self, models: Path, **more) -> None:
        chosen = Settings(model_repository=models, **{"inline_microseconds": 10**6, "shutdown_seconds": 20, **more})
        self.server = Server(create_app(chosen), chosen)
        self.tasks = 0  # started; a request without one was answered on the fast path

        def count_one() -> None:
            self.tasks += 1

        class Counted(fast_path.FastProtocol):
            def _start_task(self) -> None:
                count_one()
                super()._start_task()

        self.server.config.http_protocol_class = partial(Counted, **self.server.protocol.keywords)
        (listener,) = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, args=([listener],))

    @property
    def connections(self) -> set:
        return self.server.server_state.connections

    def is_ready(self) -> bool:
        return self.server.started and httpx.get(f"http://127.0.0.1:{self.port}/v2/health/ready").status_code == 200


@contextmanager
def serving(models: Path, **more) -> Iterator[Service]:
    """It ends in good order, and nothing went wrong on the event loop, behind the answers."""
    service, errors = Service(models, **more), Errors(logging.ERROR)
    LOOP.addHandler(errors)
    service.thread.start()
    try:
        until(service.is_ready)
        yield service
    finally:
        service.server.should_exit = True
        service.thread.join(30)
        LOOP.removeHandler(errors)
    assert not service.thread.is_alive()
    assert not service.connections
    assert not errors.messages


class Errors(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(logging.Formatter().format(record))


class Answer:
    def __init__(self, status: int, fields: list[tuple[str, str]], body: bytes) -> None:
        self.status, self.fields, self.body = status, dict(fields), body
        assert len(self.fields) == len(fields)
        self.alike = status, [field for field in fields if field[0] not in OF_ITS_OWN], body

    def sum(self) -> list[float]:
        assert self.status == 200, self.body
        return json.loads(self.body)["outputs"][0]["data"]


class Client:
    """One connection."""

    def __init__(self, service: Service, room: int = 0) -> None:
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

    def is_closed(self, seconds: float = 30) -> bool:
        """The server closes it in that time, without another word."""
        self.socket.settimeout(seconds)
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


def until(true, seconds=30):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.002)


def http(body: dict | bytes, path: str = ADDER, *lines: str, method: str = "POST", version: str = "1.1") -> bytes:
    """A request whose length is declared."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(f"{method} {path} HTTP/{version}", f"Content-Length: {len(content)}", *lines) + content


def head(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in [lines[0], "Host: here", *lines[1:], ""]).encode()


def add(x: float, **more) -> dict:
    """A body that the adder answers with ``x`` + 1, thrice."""
    return {"inputs": [tensor("x", [[round(x, 1)] * 3]), tensor("z", [[0] * 3])], **more}


def add_binary(x: float, *lines: str) -> bytes:
    """The same, with tensors behind the JSON both ways."""
    array = np.full((1, 3), x, np.float32)
    inputs = [
        {"name": name, "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}} for name in "xz"
    ]
    content = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    length = f"Inference-Header-Content-Length: {len(content)}"
    return http(content + array.tobytes() + (0 * array).tobytes(), ADDER, length, *lines)


def sums_body(x: float) -> dict:
    """A body with an output that fails in JSON if it is no number."""
    return {"inputs": [tensor(name, [[x] * 3]) for name in "xy"]}


def named(x: float, name: str) -> bytes:
    """The same with an id, as tritonclient writes it."""
    return json.dumps({"id": name, **add(x)}, separators=(",", ":")).encode()


def attend(x: float) -> dict:
    return {"query": [[x]], "key": [[1.0]], "value": [[x]]}


@pytest.fixture(scope="module")
def models(repository, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(repository / "scaled_dot_product", folder / "scaled_dot_product")
    graphs.adder(folder / "adder" / "1")
    graphs.adder(folder / "adder%31" / "1", 5.0)
    graphs.adder(folder / "adder1" / "1", 9.0)
    graphs.lookup(folder / "lookup" / "1")
    graphs.slow(folder / "slow" / "1", 200)
    return folder


@pytest.fixture(scope="module")
def service(models) -> Iterator[Service]:
    with serving(models, allow_timeout_override=True) as service:
        yield service


@pytest.fixture
def client(service) -> Iterator[Client]:
    with Client(service) as client:
        yield client


@pytest.fixture
def other(service) -> Iterator[Client]:
    with Client(service) as client:
        yield client


def known(client: Client) -> bytes:
    """A request that is answered on the fast path."""
    client.learn(http(add(1.5)))
    return http(add(2.5))


@pytest.mark.parametrize(
    "request_",
    [http(add(1.5)), http(named(1.5, "7")), add_binary(1.5), http(attend(1.5), SDPA)],
    ids=["json", "named", "binary", "native"],
)
def test_both_ways_answer_alike(request_, client, other):
    quick = client.learn(request_)
    ordinary = other.ask_ordinary(request_)
    assert quick.alike == ordinary.alike
    assert quick.fields.keys() == ordinary.fields.keys()


MODES: dict[str, dict[str, Any]] = {
    "an access log": {"access_log": "all"},
    "an access log of errors": {"access_log": "errors"},
    "traces": {},
    "traces and an access log": {"access_log": "all"},
    "keys": {"api_keys_file": "keys"},
    "origins": {"cors_origins": "https://here.example"},
    "all of it": {"access_log": "all", "api_keys_file": "keys", "cors_origins": "https://here.example"},
}


class SpansOfRequests(Tracer):
    """Keeps the spans that it would send."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.kept: list[Span] = []

    def add(self, request: tuple[Any, ...]) -> None:
        messages: list[bytes] = []
        self._encode(Request(*request), messages)
        self.kept += ScopeSpans.FromString(b"".join(messages)).spans


@pytest.fixture
def spans(monkeypatch) -> list[Span]:
    """The spans of servers that trace."""
    tracer = SpansOfRequests("heed")
    monkeypatch.setattr(tracing, "is_wanted", lambda: True)
    monkeypatch.setattr(tracing, "create_tracer", lambda _name: tracer)
    return tracer.kept


@pytest.mark.parametrize("mode", MODES)
def test_both_ways_are_logged_traced_and_guarded_alike(mode, models, tmp_path, request, caplog):
    (tmp_path / "keys").write_text("mine\n")
    traced = request.getfixturevalue("spans") if "traces" in mode or mode == "all of it" else None
    more = {name: tmp_path / value if name == "api_keys_file" else value for name, value in MODES[mode].items()}
    live = http(b"", "/v2/health/live", method="GET")
    lines = ["X-Request-ID: a", f"traceparent: 00-{'1' * 32}-{'2' * 16}-01", "X-API-Key: mine"]
    caplog.set_level(logging.INFO)

    def seen(ask, sent: bytes) -> tuple:
        third.ask(live)
        caplog.clear()
        if traced is not None:
            traced.clear()
        answer = ask(sent)
        third.ask(live)  # what is logged of a request is logged before another one is answered
        logged = [logged_fields(record) for record in caplog.records if record.getMessage() == "request"]
        ended = list(traced or [])
        spans = [(span.name, str(span.attributes), span.status.code, span.kind) for span in ended]
        parents = [(span.trace_id, bool(span.parent_span_id), span.flags) for span in ended]
        return answer.alike, list(answer.fields), logged, spans, parents

    def logged_fields(record: logging.LogRecord) -> dict[str, Any]:
        timed = {"created", "msecs", "relativeCreated", "milliseconds", *STAGES}
        return {name: None if name in timed else value for name, value in vars(record).items() if name != "taskName"}

    with serving(models, **more) as service, ExitStack() as clients:
        client, other, third = (clients.enter_context(Client(service)) for _ in range(3))
        for good, bad in (
            (http(add(1.5), ADDER, *lines), http(sums_body(66), ADDER, *lines)),
            (add_binary(1.5, *lines), http(b"{", ADDER, *lines)),
            (http(attend(1.5), SDPA, *lines), http({**attend(1.5), "key": [[1, 2]]}, SDPA, *lines)),
        ):
            client.learn(good)
            for sent in (good, bad):
                other.ask_ordinary(sent)  # what the first request of its kind learns is learned
                client.learn(good)
                quick, ordinary = seen(client.ask_quick, sent), seen(other.ask_ordinary, sent)
                assert quick == ordinary
                is_logged = "access_log" in more and (more["access_log"] == "all" or sent is bad)
                assert len(quick[2]) == is_logged
                assert len(quick[3]) == (traced is not None) * (5 if sent is good else len(quick[3]))
        if "api_keys_file" in more:
            for wrong in ("X-API-Key: other", "X: none"):
                sent = http(add(1.5), ADDER, *lines[:2], wrong)
                answers = seen(client.ask, sent), seen(other.ask_ordinary, sent)
                assert answers[0] == answers[1]
                assert answers[0][0][0] == 401
        if "cors_origins" in more:
            sent = http(add(1.5), ADDER, *lines, "Origin: https://here.example")
            answers = seen(client.ask, sent), seen(other.ask_ordinary, sent)
            assert answers[0] == answers[1]
            assert "access-control-allow-origin" in answers[0][1]


def test_each_request_is_answered_for_itself(client):
    known(client)
    for x in np.arange(1.5, 9.5):
        assert client.ask_quick(http(add(x))).sum() == [x + 1] * 3
        client.learn(add_binary(x))
        quick = client.ask_quick(add_binary(x))
        array = np.frombuffer(quick.body[int(quick.fields["inference-header-content-length"]) :], np.float32)
        assert (array == x + 1).all()


def test_ids(service, client, other):
    """One's own is said back, and never another's; else each has a new one."""
    mine, yours = (http(add(1.5), ADDER, f"X-Request-ID: {name}") for name in ("mine!", "yours"))
    none = known(client)
    client.learn(mine)
    other.learn(yours)
    asked = [(who, what) for who in (client, other) for what in (mine, yours, none, none)]
    names = [who.ask_quick(what).fields["x-request-id"] for who, what in asked]
    assert names[:2] == names[4:6] == ["mine!", "yours"]
    assert len(set(names)) == 6


ORDINARY = {  # requests that always have a task
    "GET": http(b"", method="GET"),
    "HEAD": http(b"", "/v2/health/live", method="HEAD"),
    "PUT": http(add(1.5), method="PUT"),
    "HTTP/1.0": http(add(1.5), version="1.0"),
    "HTTP/1.0 that stays": http(add(1.5), ADDER, "Connection: keep-alive", version="1.0"),
    "close": http(add(1.5), ADDER, "Connection: close"),
    "continue": http(add(1.5), ADDER, "Expect: 100-continue"),
    "chunked": head(f"POST {ADDER} HTTP/1.1", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n",
    "nowhere": http(add(1.5), "/v2/models/adder/else"),
    "no length": http(add(1.5), ADDER, "Inference-Header-Content-Length: -1"),
    "more than all": http(add(1.5), ADDER, "Inference-Header-Content-Length: 4000"),
    "long body": http(b" " * (fast_path.MAX_BODY_BYTES + 1)),
    "compressed": http(attend(1.5), SDPA, "Content-Encoding: gzip"),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_a_request_that_always_has_a_task(name, service):
    request = ORDINARY[name]
    for _ in range(3):
        with Client(service) as client:
            before = service.tasks
            client.send(request)
            assert client.file.readline().startswith(b"HTTP/1.1 ")
            assert service.tasks == before + 1


UNUSUAL = {  # heads that are unusual, and say the same
    "upgrade": http(add(1.5), ADDER, "Connection: upgrade", "Upgrade: other"),
    "twice": http(add(1.5), ADDER, "X: 1", "X: 1"),
    "an id twice": http(add(1.5), ADDER, "X-Request-ID: 1", "X-Request-ID: 2"),
    "long head": http(add(1.5), ADDER, "X: " + "x" * 4096),
    "two spaces": http(add(1.5), " " + ADDER),
    "blanks around a value": http(add(1.5), ADDER, "X-Request-ID: \t mine \t "),
    "a deadline": http(add(1.5), ADDER, "X-Request-Timeout: 10"),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_head_is_answered_alike_on_both_ways(name, client, other):
    request = UNUSUAL[name]
    quick, ordinary = client.learn(request), other.ask_ordinary(request)
    assert quick.alike == ordinary.alike
    assert quick.fields.keys() == ordinary.fields.keys()
    if b"X-Request-ID" in request:
        assert quick.fields["x-request-id"] == ordinary.fields["x-request-id"]


LENGTH = len(http(add(1.5)).partition(CRLF * 2)[2])
MALFORMED = {
    "two lengths": http(add(1.5), ADDER, f"Content-Length: {LENGTH}"),
    "another length": http(add(1.5), ADDER, "Content-Length: 0"),
    "chunked, too": http(add(1.5), ADDER, "Transfer-Encoding: chunked"),
    "chunked before": http(add(1.5)).replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"),
    "identity": http(add(1.5), ADDER, "Transfer-Encoding: identity"),
    "folded": http(add(1.5), ADDER, "X: y\r\n z"),
    "bare LF": http(add(1.5)).replace(b"Host: here\r\n", b"Host: here\n"),
    "bare LF at the end": http(add(1.5)).replace(b"\r\n\r\n", b"\n\n"),
    "bare CR": http(add(1.5), ADDER, "X: y\rz"),
    "NUL": http(add(1.5), ADDER, "X: \0"),
    "NUL in the path": http(add(1.5), ADDER + "\0"),
    "space before colon": http(add(1.5)).replace(b"Length:", b"Length :"),
    "plus": http(add(1.5)).replace(b"Length: ", b"Length: +"),
    "hexadecimal": http(add(1.5)).replace(b"Length: ", b"Length: 0x"),
    "no colon": http(add(1.5), ADDER, "X"),
    "no request": b"\0" + http(add(1.5)),
    "lower case": http(add(1.5), method="post"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_head_is_refused_after_a_good_one(name, service, client):
    client.ask_quick(known(client))
    for _ in range(2):
        with Client(service) as fresh:
            assert fresh.ask(MALFORMED[name]).status == 400
            assert fresh.is_closed()
    assert client.ask(MALFORMED[name]).status == 400
    assert client.is_closed()


@pytest.mark.parametrize(
    ("url", "summand"),
    [
        (f"{ADDER}?x=/v2/models/adder1/infer", 1),
        (f"http://elsewhere{ADDER}", 1),
        ("/v2/models/%61dder/infer", 1),
        ("/v2/models/adder%31/infer", 9),  # adder1: a folder is called adder%31, too
        ("/v2/models/adder%2531/infer", 5),
        (f"{ADDER}/", 1),
        ("/v2/models/adder/versions/001/infer", 1),
    ],
)
def test_a_path_says_what_it_says_to_all(url, summand, client):
    request = http(add(1.5), url)
    assert client.ask_ordinary(request).sum() == [1.5 + summand] * 3
    assert client.learn(request).sum() == [1.5 + summand] * 3


def test_a_body_that_reads_like_a_head_is_none(client, other):
    """Its packet begins with the body of one request, and ends with another request of the same path."""
    said = head(f"POST {ADDER} HTTP/1.1", f"Content-Length: {LENGTH}", "X: a")
    real = http(add(1.5, id="5" * 9), ADDER, "X: b")
    first = http(said)
    client.send(first[: -len(said)])
    time.sleep(0.1)
    client.send(first[-len(said) :] + real)
    assert [client.answer().status, client.answer().status] == [400, 200]
    assert other.ask(said + json.dumps(add(2.5)).encode()).sum() == [3.5] * 3


def test_a_body_that_reads_like_a_request_is_none(client):
    """The request it belongs to is answered before it comes."""
    request = known(client)
    about = head("POST /v2/models/none/infer HTTP/1.1", f"Content-Length: {2 * len(request)}")
    assert client.ask(about).status == 404
    client.send(request, request)
    assert client.ask(http(add(4.5))).sum() == [5.5] * 3


def test_a_header_that_reads_like_a_request_is_none(client):
    request = known(client)
    client.send(b"POST /v2/models/none/infer HTTP/1.1\r\nX: ", request)
    assert client.answer().status == 404
    assert client.ask(http(add(4.5))).sum() == [5.5] * 3


def test_of_requests_in_one_packet_no_head_is_taken_for_another(client):
    one = http(add(1.5), ADDER, "Expect: 100-continue")
    client.send(one + http(add(1.5, id="5" * 9), ADDER, "Accept: 100-continue"))
    assert client.file.readline() == b"HTTP/1.1 100 Continue\r\n"
    assert client.file.readline() == CRLF
    assert [client.answer().sum(), client.answer().sum()] == [[2.5] * 3] * 2


def test_requests_in_one_packet(client):
    request = known(client)
    client.send(request * 3 + request[:-1])
    assert [client.answer().sum() for _ in range(3)] == [[3.5] * 3] * 3
    client.send(request[-1:] + request[:40])
    assert client.answer().sum() == [3.5] * 3
    assert client.ask(request[40:]).sum() == [3.5] * 3
    client.learn(request)
    client.send(request[:-5], request[-5:] + request, request)
    assert [client.answer().sum() for _ in range(3)] == [[3.5] * 3] * 3
    assert client.ask(request + b"\r\n").sum() == [3.5] * 3
    assert client.ask(request + b"\0").sum() == [3.5] * 3
    assert client.answer().status == 400
    assert client.is_closed()


def test_a_request_in_two_pieces(client):
    request = known(client)
    body = request.index(CRLF * 2) + 4
    for cut in [1, 5, body - 3, body - 1, body, body + 1, len(request) - 1]:
        assert client.ask_quick(request[:cut], request[cut:]).sum() == [3.5] * 3


@pytest.mark.parametrize("request_", [http(add(2.5)), add_binary(2.5)], ids=["json", "binary"])
def test_a_request_byte_by_byte(request_, client):
    alike = client.learn(request_).alike
    body = request_.index(CRLF * 2) + 4
    assert client.ask_quick(*(request_[i : i + 1] for i in range(len(request_)))).alike == alike
    quick = client.ask_quick(request_[:body], *(request_[i : i + 1] for i in range(body, len(request_))))
    assert quick.alike == alike


def test_a_body_that_does_not_come_goes_the_ordinary_way(service, client, monkeypatch):
    monkeypatch.setattr(fast_path, "BODY_TIMEOUT_S", 0.1)
    request = known(client)
    before = service.tasks
    client.send(request[:-9])
    until(lambda: service.tasks == before + 1)
    client.send(request[-9:] + request)
    assert [client.answer().sum() for _ in range(2)] == [[3.5] * 3] * 2


def test_a_known_request_waits_for_the_one_before(service, client):
    request = known(client)
    before = service.tasks
    client.send(http(SLOW, "/v2/models/slow/infer"))
    until(lambda: service.tasks == before + 1)
    client.send(request)
    assert json.loads(client.answer().body)["model_name"] == "slow"
    assert client.answer().sum() == [3.5] * 3


def test_clients_that_hang_up(service, client, monkeypatch):
    monkeypatch.setattr(fast_path, "BODY_TIMEOUT_S", 0.1)
    request = known(client)
    reset = b"\1\0\0\0\0\0\0\0"
    for how in (None, reset):
        for cut in (20, -20, len(request)):
            with Client(service) as fresh:
                fresh.send(request[:cut])
                if how:
                    fresh.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)
    until(lambda: len(service.connections) == 1)
    time.sleep(2 * fast_path.BODY_TIMEOUT_S)
    client.learn(request)


def test_a_client_that_sends_no_more_still_gets_its_answers(service, hasty, client):
    """On the quick way, on the ordinary one, in a thread, and with requests behind one another."""
    quick = known(client)
    other = http(add(2.5), ADDER, "X: _")
    slow = http(SLOW, "/v2/models/slow/infer")
    for at, requests in (
        (service, [quick]),
        (service, [other]),
        (service, [http(b"", "/v2/models/adder", method="GET")]),
        (hasty, [slow]),
        (hasty, [slow, other, other]),
        (hasty, [http(SLOW, "/v2/models/slow/infer", version="1.0")]),
    ):
        with Client(at) as half:
            half.socket.sendall(b"".join(requests))
            half.socket.shutdown(socket.SHUT_WR)
            assert [half.answer().status for _ in requests] == [200] * len(requests)
            assert half.is_closed()
    with Client(service) as half:  # half a request is none
        half.socket.sendall(other[:-5])
        half.socket.shutdown(socket.SHUT_WR)
        assert half.is_closed()


def test_a_client_that_has_closed_is_found_out_and_one_that_sends_no_more_is_not(hasty):
    """Both look alike until they are written to, which happens where an answer takes its time."""
    long = {"inputs": [tensor("x", np.ones((1000, 512)))]}
    with Client(hasty) as half, Client(hasty) as gone:
        for one in (half, gone):
            one.send(http(long, "/v2/models/slow/infer"))
        half.socket.shutdown(socket.SHUT_WR)
        until(lambda: len(hasty.server.server_state.tasks) == 2)
        gone.file.close()
        gone.socket.close()
        until(lambda: len(hasty.connections) == 1, 20)
        assert half.file.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert half.file.readline() == CRLF
        assert half.answer().status == 200
        assert half.is_closed()


def test_blank_lines_do_not_keep_an_idle_connection(service, monkeypatch):
    monkeypatch.setattr(service.server.config, "timeout_keep_alive", 1)
    with Client(service) as fresh, Client(service) as early:
        known(fresh)
        fresh.send(CRLF)
        assert early.ask(head("POST /v2/models/none/infer HTTP/1.1", "Content-Length: 9")).status == 404
        early.send(b"123456789")
        assert fresh.is_closed(5)
        assert early.is_closed(5)


def test_a_client_that_never_reads_is_not_written_to_without_end(service, client):
    rows = np.ones((1000, 3))
    request = http({"inputs": [tensor("x", rows), tensor("z", rows)]})
    with Client(service, room=4096) as greedy:
        length = len(greedy.learn(request).body)
        (own,) = (of for of in service.connections if of.client == greedy.socket.getsockname())
        state, before = service.server.server_state, service.tasks
        while not own.flow.write_paused:  # each comes by itself, and is answered at once
            answered = state.total_requests
            greedy.send(request)
            until(lambda: state.total_requests > answered)  # noqa: B023
        assert service.tasks == before
        greedy.send(request)
        until(lambda: service.tasks == before + 1)
        greedy.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            greedy.send(request * 1000)
        assert own.transport.get_write_buffer_size() < 100_000 + 2 * length
        client.ask_quick(known(client))
    until(lambda: own not in service.connections)


def test_a_connection_is_closed_when_it_is_idle_and_not_before(service, monkeypatch):
    monkeypatch.setattr(service.server.config, "timeout_keep_alive", 1)
    monkeypatch.setattr(fast_path, "BODY_TIMEOUT_S", 0.5)
    with Client(service) as busy, Client(service) as idle, Client(service) as slow:
        request = known(busy)
        idle.ask_quick(request)
        slow.ask_quick(request)
        slow.send(request[:-5])
        for _ in range(12):
            time.sleep(0.2)
            busy.ask_quick(request)
        assert slow.ask(request[-5:]).sum() == [3.5] * 3
        assert idle.is_closed(0.1)
        began = time.monotonic()
        assert busy.is_closed(5)
        assert 0.9 < time.monotonic() - began < 3


def test_a_request_that_comes_in_time_is_answered_however_late_it_is_read(service, monkeypatch):
    monkeypatch.setattr(service.server.config, "timeout_keep_alive", 1)
    with Client(service) as client:
        request = known(client)
        client.ask_quick(request)
        (own,) = (of for of in service.connections if of.client == client.socket.getsockname())
        is_blocked = threading.Event()

        def block() -> None:
            is_blocked.set()
            time.sleep(1.5)

        own.loop.call_soon_threadsafe(block)
        assert is_blocked.wait(10)
        client.ask_quick(request)
        assert client.is_closed(5)


def test_a_body_on_its_way_is_answered_before_the_end(models):
    with serving(models) as service, Client(service) as client, Client(service) as idle:
        request = known(client)
        idle.ask_quick(request)
        client.send(request[:-5])
        time.sleep(0.1)
        service.server.should_exit = True
        assert idle.is_closed()
        answer = client.ask(request[-5:])
        assert answer.sum() == [3.5] * 3
        assert answer.fields["connection"] == "close"
        assert client.is_closed()


def test_while_it_ends_each_answer_closes_its_connection(models):
    with serving(models) as service, Client(service) as client:
        request = known(client)
        service.server.should_exit = True
        until(lambda: (b"connection", b"close") in service.server.server_state.default_headers)
        before = service.tasks
        assert client.ask(request).fields["connection"] == "close"
        assert service.tasks == before + 1
        assert client.is_closed()


def test_models_that_come_and_go(tmp_path):
    graphs.adder(tmp_path / "adder" / "1")
    with serving(tmp_path, model_control_mode="explicit") as service, Client(service) as client:
        request = known(client)
        assert client.ask(http(b"", "/v2/repository/models/adder/unload")).status == 200
        assert client.ask(request).status == 404
        graphs.adder(tmp_path / "adder" / "2", 2.0)
        assert client.ask(http(b"", "/v2/repository/models/adder/load")).status == 200
        assert client.ask(request).sum() == [4.5] * 3
        answer = client.learn(request)
        assert answer.sum() == [4.5] * 3
        assert json.loads(answer.body)["model_version"] == "2"


def test_keys_are_checked_for_each_request_and_followed_when_they_change(models, tmp_path):
    file = tmp_path / "keys"
    file.write_text("old\n")
    mine, none, wrong = (
        http(add(1.5), ADDER, *lines) for lines in (["X-API-Key: old"], [], ["Authorization: Bearer x"])
    )
    with serving(models, api_keys_file=file) as service, Client(service) as client:
        assert client.learn(mine).sum() == [2.5] * 3
        for refused in (none, wrong) * 3:
            assert client.ask(refused).status == 401
            assert client.ask_quick(mine).sum() == [2.5] * 3
        (tmp_path / "next").write_text("new\n")
        os.replace(tmp_path / "next", file)
        until(lambda: client.ask(mine).status == 401)
        assert client.ask(mine).status == 401
        assert client.learn(http(add(1.5), ADDER, "X-API-Key: new")).sum() == [2.5] * 3


def test_keys_of_administrators_leave_the_quick_way(models, tmp_path):
    (tmp_path / "keys").write_text("admin\n")
    with serving(models, admin_keys_file=tmp_path / "keys") as service, Client(service) as client:
        assert client.ask_quick(known(client)).sum() == [3.5] * 3
        assert client.ask(http(b"{}", "/v2/logging")).status == 401


def test_limits_hold_after_quick_answers(models):
    with serving(models, read_timeout_seconds=0.5, max_header_bytes=4096) as service:
        for piece, status in ((b"X: " + b"x" * 8192, 431), (b"X", 408), (b"Content-Length: 9\r\n\r\n{", 408)):
            with Client(service) as client:
                request = known(client)
                for _ in range(4):
                    time.sleep(0.4)
                    assert client.ask_quick(request).sum() == [3.5] * 3  # what was before does not count against it
                began = time.monotonic()
                client.send(f"POST {ADDER} HTTP/1.1\r\nHost: here\r\n".encode() + piece)
                refused = client.answer()
                assert refused.status == status
                assert json.loads(refused.body)["error"].endswith(".")
                assert client.is_closed()
                assert (status == 431) == (time.monotonic() - began < 0.4)


LAST = {  # what comes behind a request that is still being answered, and what is said to it then
    "no HTTP": (b"\0", 400),
    "a broken head": (MALFORMED["two lengths"], 400),
    "a broken chunk": (head(f"POST {ADDER} HTTP/1.1", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n-1\r\n", 400),
    "a long head": (b"GET /v2 HTTP/1.1\r\nX: " + b"x" * (70 << 10), 431),
    "no head": (b"GET /v2 HTTP/1.1\r\n", 408),
    "no body": (http(add(1.5))[:-5], 408),
}


@pytest.fixture(scope="module")
def hasty(models) -> Iterator[Service]:
    """A server that waits half a second for a request to come, and runs all in threads."""
    with serving(models, read_timeout_seconds=0.5, inline_microseconds=0) as service:
        yield service


@pytest.mark.parametrize("name", LAST)
def test_what_is_refused_waits_for_the_answers_before(name, hasty):
    last, status = LAST[name]
    with Client(hasty) as client:
        client.send(http(SLOW, "/v2/models/slow/infer") + http(add(4.5)) + last)
        assert json.loads(client.answer().body)["model_name"] == "slow"
        assert client.answer().sum() == [5.5] * 3
        refused = client.answer()
        assert (refused.status, refused.fields["connection"]) == (status, "close")
        assert json.loads(refused.body).keys() & {"error", "detail"}
        assert client.is_closed()


TWO_LENGTHS = ("Content-Length: 2", "Content-Length: 3")
REFUSED = {
    "no HTTP": (b"\0\0\0\0\r\n\r\n", None),
    "of V2": (head(f"POST {ADDER} HTTP/1.1", *TWO_LENGTHS), ADDER),
    "of the native API": (head(f"POST {SDPA} HTTP/1.1", *TWO_LENGTHS), SDPA),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_of_the_parser_is_an_error_of_the_api(name, client):
    request, path = REFUSED[name]
    refused = client.ask(request)
    assert refused.status == 400
    what = "Invalid HTTP request received."
    if path == ADDER:
        assert refused.fields["content-type"] == "application/json"
        assert json.loads(refused.body) == {"error": what}
    else:
        assert refused.fields["content-type"] == "application/problem+json"
        problem = json.loads(refused.body)
        assert (problem["status"], problem["title"], problem["detail"]) == (400, "Bad Request", what)
    assert client.is_closed()


def test_a_client_that_hangs_up_with_requests_in_the_pipe(hasty, caplog):
    """The one that runs is not written to a connection that is gone, though others came behind it."""
    for last in (b"", LAST["a broken chunk"][0]):
        with Client(hasty) as client:
            client.send(http(add(4.5)) + http(SLOW, "/v2/models/slow/infer") + http(add(5.5)) + last)
            assert client.answer().sum() == [5.5] * 3
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    until(lambda: not hasty.connections)
    until(lambda: not hasty.server.server_state.tasks)
    assert "Traceback" not in caplog.text


def test_what_is_answered_early_is_not_answered_twice(hasty):
    """Its body does not come: the connection is closed without another word."""
    with Client(hasty) as client:
        assert client.ask(head("POST /v2/models/none/infer HTTP/1.1", "Content-Length: 9")).status == 404
        assert client.is_closed()


def test_a_body_that_is_too_long(models):
    with serving(models, max_body_bytes=LENGTH) as service, Client(service) as client:
        client.learn(http(add(1.5)))
        long = http(add(1.5, id="7"))
        answers = [client.ask(long) for _ in range(3)]
        assert {answer.status for answer in answers} == {400}
        assert all(b"max_body_bytes" in answer.body for answer in answers)
        assert client.ask_quick(http(add(1.5))).status == 200


@pytest.mark.parametrize("body", [named, lambda x, name: {"id": name, **add(x)}, lambda x, name: add(x, id=name)])
def test_an_id_in_the_body_is_said_back_wherever_it_stands(body, client):
    for name in "aabba":
        assert json.loads(client.ask(http(body(1.5, name))).body)["id"] == name


def test_a_run_that_fails(client):
    """What was learned of a request that was right does not hide that one like it is wrong."""

    def ids(number):
        return http({"inputs": [tensor("ids", [[number]], "INT64")]}, "/v2/models/lookup/infer")

    assert client.learn(ids(1)).sum() == [10]
    failures = [client.ask(ids(7)) for _ in range(2)]
    assert failures[0].alike == failures[1].alike
    assert b"cannot be run on these inputs" in failures[0].body
    assert client.learn(ids(2)).sum() == [20]


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """The models that are run, one after another; a run of inputs with a 66 ends in an error that nobody expects."""
    names: list[str] = []
    run = Model.run

    def counted(model: Model, graph: Graph, inputs: dict[str, np.ndarray], *more: Any) -> dict[str, np.ndarray]:
        names.append(model.name)
        if any((array == 66).any() for array in inputs.values()):
            raise ValueError("secret")
        return run(model, graph, inputs, *more)

    monkeypatch.setattr(Model, "run", counted)
    return names


def lookup(number: int) -> bytes:
    return http({"inputs": [tensor("ids", [[number]], "INT64")]}, "/v2/models/lookup/infer")


def sums(x: float) -> bytes:
    return http({"inputs": [tensor(name, [[x] * 3]) for name in "xz"], "outputs": [{"name": "y"}]})


def scores(x: float) -> bytes:
    return http({**attend(x), "key": [[x]], "outputs": ["scores"]}, SDPA)


FAILURES = {  # a request that is answered at once, one that fails, with which status, and what it runs
    "a run": (lookup(1), lookup(7), 400, ["lookup"]),
    "a run, unexpectedly": (sums(1.5), sums(66), 500, ["adder"]),
    "a run, unexpectedly, in binary": (add_binary(1.5), add_binary(66), 500, ["adder"]),
    "a run, unexpectedly, natively": (scores(1.5), scores(66), 500, ["scaled_dot_product"]),
    "numbers that overflow": (sums(1.5), sums(3e38), 400, ["adder"]),
    "numbers that overflow natively": (scores(1.5), scores(3e38), 422, ["scaled_dot_product"]),
    "a wrong tensor": (scores(1.5), http({**attend(1.5), "key": [[1, 2]]}, SDPA), 422, []),
    "no JSON": (scores(1.5), http(b"{" * 60, SDPA), 400, []),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_is_not_run_again(name, service, client, other, runs, caplog):
    """What is answered, counted and logged is what the ordinary way answers, counts and logs."""
    good, bad, status, run = FAILURES[name]
    counts = service.server.config.app.counts
    client.learn(good)

    def failures() -> list[int]:
        models = json.loads(other.ask(http(b"", "/v2/models/stats", method="GET")).body)["model_stats"]
        return [model["inference_stats"]["fail"]["count"] for model in models]

    outcomes = []
    for ask in (client.ask_quick, other.ask_ordinary):
        failed, counted = failures(), Counter(counts.failed)
        runs.clear()
        caplog.clear()
        answer = ask(bad)
        assert runs == run
        assert b"secret" not in answer.body
        logged = [record.getMessage().replace(answer.fields["x-request-id"], "ID") for record in caplog.records]
        more = [now - before for now, before in zip(failures(), failed, strict=True)]
        outcomes.append((answer.alike, answer.fields.keys(), more, counts.failed - counted, logged))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0][0] == status
    assert outcomes[0][3].total() == sum(more) == 1
    assert ("request ID failed" in logged) == (status == 500)


def test_an_answer_that_is_to_be_compressed_is_not_run_again(client, runs):
    rows = np.ones((100, 3))
    request = http({"inputs": [tensor("x", rows), tensor("z", rows)]}, ADDER, "Accept-Encoding: gzip")
    for _ in range(3 * routing.SKIP_AFTER_MISS):
        runs.clear()
        assert client.ask(request).fields["content-encoding"] == "gzip"
        assert runs == ["adder"]


def test_a_deadline_is_held(client):
    late = http(add(1.5, parameters={"timeout": 1}))
    assert [client.ask(late).status for _ in range(3)] == [504] * 3


def test_urls_cached_are_bounded(service, client):
    for i in range(routing.MAX_URLS + 20):
        assert client.ask(http(add(1.5), f"{ADDER}?x={i}")).status == 200
    assert client.ask(http(add(1.5), f"{ADDER}?x={'x' * routing.MAX_URL_BYTES}")).status == 200
    urls = service.server.protocol.keywords["fast_path"].routes._by_url._entries
    assert len(urls) == routing.MAX_URLS
    assert max(map(len, urls)) <= routing.MAX_URL_BYTES
    client.learn(http(add(1.5)))


def test_requests_are_counted(service, client):
    def counted() -> int:
        stats = json.loads(client.ask(http(b"", "/v2/models/adder/stats", method="GET")).body)
        return stats["model_stats"][0]["inference_stats"]["success"]["count"]

    request, state = known(client), service.server.server_state
    counts = counted()
    client.ask_quick(request)  # by now what was answered before is counted
    total = state.total_requests
    for _ in range(10):
        client.ask_quick(request)
    assert counted() == counts + 11
    until(lambda: state.total_requests == total + 11)


NUMBERS = st.floats(-99, 99, width=32).map(lambda x: round(x, 1))
SENT = st.one_of(
    NUMBERS.map(lambda x: (ADDER, add(x))),
    NUMBERS.map(lambda x: (SDPA, attend(x))),
    st.sampled_from(
        [
            (ADDER, add(1.5)),
            (ADDER, add(1.5, id="a")),
            (ADDER, named(1.5, "a")),
            (ADDER, named(1.5, "b")),
            (ADDER, add(1.5, outputs=[{"name": "y", "parameters": {"binary_data": True}}])),
            (ADDER, add(1.5, outputs=[{"name": "else"}])),
            (ADDER, add(1.5, parameters={"timeout": 1})),
            (ADDER, {"inputs": [tensor("x", [[1, 2, 3]])]}),
            (ADDER, {"inputs": [tensor("x", [[1, 2]]), tensor("z", [[1, 2]])]}),
            (ADDER, json.dumps(add(1.5)).replace("1.5", "NaN").encode()),
            (ADDER, json.dumps(add(1.5)).replace("1.5", "'1'").encode()),
            (ADDER, json.dumps(add(1.5)).replace("1.5", "1e400").encode()),
            (ADDER, json.dumps(add(1.5))[:-1].encode()),
            (ADDER, b""),
            ("/v2/models/none/infer", add(1.5)),
            ("/v2/models/adder/versions/2/infer", add(1.5)),
            ("/v2/models/lookup/infer", {"inputs": [tensor("ids", [[1]], "INT64")]}),
            ("/v2/models/lookup/infer", {"inputs": [tensor("ids", [[7]], "INT64")]}),
            (SDPA, {**attend(1.5), "outputs": ["output"]}),
            (SDPA, {**attend(1.5), "else": 1}),
            (SDPA, {"query": [[1]]}),
            ("/v1/attention/none", attend(1.5)),
        ]
    ),
)
LINES = st.sampled_from([(), (), ("X-Request-ID: a",), ("Accept-Encoding: gzip",), ("Content-Type: text/plain",)])


def test_any_sequence_is_answered_alike(service):
    quick = 0

    @settings(max_examples=30)
    @given(sent=st.lists(st.tuples(SENT, LINES, st.floats(0, 1)), min_size=1, max_size=6), times=st.integers(1, 4))
    def alike(sent, times):
        nonlocal quick
        with Client(service) as client, Client(service) as other:
            for (path, body), lines, place in sent * times:
                request = http(body, path, *lines)
                cut = int(place * len(request))
                before = service.tasks
                found = client.ask(request) if place < 0.8 else client.ask(request[:cut], request[cut:])
                quick += service.tasks == before
                assert found.alike == other.ask_ordinary(request).alike

    alike()
    assert quick > 50
