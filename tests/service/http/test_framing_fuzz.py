"""Streams of requests, right and nearly right, are read as h11 reads them, however they are cut into packets."""

import asyncio
import re

import h11
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tests.support.connection import exchange
from tests.support.http_requests import head

BLANK_LINES = re.compile(rb"^[\r\n]+")
REQUEST_LINE = re.compile(rb"^([A-Z]+) +([!-~]+) +(HTTP/1\.[01]\r\n)")
LONE_FEED = re.compile(rb"(?<!\r)\n")
REFUSALS = {400, 413, 431, 501, 505}
BODIES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"0\r\n\r\n", b"GET /smuggled HTTP/1.1\r\nHost: here\r\n\r\n"]),
)
TRAILERS = st.lists(
    st.sampled_from([b"X-API-Key: other", b"Content-Encoding: gzip", b"Host: there", b"X:"]),
    max_size=2,
)
EXTENSIONS = st.sampled_from([b"", b"", b";a", b';a="b"'])
FIELDS = st.lists(st.sampled_from(["X: y", "X-Empty:", "Accept: */*", "X-Blank: \t a b \t"]), unique=True, max_size=2)


@st.composite
def requests(draw) -> bytes:
    """A request that both read, perhaps with blank lines before it."""
    fields, body = draw(FIELDS), draw(BODIES)
    blank_lines = b"\r\n" * draw(st.sampled_from([0, 0, 0, 1]))
    form = draw(st.sampled_from(["none", "length", "length of HTTP/1.0", "chunks", "chunks"]))
    if form == "none":
        return blank_lines + head("GET /a HTTP/1.1", *fields)
    if form != "chunks":
        version = form[-3:] if form.endswith("1.0") else "1.1"
        lines = [f"POST /b HTTP/{version}", f"Content-Length: {len(body)}"]
        return blank_lines + head(*lines, *fields) + body
    places = sorted(draw(st.lists(st.integers(1, max(1, len(body) - 1)), max_size=3, unique=True)))
    parts = [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), draw(EXTENSIONS), part) for part in parts if part)
    trailers = b"".join(line + b"\r\n" for line in draw(TRAILERS))
    return (
        blank_lines
        + head("POST /c HTTP/1.1", "Transfer-Encoding: chunked", *fields)
        + chunks
        + b"0\r\n"
        + trailers
        + b"\r\n"
    )


STREAMS = st.lists(requests(), min_size=1, max_size=3).map(b"".join)


@st.composite
def mutants(draw) -> bytes:
    """A stream with up to three changes: bytes replaced, deleted, put in, or copied from another place."""
    stream = draw(STREAMS)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(stream)))
        end = min(len(stream), start + draw(st.sampled_from([0, 1, 1, 2, 9])))
        copied = draw(st.integers(0, len(stream)))
        put = draw(
            st.one_of(
                st.binary(max_size=2),
                st.sampled_from([b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b";", b"0", b"1", b"0\r\n\r\n", b"\0"]),
                st.sampled_from([b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n", b"+", b"-", b"0x", b","]),
                st.just(stream[copied : copied + 12]),
            )
        )
        stream = stream[:start] + put + stream[end:]
    return stream


def read_by_h11(stream: bytes) -> tuple[list[dict], bool]:
    """The requests that are whole, as ``exchange`` gives them, and whether what follows them is refused.

    Two things are taken away first, because h11 refuses them: blank lines before a request, which a server should
    ignore (RFC 9112, 2.2), and more than one blank between the parts of its first line, which it may ignore (3).
    A stream is rejected as an example if h11 refuses a field of its trailers, which this server ignores.
    """
    whole: list[dict] = []
    while True:
        connection, body = h11.Connection(h11.SERVER), b""
        connection.receive_data(REQUEST_LINE.sub(rb"\1 \2 \3", BLANK_LINES.sub(b"", stream)))
        request = None
        try:
            request = event = connection.next_event()
            while isinstance(event, h11.Request | h11.Data):
                body += event.data if isinstance(event, h11.Data) else b""
                event = connection.next_event()
        except h11.RemoteProtocolError as error:
            if request is not None and re.search("Content-Length|Transfer-Encoding", str(error)):
                reject()
            return whole, True
        if not isinstance(event, h11.EndOfMessage):
            return whole, False
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        method, path = request.method.decode(), request.target.decode()
        whole.append({"method": method, "path": path, "body": body.decode("latin-1"), "headers": headers})
        connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
        connection.send(h11.EndOfMessage())
        if connection.our_state is h11.MUST_CLOSE:
            return whole, False
        stream, _ = connection.trailing_data


def read(*packets: bytes) -> tuple[list[dict], int | None, bool]:
    """The requests that the server reads, the status with which it refuses the rest, and whether it closes."""
    results, transport = asyncio.run(exchange(*packets))
    refused = [result for result in results if isinstance(result, int)]
    assert refused == results[len(results) - len(refused) :], "it goes on after a refusal"
    assert len(refused) <= 1
    return results[: len(results) - len(refused)], refused[0] if refused else None, transport.closing


def cuts(stream: bytes, places: list[int]) -> list[bytes]:
    places = sorted({place % len(stream) for place in places} - {0})
    return [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]


@pytest.mark.extended
@settings(max_examples=700)
@given(STREAMS, st.lists(st.integers(0, 1000), max_size=4))
def test_right_requests_are_read_as_h11_reads_them(stream, places):
    expected, is_refused = read_by_h11(stream)
    assert not is_refused
    whole = read(stream)
    assert whole[:2] == (expected, None)
    assert read(*cuts(stream, places)) == whole
    assert read(*(bytes([byte]) for byte in stream)) == whole


@pytest.mark.extended
@settings(max_examples=2000)
@given(mutants(), st.lists(st.integers(0, 1000), max_size=4))
def test_no_request_is_read_that_h11_does_not_read(stream, places):
    """This server may refuse more than h11, but what it reads, it reads alike."""
    expected, _ = read_by_h11(stream)
    requests, status, is_closing = read(stream)
    assert requests == expected[: len(requests)]
    if len(requests) < len(expected):
        assert status in REFUSALS or LONE_FEED.search(stream), "only the end of a line that h11 takes may be waited for"
    assert read(*cuts(stream, places)) == (requests, status, is_closing)
    assert read(*(bytes([byte]) for byte in stream)) == (requests, status, is_closing)
