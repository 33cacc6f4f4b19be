"""How bytes become requests, wherever they are cut: framing, upgrades, limits of heads, requests in one packet."""

import asyncio
import json
import re
import time
from collections import Counter
from itertools import pairwise

import pytest
import uvicorn
from uvicorn.server import ServerState

from service.budget import MemoryBudget
from service.engine.counters import RequestCounters
from service.errors import Overloaded
from service.http import connection
from service.http.limits import LimitedProtocol
from service.settings import Settings
from service.telemetry.event_loop import EventLoopClock

MOST = 1024  # bytes of a head
ANSWER = re.compile(rb"HTTP/1\.1 (\d+) [^\r]*\r\n(.*?)\r\n\r\n", re.DOTALL)
BODY = b'{"query": [[1.0, 2.0]]}'


async def echo(scope, receive, send) -> None:
    """Answer with the method, the path, the headers and the body of the request, as JSON."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    request = {"method": scope["method"], "path": scope["path"], "body": body.decode(), "headers": headers}
    content = json.dumps(request).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(content))]})
    await send({"type": "http.response.body", "body": content})


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)})
        self.pieces: list[bytes] = []
        self.closing = self.paused = False

    def write(self, data) -> None:
        assert not self.closing
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return 0


def answers(written: bytes) -> list[dict | int]:
    """The body that ``echo`` answered to each request, or the status where the server refused it."""
    found, start = [], 0
    while start < len(written):
        head = ANSWER.match(written, start)
        assert head, written[start:]
        start = head.end() + int(re.search(rb"content-length: (\d+)", head[2])[1])
        found.append(json.loads(written[head.end() : start]) if head[1] == b"200" else int(head[1]))
    return found


async def exchange(
    *pieces: bytes, turns: int = 12, app=echo, protocol=LimitedProtocol, **more
) -> tuple[list, Transport]:
    """What a fresh connection answers to ``pieces``, each a packet; some turns of the loop between them."""
    config = uvicorn.Config(app, http="httptools", ws="none", log_config=None, access_log=False, server_header=False)
    config.load()
    settings = Settings(max_header_bytes=MOST, **more)
    transport = Transport()
    one = protocol(
        config=config,
        server_state=ServerState(),
        app_state={},
        settings=settings,
        counts=RequestCounters(),
        budget=MemoryBudget(1 << 20, Overloaded, Counter()),
        clock=EventLoopClock(),
    )
    one.connection_made(transport)
    for piece in pieces:
        if not transport.closing:
            one.data_received(piece)
        for _ in range(turns):
            await asyncio.sleep(0)
    one.connection_lost(ConnectionError())
    return answers(b"".join(transport.pieces)), transport


def head(line: str, *lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in [line, "Host: here", *lines, ""]).encode()


def chunked(body: bytes, trailer: bytes = b"") -> bytes:
    middle = len(body) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:middle], body[middle:]))
    return chunks + b"0\r\n" + trailer + b"\r\n"


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA")
LENGTH = f"Content-Length: {len(BODY)}"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: here\r\n\r\n"
UPGRADES = {
    "a declared length": head("POST /a HTTP/1.1", LENGTH, *UPGRADE, "Upgrade: h2c") + BODY,
    "chunks": head("POST /a HTTP/1.1", "Transfer-Encoding: chunked", *UPGRADE, "Upgrade: h2c") + chunked(BODY),
    "chunks and a trailer": head("POST /a HTTP/1.1", "Upgrade: h2c", "Transfer-Encoding: chunked", *UPGRADE)
    + chunked(BODY, b"X: y\r\n"),
    "two tokens": head(
        "POST /a HTTP/1.1", "UPGRADE: h2c, x/1", "upgrade:\tweird", LENGTH, "connection: keep-alive, upgrade"
    )
    + BODY,
    "no body": head("GET /a HTTP/1.1", *UPGRADE, "Upgrade: h2c"),
    "websocket": head(
        "GET /a HTTP/1.1",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    ),
    "an empty line first": b"\r\n" + head("POST /a HTTP/1.1", LENGTH, "Connection: upgrade", "Upgrade: h2c") + BODY,
    "a body that is a request": head(
        "POST /a HTTP/1.1", f"Content-Length: {len(SMUGGLED)}", "Connection: upgrade", "Upgrade: h2c"
    )
    + SMUGGLED,
    "chunks of a request": head("POST /a HTTP/1.1", "Connection: upgrade", "Upgrade: h2c", "Transfer-Encoding: chunked")
    + chunked(SMUGGLED),
}
NEXT = head("POST /next HTTP/1.1", "Content-Length: 2") + b"{}"


@pytest.mark.parametrize("name", UPGRADES)
def test_an_upgrade_is_ignored_wherever_the_request_is_cut(name):
    """The request is answered with its body, and so is the next one, which may be in the same packet."""
    data = UPGRADES[name] + NEXT
    expected = SMUGGLED if "request" in name else b"" if name in ("no body", "websocket") else BODY

    async def all_cuts() -> None:
        pieces = [[data], [data[i : i + 1] for i in range(len(data))]]
        pieces += [[data[:cut], data[cut:]] for cut in range(1, len(data))]
        for of in pieces:
            (first, second), transport = await exchange(*of)
            assert (first["path"], first["body"].encode(), second["path"], second["body"]) == (
                "/a",
                expected,
                "/next",
                "{}",
            )
            assert "upgrade" not in first["headers"]
            assert not transport.closing

    asyncio.run(all_cuts())


def test_the_end_of_a_connection_is_kept_beside_an_upgrade():
    for line in ("Connection: close, Upgrade", "Connection: Upgrade\r\nConnection: close"):
        request = head("POST /a HTTP/1.1", LENGTH, line, "Upgrade: h2c") + BODY
        found, transport = asyncio.run(exchange(request + NEXT))
        assert [of["body"].encode() for of in found] == [BODY]
        assert transport.closing
    old = head("POST /a HTTP/1.0", LENGTH, "Connection: Upgrade", "Upgrade: h2c") + BODY
    found, transport = asyncio.run(exchange(old))
    assert (found[0]["body"].encode(), transport.closing) == (BODY, True)


REFUSED = {
    "CONNECT": (head("CONNECT here:80 HTTP/1.1"), 501),
    "CONNECT with a path": (head("CONNECT /a HTTP/1.1"), 501),
    "an upgrade of unknown framing": (
        head("POST /a HTTP/1.1", "Upgrade: h2c", "Connection: upgrade", "Transfer-Encoding: gzip"),
        501,
    ),
    "an upgrade of two lengths": (
        head("POST /a HTTP/1.1", "Upgrade: h2c", "Connection: upgrade", LENGTH, "Transfer-Encoding: chunked"),
        400,
    ),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (head("GET / HTTP/1.1", "Host: there"), 400),
    "the same host twice": (head("GET / HTTP/1.1", "HOST: here"), 400),
    "two hosts of HTTP/1.0": (head("GET / HTTP/1.0", "Host: here"), 400),
    "two hosts in one": (head("GET / HTTP/1.1").replace(b"here", b"here, there"), 400),
    "a host with a path": (head("GET / HTTP/1.1").replace(b"here", b"here/there"), 400),
    "a host with a user": (head("GET / HTTP/1.1").replace(b"here", b"me@here"), 400),
    "a port that is none": (head("GET / HTTP/1.1").replace(b"here", b"here:x"), 400),
    "HTTP/2.0": (head("GET / HTTP/2.0"), 505),
    "HTTP/0.9": (b"GET /\r\n\r\n", 505),
    "HTTP/1.2": (head("GET / HTTP/1.2"), 400),
    "gzip": (head("POST / HTTP/1.1", "Transfer-Encoding: gzip"), 501),
    "gzip, chunked": (head("POST / HTTP/1.1", "Transfer-Encoding: gzip, chunked"), 501),
    "identity": (head("POST / HTTP/1.1", "Transfer-Encoding: identity"), 501),
    "chunked twice": (head("POST / HTTP/1.1", "Transfer-Encoding: chunked, chunked"), 400),
    "chunks of HTTP/1.0": (head("POST / HTTP/1.0", "Transfer-Encoding: chunked"), 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_head_that_is_not_served_is_refused_and_nothing_behind_it_is_read(name):
    data, status = REFUSED[name]
    for of in ([data + SMUGGLED], [data, SMUGGLED], [bytes([byte]) for byte in data + SMUGGLED]):
        found, transport = asyncio.run(exchange(*of))
        assert found == [status]
        assert transport.closing


def test_hosts_that_are_right():
    for host in ("here:8000", "here", "127.0.0.1", "[::1]:8000", "[fe80::1%25eth0]", "a-b.c_d.example.", ""):
        request = b"GET /a HTTP/1.1\r\nHost: %b\r\n\r\n" % host.encode()
        (found,), _ = asyncio.run(exchange(request))
        assert found["headers"]["host"] == host
    (found,), _ = asyncio.run(exchange(b"GET /a HTTP/1.0\r\n\r\n"))
    assert found["path"] == "/a"


def test_blanks_around_a_value_are_none_of_it():
    lines = b"Host: \t here\t \r\nX:y\r\nContent-Type: \t text/plain \t\r\nContent-Length:  2 \r\n"
    request = b"POST /a HTTP/1.1\r\n%b\r\n{}" % lines
    (found,), _ = asyncio.run(exchange(request))
    assert found["headers"] == {"host": "here", "x": "y", "content-type": "text/plain", "content-length": "2"}
    assert found["body"] == "{}"


@pytest.mark.parametrize("blanks", [b"", b"\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("before", [b"", NEXT, head("POST /a HTTP/1.1", "Transfer-Encoding: chunked") + chunked(BODY)])
def test_a_head_may_be_as_long_as_the_limit_says_and_not_a_byte_longer(before, blanks):
    """Wherever it is cut, and whatever comes before and behind it."""

    def of_length(length: int) -> bytes:
        bare = len(blanks + head("GET /b HTTP/1.1", "X: "))
        return blanks + head("GET /b HTTP/1.1", "X: " + "x" * (length - bare))

    async def all_cuts() -> None:
        for length, good in ((MOST, True), (MOST + 1, False)):
            data = before + of_length(length) + NEXT * good
            count = bool(before) + 1 + good
            for cut in [0, *range(1, len(before) + len(blanks) + 30), *range(len(before) + length - 30, len(data))]:
                found, transport = await exchange(*filter(None, (data[:cut], data[cut:])), turns=8)
                assert len(found) == count
                assert found[bool(before)] == 431 if not good else found[bool(before)]["path"] == "/b"
                assert transport.closing is not good

    asyncio.run(all_cuts())


def test_a_long_body_in_front_of_a_head_does_not_count_for_it():
    body = b"x" * (3 * MOST)
    first = head("POST /a HTTP/1.1", f"Content-Length: {len(body)}") + body
    found, _ = asyncio.run(exchange(first + NEXT[:20], NEXT[20:]))
    assert [of["path"] for of in found] == ["/a", "/next"]


def test_blank_lines_without_end_are_refused():
    for blanks in (b"\r\n" * MOST, b"\r\n\r\n" * MOST):
        found, transport = asyncio.run(exchange(blanks))
        assert (found, transport.closing) == ([431], True)


def test_thousands_of_requests_in_one_packet_are_answered_in_turn():
    """In their order, and no turn of the event loop takes longer than some of them."""
    many = 13_000
    data = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(many))

    async def measured() -> tuple[list, float]:
        ticks, done = [time.thread_time()], False

        async def tick() -> None:
            while not done:
                await asyncio.sleep(0)
                ticks.append(time.thread_time())

        ticking = asyncio.create_task(tick())
        found, transport = await exchange(data, turns=4 * many)
        done = True
        await ticking
        assert not transport.paused
        assert len(ticks) > many
        return found, sorted(after - before for before, after in pairwise(ticks))[-100]

    found, stall = asyncio.run(measured())
    assert [of["path"] for of in found] == [f"/{number}" for number in range(many)]
    assert stall < 0.01


def test_malformed_requests_are_logged_at_a_bounded_rate(caplog):
    connection.MALFORMED.__init__()
    for _ in range(200):
        assert asyncio.run(exchange(b"\0\r\n\r\n"))[0] == [400]
    assert 1 <= caplog.text.count("malformed request") < 20


def test_the_line_of_a_malformed_request_has_the_address(caplog, monkeypatch):
    connection.MALFORMED.__init__()
    monkeypatch.setattr(Transport, "get_extra_info", lambda _, name: ("::1", 4711) if name == "peername" else None)
    assert asyncio.run(exchange(b"\0\r\n\r\n"))[0] == [400]
    assert caplog.records[-1].peer == "[::1]:4711"
