"""400: the bytes behind the JSON are not what it says, or more than may be."""

import socket

import pytest

from tests.support.application import running
from tests.support.in_process import serving_in_process
from tests.support.v2 import ADD, binary_input, error, infer, infer_bytes

X = binary_input("x", [1, 3], 12)
HEADER = "expected Inference-Header-Content-Length"


@pytest.mark.parametrize(
    ("length", "said"),
    [
        ("one", f"{HEADER} to be a whole number"),
        ("-1", HEADER),
        ("4294967296", HEADER),
        ("9" * 5000, HEADER),
        ("3", "to be at most 2, the length of the body, got 3"),
    ],
    ids=lambda value: value[:10],
)
def test_400_of_the_header(server, length, said):
    error(infer(server, "adder", b"{}", **{"Inference-Header-Content-Length": length}), 400, said)


@pytest.mark.parametrize(
    ("given", "content", "said"),
    [
        (X, bytes(13), "unexpected additional input data for model 'adder'"),
        (X, bytes(9), "unexpected size for input 'x', expecting 3 additional bytes for model 'adder'"),
        (binary_input("x", [1, 3], 8), bytes(8), "mismatch for input 'x' for model 'adder'. Expected 12, got 8"),
        (binary_input("x", [2**60, 2**60], 12), bytes(12), "input byte size mismatch"),
        (binary_input("x", [1, 3], "12"), bytes(12), "expected binary_data_size to be a whole number"),
        (binary_input("x", [1, 3], -1), bytes(12), "expected binary_data_size"),
    ],
)
def test_400_of_the_bytes(server, given, content, said):
    error(infer_bytes(server, "adder", {"inputs": [given, ADD["inputs"][1]]}, content), 400, said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x02\0\0\0ab\0", "unexpected end of the bytes within element 1"),
        (b"\x09\0\0\0ab", "unexpected end of the bytes within element 0"),
        (b"\x02\0\0\0ab", "expected 2 strings for inference input 'x', got 1"),
        (b"\x02\0\0\0\xff\xfe\0\0\0\0", "not valid UTF-8"),
    ],
)
def test_400_of_texts(server, content, said):
    given = {"inputs": [binary_input("x", [1, 2], len(content), "BYTES")]}
    error(infer_bytes(server, "identity_BYTES", given, content), 400, said)


def test_400_oversize(two_blocks):
    with running(two_blocks, max_body_bytes=4000, max_memory_bytes=100_000) as client:
        error(infer(client, "dot_product", bytes(4001)), 400, "4,001 bytes", "exceeds the maximum allowed")
        many = {"inputs": [binary_input(name, [1, 1, 200, 1], 800) for name in ("query", "key", "value")]}
        response = infer_bytes(client, "dot_product", many, bytes(2400))
        error(response, 400, "exceeds the maximum allowed", "max_memory")


def test_400_oversize_is_read_to_its_end_by_the_client(adder):
    """A client that sends all before it reads must still find the error, and the connection must still serve."""
    size = 8 << 20  # more than the buffers of the sockets hold
    with (
        serving_in_process(adder, max_body_bytes=1000) as service,
        socket.create_connection(("127.0.0.1", service.port), timeout=30) as raw,
    ):
        raw.sendall(f"POST /v2/models/adder/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        raw.sendall(bytes(size))
        assert raw.recv(12) == b"HTTP/1.1 400"
