"""HTTP requests and responses as bytes: tests control every byte, and the client uses little processor time."""

import asyncio
import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from heed_client.v2 import HEADER, binary_request

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


class Response(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


def native(tensors: Mapping[str, Any], *headers: str, **fields: Any) -> Request:
    """A request to the native API; each tensor is in one of its JSON forms."""
    return Request(ATTEND, headers, json.dumps({**tensors, **fields}).encode())


def binary(tensors: Mapping[str, np.ndarray], *headers: str, **fields: Any) -> Request:
    """A V2 request with float32 tensors [batch, heads, length, d] as bytes, which asks for binary outputs."""
    outputs = fields.pop("outputs", ["output"])
    v2_headers, pieces = binary_request(tensors, outputs, **fields)
    return Request(INFER, (*headers, f"{HEADER}: {v2_headers[HEADER]}"), b"".join(pieces))


def v2_json(tensors: Mapping[str, np.ndarray], *headers: str, **fields: Any) -> Request:
    """A V2 request with float32 tensors as flat lists."""
    inputs = [
        {"name": name, "shape": array.shape, "datatype": "FP32", "data": array.ravel().tolist()}
        for name, array in tensors.items()
    ]
    return Request(INFER, headers, json.dumps({**fields, "inputs": inputs}).encode())


def coded(array: np.ndarray) -> dict[str, Any]:
    """A float32 tensor of the native API as base64."""
    return {"shape": array.shape, "dtype": "float32", "base64": base64.b64encode(array.tobytes()).decode()}


def compressed(request: Request) -> Request:
    """The same request with a body in gzip."""
    headers = *request.headers, "Content-Encoding: gzip"
    return request._replace(headers=headers, body=gzip.compress(request.body))


async def read_response(reader: asyncio.StreamReader) -> Response | None:
    """The next response; None if the connection is closed before it.

    Raises:
        ConnectionError, asyncio.IncompleteReadError: the connection is closed within the response.
        ValueError: the bytes are not HTTP.
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
        return await read_response(reader)
    return Response(int(status), headers, await reader.readexactly(int(headers[b"content-length"])))


class Connection:
    """A connection that is kept open, and opened again after the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, wire: bytes) -> Response:
        """Send the bytes of a request; return the response.

        Raises:
            ConnectionError: the server closed the connection without a response.
        """
        if self._streams and self._streams[0].at_eof():  # closed by the server's keep-alive timeout
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(wire)
        response = await read_response(reader)
        if response is None:
            raise ConnectionResetError("closed without an answer")
        if response.headers.get(b"connection") == b"close":
            self.close()
        return response

    def close(self) -> None:
        if self._streams:
            self._streams[1].close()
            self._streams = None
