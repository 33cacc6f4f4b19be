"""Whole requests as the bytes that go over the wire, to the adder, to a slow model and to scaled_dot_product."""

import json

import numpy as np

from tests.support.v2 import tensor

CRLF = b"\r\n"
ADDER = "/v2/models/adder/infer"
SDPA = "/v1/attention/scaled_dot_product"
SLOW = "/v2/models/slow/infer"


def http(body: dict | bytes, path: str = ADDER, *lines: str, method: str = "POST", version: str = "1.1") -> bytes:
    """A request whose length is declared."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(f"{method} {path} HTTP/{version}", f"Content-Length: {len(content)}", *lines) + content


def head(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in [lines[0], "Host: here", *lines[1:], ""]).encode()


def add(x: float, **more) -> dict:
    """A body that the adder answers with ``x`` + 1, thrice."""
    return {"inputs": [tensor("x", [[round(x, 1)] * 3]), tensor("z", [[0] * 3])], **more}


def add_binary(x: float, *lines: str) -> bytes:
    """The same, with tensors behind the JSON both ways."""
    array = np.full((1, 3), x, np.float32)
    inputs = [
        {"name": name, "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}} for name in "xz"
    ]
    content = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    length = f"Inference-Header-Content-Length: {len(content)}"
    return http(content + array.tobytes() + (0 * array).tobytes(), ADDER, length, *lines)


def sums_body(x: float) -> dict:
    """A body with an output that fails in JSON if it is no number."""
    return {"inputs": [tensor(name, [[x] * 3]) for name in "xy"]}


def named(x: float, name: str) -> bytes:
    """The same with an id, as tritonclient writes it."""
    return json.dumps({"id": name, **add(x)}, separators=(",", ":")).encode()


def attend(x: float) -> dict:
    return {"query": [[x]], "key": [[1.0]], "value": [[x]]}


def slow(version: str = "1.1") -> bytes:
    """A request to the slow model."""
    return http({"inputs": [tensor("x", np.ones((64, 512)))]}, SLOW, version=version)
