"""Requests that come too slowly, too long, without end, or of a wrong length."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.hostile import GROWTH, INFER, RECEIVE_S, answer_to
from tests.support.server import MIB

CHUNKED = f"{INFER}Transfer-Encoding: chunked\r\n\r\n"
SLOW = {
    "a head": ["GET /v2 HTTP/1.1\r\n", *["X"] * 20],
    "headers": ["GET /v2 HTTP/1.1\r\n", *[f"X-{n}: y\r\n" for n in range(20)]],
    "a body": [f"{INFER}Content-Length: 1000\r\n\r\n", *["{"] * 20],
    "no body": [f"{INFER}Content-Length: 1000\r\n\r\n", *[""] * 20],
    "chunks": [CHUNKED, *["1\r\n{\r\n"] * 20],
    "trailers": [f"{CHUNKED}0\r\n", *[f"X-{n}: y\r\n" for n in range(20)]],
}


def test_slow_requests_are_cut_off_and_connections_without_a_word_closed(service):
    def send(pieces: list[str]) -> tuple[bytes, float]:
        start = time.monotonic()
        return answer_to(service, *pieces, pause=0.15), time.monotonic() - start

    with ThreadPoolExecutor() as threads:
        silent = threads.submit(answer_to, service)
        answers = dict(zip(SLOW, threads.map(send, SLOW.values()), strict=True))
    assert silent.result() == b""
    for name, (answer, seconds) in answers.items():
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n"), name
        assert b"(read_timeout_seconds)" in answer, name
        assert seconds > RECEIVE_S, name


LONG = {
    "a header": ["GET /v2 HTTP/1.1\r\nX: ", *["x" * 65536] * 400, "\r\n\r\n"],
    "a name": ["GET /v2 HTTP/1.1\r\n", *["x" * 65536] * 400, ": y\r\n\r\n"],
    "a path": ["GET /", *["x" * 65536] * 400, " HTTP/1.1\r\n\r\n"],
    "headers": ["GET /v2 HTTP/1.1\r\n", *["X-Header: y\r\n" * 5000] * 400, "\r\n"],
    "a body": [CHUNKED, *["10000\r\n" + "x" * 65536 + "\r\n"] * 1000],
    "tiny chunks": [CHUNKED, *["1\r\n{\r\n" * 10000] * 1000],
    "a chunk's extension": [CHUNKED, "1;", *["x" * 65536] * 1000],
    "a trailer": [CHUNKED, "1\r\n{\r\n0\r\nX: ", *["x" * 65536] * 1000],
    "trailers": [CHUNKED, "1\r\n{\r\n0\r\n", *["X-Trailer: y\r\n" * 5000] * 1000],
}


@pytest.mark.parametrize("pieces", LONG.values(), ids=LONG)
def test_what_is_too_long_is_refused(service, pieces):
    answer = answer_to(service, *pieces)
    assert answer == b"" or re.match(rb"HTTP/1.1 (400|408|413|431) ", answer)  # nothing: lost with the connection
    assert service.resident("VmHWM") < service.resident() + 4 * GROWTH


def test_a_head_a_little_too_long_is_told(service):
    answer = answer_to(service, "GET /v2 HTTP/1.1\r\nX: " + "x" * 9000)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"(max_header_bytes), 8,192 bytes." in answer
    counted = httpx.get(f"{service.url}/metrics").text
    assert re.search(r'heed_requests_rejected_total{reason="max_header_bytes"} [1-9]', counted)


@pytest.mark.parametrize("length", ["many", "-1", str(2**64 + 5)])
def test_a_length_that_is_none_is_400(service, length):
    assert answer_to(service, f"{INFER}Content-Length: {length}\r\n\r\n" + "{}").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("length", [4 * MIB + 1, 2**40, 10**18])
def test_a_body_declared_too_long_is_refused_before_it_comes(service, length):
    answer = answer_to(service, f"{INFER}Connection: close\r\nContent-Length: {length}\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"max_body_bytes" in answer
