"""Requests that come too slowly, too long, without end or ambiguously, and clients that do not read."""

import re
import socket
import time
from contextlib import closing, suppress

import httpx
import pytest

from tests.support.hostile import GROWTH, INFER, RECEIVE_S, alive, answer_to
from tests.support.http_client import ADD, Connection
from tests.support.server import MIB

SLOW = {
    "a head": ["GET /v2 HTTP/1.1\r\n", *["X"] * 20],
    "headers": ["GET /v2 HTTP/1.1\r\n", *[f"X-{n}: y\r\n" for n in range(20)]],
    "a body": [f"{INFER}Content-Length: 1000\r\n\r\n", *["{"] * 20],
    "no body": [f"{INFER}Content-Length: 1000\r\n\r\n", *[""] * 20],
    "chunks": [f"{INFER}Transfer-Encoding: chunked\r\n\r\n", *["1\r\n{\r\n"] * 20],
    "trailers": [f"{INFER}Transfer-Encoding: chunked\r\n\r\n0\r\n", *[f"X-{n}: y\r\n" for n in range(20)]],
}


@pytest.mark.parametrize("pieces", SLOW.values(), ids=SLOW)
def test_slow_requests_are_cut_off(service, pieces):
    start = time.monotonic()
    found = answer_to(service, *pieces, pause=0.15)
    assert found.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"(read_timeout_seconds)" in found
    assert time.monotonic() - start > RECEIVE_S


def test_connections_without_a_word_are_closed(service):
    assert answer_to(service) == b""


def test_a_long_run_is_not_a_slow_request(service, client):
    """What is limited is the way here, not the work."""
    with closing(Connection(service.port)) as connection:
        for _ in range(3):
            connection.add()
            time.sleep(RECEIVE_S / 2 + 0.3)  # between requests, too


LONG = {
    "a header": ["GET /v2 HTTP/1.1\r\nX: ", *["x" * 65536] * 400, "\r\n\r\n"],
    "a name": ["GET /v2 HTTP/1.1\r\n", *["x" * 65536] * 400, ": y\r\n\r\n"],
    "a path": ["GET /", *["x" * 65536] * 400, " HTTP/1.1\r\n\r\n"],
    "headers": ["GET /v2 HTTP/1.1\r\n", *["X-Header: y\r\n" * 5000] * 400, "\r\n"],
}


@pytest.mark.parametrize("pieces", LONG.values(), ids=LONG)
def test_long_heads_are_refused(service, pieces):
    found = answer_to(service, *pieces)
    assert found == b"" or re.match(rb"HTTP/1.1 (431|400) ", found)  # nothing: its answer was lost with the connection
    assert service.resident("VmHWM") < service.resident() + 4 * GROWTH


def test_a_head_a_little_too_long_is_told(service):
    found = answer_to(service, "GET /v2 HTTP/1.1\r\nX: " + "x" * 9000)
    assert found.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"(max_header_bytes), 8,192 bytes." in found
    counted = httpx.get(f"http://127.0.0.1:{service.port}/metrics").text
    assert re.search(r'heed_requests_rejected_total{reason="max_header_bytes"} [1-9]', counted)


CHUNKED = f"{INFER}Transfer-Encoding: chunked\r\n\r\n"


ENDLESS = {
    "a body": [CHUNKED, *["10000\r\n" + "x" * 65536 + "\r\n"] * 1000],
    "tiny chunks": [CHUNKED, *["1\r\n{\r\n" * 10000] * 1000],
    "a chunk's extension": [CHUNKED, "1;", *["x" * 65536] * 1000],
    "a trailer": [CHUNKED, "1\r\n{\r\n0\r\nX: ", *["x" * 65536] * 1000],
    "trailers": [CHUNKED, "1\r\n{\r\n0\r\n", *["X-Trailer: y\r\n" * 5000] * 1000],
}


@pytest.mark.parametrize("pieces", ENDLESS.values(), ids=ENDLESS)
def test_endless_bodies_are_refused(service, pieces):
    found = answer_to(service, *pieces)
    assert found == b"" or re.match(rb"HTTP/1.1 (400|408|413|431) ", found)
    assert service.resident() < 2**31


WRONG = {
    "no number": "Content-Length: many",
    "negative": "Content-Length: -1",
    "past 64 bits": f"Content-Length: {2**64 + 5}",
    "two": "Content-Length: 2\r\nContent-Length: 200",
    "both": "Content-Length: 2\r\nTransfer-Encoding: chunked",
    "a folded header": "X: a\r\n b\r\nY : z",
    "a null": "X: a\0b",
    "no colon": "Content-Length",
}


@pytest.mark.parametrize("header", WRONG.values(), ids=WRONG)
def test_heads_that_are_ambiguous_are_400(service, header):
    assert answer_to(service, f"{INFER}{header}\r\n\r\n" + "{}").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("length", [4 * MIB + 1, 2**40, 10**18])
def test_a_body_declared_too_long_is_refused_before_it_comes(service, length):
    found = answer_to(service, f"{INFER}Connection: close\r\nContent-Length: {length}\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b"max_body_bytes" in found


def test_a_client_that_does_not_read_is_not_waited_for(service):
    """Its answers fill its own buffers, and then it is read from no more."""
    with closing(socket.create_connection(("127.0.0.1", service.port), timeout=1)) as raw:
        request = f"{INFER}Content-Length: {len(ADD)}\r\n\r\n{ADD}".encode() * 50
        with suppress(TimeoutError, ConnectionError):
            for _ in range(2000):
                raw.sendall(request)
        for _ in range(5):
            alive(service)
