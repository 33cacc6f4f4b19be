"""Valid requests to both APIs, each with unique numbers, and random mutations of their bytes."""

from collections.abc import Callable
from random import Random

import numpy as np

from benchmarks.soak.wire import INFER, NAMES, Request, binary, coded, compressed, native, v2_json

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
    """Three numbers, exact in float32, that no other request has."""
    rng = Random(number)
    first, second, third = (float(rng.randrange(1, 1 << 24)) for _ in range(3))
    return first, second, third


def name_of(number: int) -> str:
    return f"n{number:012d}"


def valid(rng: Random, number: int) -> Request:
    """A request with one key, so that its output is its value, the row of ``number``; its id is ``name_of(number)``."""
    name, row = name_of(number), row_of(number)
    header = f"X-Request-ID: {name}"
    arrays = {key: np.array([[[row if key == "value" else (1, 2)]]], np.float32) for key in NAMES}
    form = rng.choice(["nested", "flat", "base64", "json", "binary", "gzip"])
    if form == "nested":
        return native({key: array[0, 0].tolist() for key, array in arrays.items()}, header, outputs=["output"])
    if form == "flat":
        flat = {key: {"shape": [1, array.size], "data": array.ravel().tolist()} for key, array in arrays.items()}
        return native(flat, header, outputs=["output"])
    if form == "base64":
        return native({key: coded(array) for key, array in arrays.items()}, header, outputs=["output"])
    if form == "binary":
        return binary(arrays, header, id=name)
    request = v2_json(arrays, header, id=name, outputs=[{"name": "output"}])
    return compressed(request) if form == "gzip" else request


def _flip(rng: Random, wire: bytes) -> bytes:
    at = rng.randrange(len(wire))
    return wire[:at] + bytes([wire[at] ^ 1 << rng.randrange(8)]) + wire[at + 1 :]


def _cut(rng: Random, wire: bytes) -> bytes:
    start, end = _range(rng, wire)
    return wire[:start] + wire[end:]


def _repeat(rng: Random, wire: bytes) -> bytes:
    start, end = _range(rng, wire)
    return wire[:end] + wire[start:end] * rng.choice([1, 1, 2, 50]) + wire[end:]


def _insert(rng: Random, wire: bytes) -> bytes:
    at = rng.randrange(len(wire) + 1)
    return wire[:at] + rng.choice([rng.choice(TOKENS), rng.randbytes(rng.randint(1, 9))]) + wire[at:]


def _replace(rng: Random, wire: bytes) -> bytes:
    start, end = _range(rng, wire)
    return wire[:start] + rng.choice([rng.choice(TOKENS), rng.randbytes(end - start)]) + wire[end:]


def _truncate(rng: Random, wire: bytes) -> bytes:
    return wire[: rng.randrange(len(wire))]


def _range(rng: Random, wire: bytes) -> tuple[int, int]:
    start = rng.randrange(len(wire))
    return start, min(len(wire), start + rng.choice([1, 1, 2, 4, 16, 200]))


BYTES: list[Callable[[Random, bytes], bytes]] = [_flip, _cut, _repeat, _insert, _replace, _truncate]


def chunked(rng: Random, request: Request, honest: bool) -> bytes:
    """The request with chunked encoding; unless ``honest``, chunks may declare a wrong length."""
    lines = [f"POST {request.path} HTTP/1.1", "Host: here", *request.headers, "Transfer-Encoding: chunked"]
    wire, rest = "\r\n".join([*lines, "", ""]).encode(), request.body
    while rest:
        length = rng.randint(1, len(rest))
        declared = length if honest or rng.random() < 0.5 else rng.choice([length + 1, length - 1, 1 << 33, -1])
        wire += b"%x%b\r\n%b\r\n" % (declared, rng.choice([b"", b";a=b"]), rest[:length])
        rest = rest[length:]
    return wire + b"0\r\n\r\n"


def mutant(rng: Random, request: Request) -> bytes:
    """``request`` with a change in its body (with the right length), in its head, or anywhere in its bytes."""
    path, headers, body = request
    kind = rng.choice(["body", "body", "body", "line", "length", "target", "chunks", "wire", "wire"])
    if kind == "body":
        for _ in range(rng.randint(1, 3)):
            body = rng.choice(BYTES)(rng, body) if body else body
        return Request(path, headers, body).wire()
    if kind == "line":
        return Request(path, (*headers, rng.choice(LINES)), body).wire()
    if kind == "target":
        return Request(rng.choice(TARGETS), headers, body).wire()
    if kind == "chunks":
        return chunked(rng, request, honest=False)
    wire = request.wire()
    if kind == "length":
        length = len(body) + rng.choice([-len(body), -9, -1, 1, 9, 70_000, 1 << 40])
        return wire.replace(b"Content-Length: %d\r\n\r\n" % len(body), b"Content-Length: %d\r\n\r\n" % length)
    for _ in range(rng.randint(1, 3)):
        wire = rng.choice(BYTES)(rng, wire) if wire else wire
    return wire
