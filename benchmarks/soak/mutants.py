"""Valid requests of both faces, each with numbers of its own, and what becomes of them byte by byte."""

import base64
import gzip
import json
from collections.abc import Callable
from random import Random

import numpy as np

from benchmarks.soak.wire import INFER, NAMES, Request, binary, native

Row = tuple[float, float, float]

TOKENS = [
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b",", b"[", b"]", b"{", b"}", b'"', b"\\", b"\\ud800", b"-", b"."),
    *(b"e999", b"1e400", b"NaN", b"Infinity", b"null", b"true", b"[]", b"{}", b"[[]]", b"0", b"-1", b"\xff", b"\xc3("),
    *(
        b"4294967296",
        b"9223372036854775808",
        b"18446744073709551616",
        b"1" * 400,
        b"[" * 2000,
        b"\r\n\r\n",
        b"0\r\n\r\n",
    ),
    *(b'"shape"', b'"data"', b'"base64"', b'"dtype"', b'"FP16"', b'"BYTES"', b'"parameters"', b'"binary_data_size"'),
    *(b'"outputs":["weights"]', b'"is_causal":true', b'"scale":0', b'"timeout":1', b'"id":7', b'"attn_mask":[[1]]'),
]
LINES = [
    *("Expect: 100-continue", "Expect: 200", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked"),
    *("Content-Encoding: gzip", "Content-Encoding: deflate", "Content-Encoding: br", "Connection: close"),
    *("Content-Length: 5", "Content-Length: 99999999999999999999", "Content-Length: -1", "Content-Type: text/plain"),
    *(
        "Connection: upgrade",
        "Upgrade: websocket",
        "Accept-Encoding: gzip",
        "X-Request-Timeout: 0.000001",
        "X: " + "y" * 70000,
    ),
    *(
        "Inference-Header-Content-Length: 3",
        "Inference-Header-Content-Length: 0",
        "Range: bytes=0-1",
        "Host: other",
        ": x",
    ),
]
TARGETS = [
    *(
        "/v2",
        "/v2/models",
        "/v2/health/ready",
        "/v1/attention",
        "/metrics",
        "/",
        "*",
        "//",
        "/v2/../v2",
        "/%00",
        "/v2/%ff",
    ),
    *(
        "/v1/attention/none",
        "/v2/models/none/infer",
        f"{INFER}/",
        f"http://there{INFER}",
        f"{INFER}?x=y",
        "/v2/logging",
    ),
    *("/v2/repository/index", "/v2/models/scaled_dot_product/versions/1/infer", "/v2/models/scaled_dot_product/stats"),
]


def row_of(number: int) -> Row:
    """Three numbers that float32 holds, and no other request has."""
    draw = Random(number)
    first, second, third = (float(draw.randrange(1, 1 << 24)) for _ in range(3))
    return first, second, third


def name_of(number: int) -> str:
    return f"n{number:012d}"


def valid(draw: Random, number: int) -> Request:
    """One key, so that the output is its value: the row of ``number``; whose name is in the header, and V2's id."""
    name, row = name_of(number), row_of(number)
    header = f"X-Request-ID: {name}"
    arrays = {of: np.array([[[row if of == "value" else (1, 2)]]], np.float32) for of in NAMES}
    form = draw.choice(["nested", "flat", "base64", "json", "binary", "gzip"])
    if form == "nested":
        return native({of: array[0, 0].tolist() for of, array in arrays.items()}, header, outputs=["output"])
    if form == "flat":
        flat = {of: {"shape": [1, array.size], "data": array.ravel().tolist()} for of, array in arrays.items()}
        return native(flat, header, outputs=["output"])
    if form == "base64":
        return native({of: coded(array) for of, array in arrays.items()}, header, outputs=["output"])
    if form == "binary":
        return binary(arrays, header, id=name)
    inputs = [
        {"name": of, "shape": list(array.shape), "datatype": "FP32", "data": array.ravel().tolist()}
        for of, array in arrays.items()
    ]
    body = json.dumps({"id": name, "inputs": inputs, "outputs": [{"name": "output"}]}).encode()
    if form == "gzip":
        return Request(INFER, (header, "Content-Encoding: gzip"), gzip.compress(body, 1))
    return Request(INFER, (header,), body)


def coded(array: np.ndarray) -> dict:
    return {"shape": array.shape, "dtype": "float32", "base64": base64.b64encode(array.tobytes()).decode()}


def _flip(draw: Random, said: bytes) -> bytes:
    at = draw.randrange(len(said))
    return said[:at] + bytes([said[at] ^ 1 << draw.randrange(8)]) + said[at + 1 :]


def _cut(draw: Random, said: bytes) -> bytes:
    start, end = _range(draw, said)
    return said[:start] + said[end:]


def _repeat(draw: Random, said: bytes) -> bytes:
    start, end = _range(draw, said)
    return said[:end] + said[start:end] * draw.choice([1, 1, 2, 50]) + said[end:]


def _insert(draw: Random, said: bytes) -> bytes:
    at = draw.randrange(len(said) + 1)
    return said[:at] + draw.choice([draw.choice(TOKENS), draw.randbytes(draw.randint(1, 9))]) + said[at:]


def _replace(draw: Random, said: bytes) -> bytes:
    start, end = _range(draw, said)
    return said[:start] + draw.choice([draw.choice(TOKENS), draw.randbytes(end - start)]) + said[end:]


def _truncate(draw: Random, said: bytes) -> bytes:
    return said[: draw.randrange(len(said))]


def _range(draw: Random, said: bytes) -> tuple[int, int]:
    start = draw.randrange(len(said))
    return start, min(len(said), start + draw.choice([1, 1, 2, 4, 16, 200]))


BYTES: list[Callable[[Random, bytes], bytes]] = [_flip, _cut, _repeat, _insert, _replace, _truncate]


def chunked(draw: Random, request: Request, honest: bool) -> bytes:
    """The same in chunks; if not honest, a chunk says another length than it has."""
    lines = [f"POST {request.path} HTTP/1.1", "Host: here", *request.headers, "Transfer-Encoding: chunked"]
    said, rest = "\r\n".join([*lines, "", ""]).encode(), request.body
    while rest:
        length = draw.randint(1, len(rest))
        told = length if honest or draw.random() < 0.5 else draw.choice([length + 1, length - 1, 1 << 33, -1])
        said += b"%x%b\r\n%b\r\n" % (told, draw.choice([b"", b";a=b"]), rest[:length])
        rest = rest[length:]
    return said + b"0\r\n\r\n"


def mutant(draw: Random, request: Request) -> bytes:
    """``request``, changed: its body, so that its length is right; its head; or what goes over the wire."""
    path, headers, body = request
    kind = draw.choice(["body", "body", "body", "line", "length", "target", "chunks", "wire", "wire"])
    if kind == "body":
        for _ in range(draw.randint(1, 3)):
            body = draw.choice(BYTES)(draw, body) if body else body
        return Request(path, headers, body).wire()
    if kind == "line":
        return Request(path, (*headers, draw.choice(LINES)), body).wire()
    if kind == "target":
        return Request(draw.choice(TARGETS), headers, body).wire()
    if kind == "chunks":
        return chunked(draw, request, honest=False)
    said = request.wire()
    if kind == "length":
        length = len(body) + draw.choice([-len(body), -9, -1, 1, 9, 70_000, 1 << 40])
        return said.replace(b"Content-Length: %d\r\n\r\n" % len(body), b"Content-Length: %d\r\n\r\n" % length)
    for _ in range(draw.randint(1, 3)):
        said = draw.choice(BYTES)(draw, said) if said else said
    return said
