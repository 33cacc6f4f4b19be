"""Clients that do not read their answers: their connections are closed in time, and the memory is given back."""

import json
import socket
import ssl
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.server import MIB, started
from tests.support.waiting import until

SDPA = "/v1/attention/scaled_dot_product"
LIMIT = 4.0  # seconds
ROWS = 1200
CLIENTS = 6
PIECE = 1 << 17  # bytes that the slow reader takes at a time: its machine then announces room for more


@pytest.fixture(scope="module")
def models(repository, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "scaled_dot_product").symlink_to(repository / "scaled_dot_product")
    return folder


def ask_for_much(port: int, trust: ssl.SSLContext | None, *lines: str) -> socket.socket:
    """A connection that has asked for some 15 MB of weights, with a small buffer to read them into."""
    rows = {"shape": [ROWS, 1], "data": [number / ROWS for number in range(ROWS)]}
    body = json.dumps({"query": rows, "key": rows, "value": rows}).encode()
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    raw.settimeout(60)
    raw.connect(("127.0.0.1", port))
    asking = trust.wrap_socket(raw, server_hostname="127.0.0.1") if trust else raw
    fields = [f"POST {SDPA} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *lines, "", ""]
    asking.sendall("\r\n".join(fields).encode() + body)
    return asking


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_who_never_reads_is_closed_and_who_reads_slowly_is_not(models, tmp_path, certificate, tls):
    flags = ["--workers", "1", "--write-timeout-seconds", str(LIMIT)]
    trust = None
    if tls:
        trust = ssl.create_default_context(cafile=certificate / "certificate")
        flags += ["--tls-certificate", f"{certificate}/certificate", "--tls-key", f"{certificate}/key"]
    with started(models, tmp_path / "log", *flags, trust=trust) as service, ExitStack() as stack:
        stack.enter_context(closing(ask_for_much(service.port, trust))).recv(100)
        before = service.resident()
        for lines in [(), ("Connection: close",)] * (CLIENTS // 2):
            stack.enter_context(closing(ask_for_much(service.port, trust, *lines))).recv(100)
        slow = stack.enter_context(closing(ask_for_much(service.port, trust)))
        closed, read, start = 0, b"", time.monotonic()
        while time.monotonic() < start + 2 * LIMIT or closed < CLIENTS + 1:
            enough = len(read) + PIECE
            while len(read) < enough:
                piece = slow.recv(enough - len(read))
                assert piece, "the connection was closed"
                read += piece
            time.sleep(0.2)
            closed = int(service.gauge('requests_rejected_total{reason="write_timeout_seconds"}'))
            assert time.monotonic() < start + 60, f"{closed} connections were closed"
        assert closed == CLIENTS + 1
        length = int(read.partition(b"content-length: ")[2].split()[0])
        while len(read) < length:
            piece = slow.recv(1 << 20)
            assert piece, "the connection was closed"
            read += piece
        assert length > 10 * MIB
        if not tls:  # whose copies are many small ones, which the allocator keeps for the next
            until(lambda: service.resident() < before + 3 * length)
        assert "Traceback" not in service.log.read_text()
