"""400: the bytes behind the JSON are not what it says, or more than may be."""

import json
import socket

import numpy as np
import pytest

from tests.support.server import serving
from tests.support.v2 import ADD, error, infer, tensor

BINARY = {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}


@pytest.mark.parametrize(
    ("length", "body", "said"),
    [
        ("one", b"{}", "expected Inference-Header-Content-Length to be a whole number"),
        ("-1", b"{}", "expected Inference-Header-Content-Length"),
        ("4294967296", b"{}", "expected Inference-Header-Content-Length"),
        ("9" * 5000, b"{}", "expected Inference-Header-Content-Length"),
        ("3", b"{}", "more than the 2 bytes of the body"),
    ],
)
def test_400_of_the_header(server, length, body, said):
    error(infer(server, "adder", body, **{"Inference-Header-Content-Length": length}), 400, said)


def attached(given, content):
    head = json.dumps({"inputs": [{**BINARY, **given}, ADD["inputs"][1]]}).encode()
    return head + content, {"Inference-Header-Content-Length": str(len(head))}


@pytest.mark.parametrize(
    ("given", "content", "said"),
    [
        ({}, bytes(13), "unexpected additional input data for model 'adder'"),
        ({}, bytes(9), "unexpected size for input 'x', expecting 3 additional bytes for model 'adder'"),
        (
            {"parameters": {"binary_data_size": 8}},
            bytes(8),
            "input byte size mismatch for input 'x' for model 'adder'. Expected 12, got 8",
        ),
        ({"shape": [2**60, 2**60]}, bytes(12), "input byte size mismatch"),
        ({"parameters": {"binary_data_size": "12"}}, bytes(12), "expected binary_data_size to be a whole number"),
        ({"parameters": {"binary_data_size": -1}}, bytes(12), "expected binary_data_size"),
    ],
)
def test_400_of_the_bytes(server, given, content, said):
    body, headers = attached(given, content)
    error(infer(server, "adder", body, **headers), 400, said)


@pytest.mark.parametrize(
    ("datatype", "size", "content", "said"),
    [
        ("BYTES", 7, b"\x02\0\0\0ab\0", "the bytes end within element 1"),
        ("BYTES", 6, b"\x09\0\0\0ab", "the bytes end within element 0"),
        ("BYTES", 6, b"\x02\0\0\0ab", "expected 2 strings for inference input 'x', got 1"),
        ("BYTES", 10, b"\x02\0\0\0\xff\xfe\0\0\0\0", "not UTF-8"),
    ],
)
def test_400_of_texts(server, datatype, size, content, said):
    given = {"name": "x", "shape": [1, 2], "datatype": datatype, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [given]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    error(infer(server, f"identity_{datatype}", head + content, **headers), 400, said)


def test_400_oversize(two_blocks):
    with serving(two_blocks, "--max-body-bytes", "1000", "--max-memory-bytes", "100000") as client:
        error(infer(client, "dot_product", bytes(1001)), 400, "1,001 bytes", "exceeds the maximum allowed")
        many = [tensor(name, np.ones((1, 1, 200, 1)), parameters={}) for name in ("query", "key", "value")]
        head = json.dumps(
            {"inputs": [{**of, "data": None, "parameters": {"binary_data_size": 800}} for of in many]}
        ).encode()
        with serving(two_blocks, "--max-memory-bytes", "100000") as other:
            headers = {"Inference-Header-Content-Length": str(len(head))}
            content = head + np.ones(600, np.float32).tobytes()
            error(infer(other, "dot_product", content, **headers), 400, "exceeds the maximum allowed", "max_memory")


def test_400_oversize_is_read_to_its_end_by_the_client(two_blocks):
    """A client that sends all before it reads must still find the error, and the connection must still serve."""
    with serving(two_blocks, "--max-body-bytes", "1000") as client:
        size = 64 << 20
        with socket.create_connection((client.base_url.host, client.base_url.port), timeout=30) as raw:
            raw.sendall(
                f"POST /v2/models/dot_product/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
            )
            raw.sendall(bytes(size))
            assert raw.recv(12) == b"HTTP/1.1 400"
