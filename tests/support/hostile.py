"""What the tests of hostile input share: raw bytes for a server, and the limits of that server."""

import socket
import time
from contextlib import closing, suppress

from tests.support.http_client import Connection
from tests.support.server import MIB, ServerProcess

RECEIVE_S = 1.5  # read_timeout_seconds
GROWTH = 48 * MIB  # what one test may leave behind: buffers of bodies of 4 MiB, kept by the allocator
INFER = "POST /v2/models/adder/infer HTTP/1.1\r\nHost: x\r\n"
SECRET = "the-secret"


def alive(service: ServerProcess) -> None:
    with closing(Connection(service.port)) as connection:
        connection.add()


def answer_to(service: ServerProcess, *pieces: bytes | str, pause: float = 0) -> bytes:
    """What the server answers to ``pieces``, sent until it closes the connection."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as raw:
        with suppress(ConnectionError):
            for piece in pieces:
                raw.sendall(piece if isinstance(piece, bytes) else piece.encode())
                time.sleep(pause)
        found = b""
        with suppress(ConnectionError):
            while chunk := raw.recv(65536):
                found += chunk
                if b"\r\n\r\n" in found and b"connection: close" not in found.lower():
                    break
        return found
