"""HTTP as bytes, so that what goes over the wire is in sight, and a client costs little."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

ATTEND = "/v1/attention/scaled_dot_product"
INFER = "/v2/models/scaled_dot_product/infer"
NAMES = ("query", "key", "value")


class Request(NamedTuple):
    path: str
    headers: tuple[str, ...]  # lines, without Content-Length
    body: bytes

    def wire(self) -> bytes:
        lines = [f"POST {self.path} HTTP/1.1", "Host: here", *self.headers, f"Content-Length: {len(self.body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


def native(tensors: Mapping[str, Any], *headers: str, **fields: Any) -> Request:
    """To the native face; each tensor in one of its forms."""
    return Request(ATTEND, headers, json.dumps({**tensors, **fields}).encode())


def binary(tensors: Mapping[str, np.ndarray], *headers: str, **fields: Any) -> Request:
    """To V2, tensors [batch, heads, length, d] of float32 as bytes both ways."""
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in tensors.items()
    ]
    outputs = [{"name": "output", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": inputs, "outputs": outputs, **fields}).encode()
    attached = b"".join(array.tobytes() for array in tensors.values())
    return Request(INFER, (*headers, f"Inference-Header-Content-Length: {len(head)}"), head + attached)


async def answer(reader: asyncio.StreamReader) -> Answer | None:
    """The next answer; None where the connection is closed instead.

    Raises:
        ConnectionError, asyncio.IncompleteReadError: it ends within one.
        ValueError: what comes is no HTTP.
    """
    line = await reader.readline()
    if not line:
        return None
    version, status, *_ = line.split(b" ")
    if version != b"HTTP/1.1" or not line.endswith(b"\r\n"):
        raise ValueError(f"no status line: {line!r}")
    headers = {}
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    if status == b"100":
        return await answer(reader)
    return Answer(int(status), headers, await reader.readexactly(int(headers[b"content-length"])))


class Connection:
    """One that is kept, and opened again where the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, wire: bytes) -> Answer:
        """Raises ConnectionError where it gets none."""
        if self._streams and self._streams[0].at_eof():  # it was idle for too long
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(wire)
        found = await answer(reader)
        if found is None:
            raise ConnectionResetError("closed without an answer")
        if found.headers.get(b"connection") == b"close":
            self.close()
        return found

    def close(self) -> None:
        if self._streams:
            self._streams[1].close()
            self._streams = None
