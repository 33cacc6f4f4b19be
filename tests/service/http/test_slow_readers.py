"""Clients that do not read their answers: their connections are closed in time, and the memory is given back."""

import json
import socket
import ssl
import time
from contextlib import ExitStack, closing

import pytest

from tests.support.server import MIB, started
from tests.support.waiting import until

pytestmark = pytest.mark.extended
LIMIT_S = 4.0
ROWS = 1200
CLIENTS = 6
PIECE = 1 << 17  # bytes that the slow reader takes at a time: its machine then announces room for more


def ask_for_much(port: int, trust: ssl.SSLContext | None, *lines: str) -> socket.socket:
    """A connection that has asked for some 15 MB of weights, with a small buffer to read them into."""
    rows = {"shape": [ROWS, 1], "data": [number / ROWS for number in range(ROWS)]}
    body = json.dumps({"query": rows, "key": rows, "value": rows}).encode()
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    raw.settimeout(60)
    raw.connect(("127.0.0.1", port))
    asking = trust.wrap_socket(raw, server_hostname="127.0.0.1") if trust else raw
    first = "POST /v1/attention/scaled_dot_product HTTP/1.1"
    asking.sendall("\r\n".join([first, "Host: here", f"Content-Length: {len(body)}", *lines, "", ""]).encode() + body)
    return asking


def read(connection: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        piece = connection.recv(length - len(content))
        assert piece, "the connection was closed"
        content += piece
    return content


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_who_never_reads_is_closed_and_who_reads_slowly_is_not(two_blocks, tmp_path, certificate, is_tls):
    flags, trust = ["--transfer-timeout-seconds", str(LIMIT_S)], None
    if is_tls:
        trust = ssl.create_default_context(cafile=certificate / "certificate")
        flags += ["--tls-certificate", f"{certificate}/certificate", "--tls-key", f"{certificate}/key"]
    with started(two_blocks, tmp_path / "log", *flags, trust=trust) as service, ExitStack() as stack:
        stack.enter_context(closing(ask_for_much(service.port, trust))).recv(100)
        before = service.resident()
        for lines in [(), ("Connection: close",)] * (CLIENTS // 2):
            stack.enter_context(closing(ask_for_much(service.port, trust, *lines))).recv(100)
        slow = stack.enter_context(closing(ask_for_much(service.port, trust)))
        closed, content, start = 0, b"", time.monotonic()
        while time.monotonic() < start + 2 * LIMIT_S or closed < CLIENTS + 1:
            content += read(slow, PIECE)
            time.sleep(0.2)
            closed = int(service.gauge('requests_rejected_total{reason="write_timeout_seconds"}'))
            assert time.monotonic() < start + 60, f"{closed} connections were closed"
        assert closed == CLIENTS + 1
        length = int(content.partition(b"content-length: ")[2].split()[0])
        read(slow, length - len(content))
        assert length > 10 * MIB
        if not is_tls:  # whose copies are many small ones, which the allocator keeps for the next
            until(lambda: service.resident() < before + 3 * length)
        assert "Traceback" not in service.log.read_text()
