"""How bytes become requests, wherever they are cut: framing, upgrades, limits of heads, requests in one packet."""

import asyncio
import gc
import weakref
from itertools import pairwise

import pytest

from service.http import connection
from tests.support.connection import MAX_HEAD_BYTES, Transport, answers, chunked, connect, exchange, send
from tests.support.http_requests import head

BODY = b'{"query": [[1.0, 2.0]]}'
UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA")  # curl
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
        results, transport = asyncio.run(exchange(request + NEXT))
        assert [of["body"].encode() for of in results] == [BODY]
        assert transport.closing
    old = head("POST /a HTTP/1.0", LENGTH, "Connection: Upgrade", "Upgrade: h2c") + BODY
    results, transport = asyncio.run(exchange(old))
    assert (results[0]["body"].encode(), transport.closing) == (BODY, True)


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
    "more than 100 fields": (head("GET / HTTP/1.1", *["X: y"] * 100), 431),
    "chunked twice": (head("POST / HTTP/1.1", "Transfer-Encoding: chunked, chunked"), 400),
    "chunks of HTTP/1.0": (head("POST / HTTP/1.0", "Transfer-Encoding: chunked"), 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_head_that_is_not_served_is_refused_and_nothing_behind_it_is_read(name):
    data, status = REFUSED[name]
    for of in ([data + SMUGGLED], [data, SMUGGLED], [bytes([byte]) for byte in data + SMUGGLED]):
        results, transport = asyncio.run(exchange(*of))
        assert results == [status]
        assert transport.closing


@pytest.mark.parametrize("path", ["/v2/models/", "/v1/"])
def test_a_long_path_or_query_string_is_refused_before_the_application_sees_it(monkeypatch, path):
    """Wherever it is cut; the error is one of the API that the path names."""
    monkeypatch.setattr("service.http.head.MAX_PATH_BYTES", 50)
    monkeypatch.setattr("service.http.head.MAX_QUERY_BYTES", 100)
    longest = path.ljust(50, "a")
    for url, part in ((f"{longest}?{'q' * 100}", ""), (f"{longest}a", "path"), (f"{path}?{'q' * 101}", "query string")):
        data = head(f"POST {url} HTTP/1.1")
        for of in ([data], [bytes([byte]) for byte in data]):
            results, transport = asyncio.run(exchange(*of))
            written = b"".join(transport.pieces)
            assert results == [414] if part else results[0]["path"] == longest
            assert f"The {part} has ".encode() in written or not part
            assert ((b'{"error"' if path.startswith("/v2") else b"problem+json") in written) == bool(part)


def test_hosts_that_are_right():
    for host in ("here:8000", "here", "127.0.0.1", "[::1]:8000", "[fe80::1%25eth0]", "a-b.c_d.example.", ""):
        request = b"GET /a HTTP/1.1\r\nHost: %b\r\n\r\n" % host.encode()
        (results,), _ = asyncio.run(exchange(request))
        assert results["headers"]["host"] == host
    (results,), _ = asyncio.run(exchange(b"GET /a HTTP/1.0\r\n\r\n"))
    assert results["path"] == "/a"


def test_blanks_around_a_value_are_none_of_it():
    lines = b"Host: \t here\t \r\nX:y\r\nContent-Type: \t text/plain \t\r\nContent-Length:  2 \r\n"
    request = b"POST /a HTTP/1.1\r\n%b\r\n{}" % lines
    (results,), _ = asyncio.run(exchange(request))
    assert results["headers"] == {"host": "here", "x": "y", "content-type": "text/plain", "content-length": "2"}
    assert results["body"] == "{}"


@pytest.mark.parametrize("blanks", [b"", b"\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("before", [b"", NEXT, head("POST /a HTTP/1.1", "Transfer-Encoding: chunked") + chunked(BODY)])
def test_a_head_may_be_as_long_as_the_limit_says_and_not_a_byte_longer(before, blanks):
    """Wherever it is cut, and whatever comes before and behind it."""

    def of_length(length: int) -> bytes:
        bare = len(blanks + head("GET /b HTTP/1.1", "X: "))
        return blanks + head("GET /b HTTP/1.1", "X: " + "x" * (length - bare))

    async def all_cuts() -> None:
        for length, good in ((MAX_HEAD_BYTES, True), (MAX_HEAD_BYTES + 1, False)):
            data = before + of_length(length) + NEXT * good
            count = bool(before) + 1 + good
            for cut in [0, *range(1, len(before) + len(blanks) + 30), *range(len(before) + length - 30, len(data))]:
                results, transport = await exchange(*filter(None, (data[:cut], data[cut:])), turns=8)
                assert len(results) == count
                assert results[bool(before)] == 431 if not good else results[bool(before)]["path"] == "/b"
                assert transport.closing is not good

    asyncio.run(all_cuts())


def test_a_long_body_in_front_of_a_head_does_not_count_for_it():
    body = b"x" * (3 * MAX_HEAD_BYTES)
    first = head("POST /a HTTP/1.1", f"Content-Length: {len(body)}") + body
    results, _ = asyncio.run(exchange(first + NEXT[:20], NEXT[20:]))
    assert [of["path"] for of in results] == ["/a", "/next"]


def test_blank_lines_without_end_are_refused():
    for blanks in (b"\r\n" * MAX_HEAD_BYTES, b"\r\n\r\n" * MAX_HEAD_BYTES):
        results, transport = asyncio.run(exchange(blanks))
        assert (results, transport.closing) == ([431], True)


def test_thousands_of_requests_in_one_packet_are_answered_in_turn():
    """In their order, and others have their turn of the event loop after each."""
    many = 3000
    data = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(many))

    async def count_pieces() -> tuple[list, list[int]]:
        one, counts = connect(), [0]
        one.data_received(data)
        while len(counts) < 4 * many:
            await asyncio.sleep(0)
            counts.append(len(one.transport.pieces))
        assert not one.transport.paused
        one.connection_lost(ConnectionError())
        return answers(one.transport), counts

    results, counts = asyncio.run(count_pieces())
    assert [of["path"] for of in results] == [f"/{number}" for number in range(many)]
    assert max(after - before for before, after in pairwise(counts)) <= 2  # the head and the body of an answer


PART = head("POST /a HTTP/1.1", LENGTH) + BODY[:5]


@pytest.mark.parametrize(("data", "status"), [(b"", None), (b"GET", 408), (PART, 408), (NEXT + b"GET", 408)], ids=str)
def test_a_request_that_does_not_come_in_time_is_408_and_a_silent_connection_closed(data, status):
    async def wait() -> None:
        one = connect()
        await send(one, data)
        end = one._awaited_since + one.read_timeout_seconds
        one.close_if_overdue(end)
        assert not one.transport.closing
        one.close_if_overdue(end + 0.1)
        assert one.transport.closing
        assert answers(one.transport)[data.startswith(NEXT) :] == [status] * bool(status)
        assert one.counts.refused["read_timeout_seconds"] == bool(status)
        one.connection_lost(None)

    asyncio.run(wait())


@pytest.mark.parametrize("request_", [NEXT, PART + BODY[5:]], ids=["two bytes", "more"])
def test_a_head_is_reserved_until_its_request_has_come_whole(request_):
    async def reserve() -> None:
        one = connect()
        await send(one, request_[:20])
        assert one._received.bytes == 20
        await send(one, request_[20:-1])
        assert one._received.bytes == request_.index(b"\r\n\r\n") + 4
        await send(one, request_[-1:])
        assert one._received.bytes == 0
        one.connection_lost(None)

    asyncio.run(reserve())


def test_no_more_is_read_while_requests_that_were_sent_ahead_wait():
    """Not while a task waits for its client, and not between an answer and the next request."""

    async def send_ahead() -> None:
        one, count = connect(), 100
        one.data_received(NEXT * count)
        assert one._received.bytes == len(NEXT) * (count - 1)
        while one.has_unparsed:
            assert one.transport.paused
            await asyncio.sleep(0)
        await send(one, b"")
        assert len(answers(one.transport)) == count
        assert (one.transport.paused, one._received.bytes) == (False, 0)
        one.connection_lost(None)

    asyncio.run(send_ahead())


def test_the_body_of_a_request_that_is_refused_unread_is_not_kept():
    async def refuse(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def ask() -> None:
        one = connect()
        one.app = refuse
        await send(one, PART)
        assert one.cycle.response_complete
        assert not one.cycle.body
        one.connection_lost(None)

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("buffered", "is_closed"),
    [([9, 9, 9], True), ([9, 9, 8, 8], False), ([9, 9, 8, 8, 8], True), ([9, 0, 9, 9], False), ([0] * 9, False)],
    ids=str,
)
def test_a_client_that_takes_nothing_of_its_answers_is_cut_off(buffered, is_closed):
    """``buffered``: the bytes not taken at each look; between two looks are 0.6 of the time allowed."""

    async def look() -> None:
        one = connect()
        await send(one, NEXT)
        for number, one.transport.buffered in enumerate(buffered):
            assert not one.transport.closing
            one.close_if_overdue(100 + 0.6 * number * one.write_timeout_seconds)
        assert one.transport.closing is is_closed
        assert one.counts.refused["write_timeout_seconds"] == is_closed
        one.connection_lost(None)

    asyncio.run(look())


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


@pytest.mark.parametrize(
    ("content", "error"),
    [(NEXT, None), (NEXT, ConnectionResetError()), (head("GET / HTTP/1.1", "Host: there"), None)],
    ids=["closed", "reset", "refused"],
)
def test_a_connection_that_has_ended_is_freed_at_once(content, error):
    """With its head and its timer, without the garbage collector."""

    async def end() -> weakref.ref:
        one = connect()
        await send(one, content)
        assert (one.timeout_keep_alive_task is not None) == (content is NEXT)
        one.connection_lost(error)
        return weakref.ref(one)

    async def is_freed() -> bool:
        return (await end())() is None

    gc.disable()
    try:
        assert asyncio.run(is_freed())
    finally:
        gc.enable()
