"""The calls of memories without I/O: generators like those of ``heed_client.calls``."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np

from heed_client.arrays import TensorLike, dtype_name
from heed_client.calls import Call, Calls, parse
from heed_client.errors import BadRequest, Problem
from heed_client.memories import upload
from heed_client.memories.upload import LENGTHS

MEMORIES = "/v1/memories"
PART_BYTES = 64 << 20  # of one request; it is halved and sent again if the server's limit is lower


@dataclass(frozen=True)
class Description:
    """A server's description of a memory; shapes are [batch, kv_heads, n, d], of a stack of layers [layers, ...]."""

    id: str
    block: str | None
    dtype: str
    key_shape: tuple[int, ...]
    value_shape: tuple[int, ...]
    lengths: tuple[int, ...]
    bytes: int
    content: str
    created: str
    expires: str | None


class MemoryCalls:
    """The calls that the clients execute; ``calls`` sends their requests."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def store(
        self, tensors: Mapping[str, TensorLike], options: Mapping[str, Any], lengths: TensorLike, reuse: bool
    ) -> Call[tuple[Description, bool]]:
        """Store a memory; return whether it is new, too. ``options`` are the request's fields beside its tensors."""
        options = {**options, "dtype": _stored_dtype(options["dtype"])}
        if reuse and options.get("block") is not None:
            raise ValueError("reuse: cannot be combined with block, whose keys and values are computed by the server")
        arrays, counts = upload.to_arrays(tensors, _sent_dtype(options)), _lengths(lengths)
        size = sum(array.nbytes for array in arrays.values())
        if not reuse or size > PART_BYTES or not upload.are_keys_and_values(arrays):
            return (yield from self._upload(arrays, counts, options)), True
        tag = {"If-None-Match": f'"{upload.content_hash(arrays, counts)}"'}
        try:  # without the numbers, since sending them takes long
            response = yield from self._calls.send("POST", MEMORIES, b"{}", {"Content-Type": "application/json"} | tag)
        except BadRequest as error:
            if error.status != 422:  # nothing is stored: the server needs a key
                raise
            return (yield from self._upload(arrays, counts, options)), True
        return _description(response), False

    def append(
        self, stored: Description, tensors: Mapping[str, TensorLike], at: int | None, lengths: TensorLike
    ) -> Call[Description]:
        """Append to the memory that ``stored`` describes."""
        arrays = upload.to_arrays(tensors, _sent_dtype(vars(stored)))
        return self._upload(arrays, _lengths(lengths), {}, f"{_path(stored.id)}/append", at)

    def list(self) -> Call[list[Description]]:
        response = yield from self._calls.send("GET", MEMORIES)
        return parse(response, lambda: [_parsed(entry) for entry in response.json()["memories"]])

    def get(self, id: str) -> Call[Description]:
        return _description((yield from self._calls.send("GET", _path(id))))

    def delete(self, id: str) -> Call[None]:
        yield from self._calls.send("DELETE", _path(id))

    def _upload(
        self,
        arrays: Mapping[str, np.ndarray],
        lengths: np.ndarray | None,
        options: Mapping[str, Any],
        path: str = MEMORIES,
        at: int | None = None,
    ) -> Call[Description]:
        """Send tensors to ``path``. Large keys and values are sent in parts: the first is stored, the others appended.

        Raises:
            Problem: the server rejects a part; a new memory with earlier parts is deleted.
        """
        if options.get("block") is not None or not upload.are_keys_and_values(arrays):
            return (yield from self._post(path, arrays, {**options, LENGTHS: lengths, "at": at}))
        n = arrays["key"].shape[-2]
        if lengths is not None and ((lengths < 0) | (lengths > n)).any():
            raise ValueError(f"{LENGTHS}: expected numbers from 0 to {n}, got {lengths.tolist()}")
        size = max(1, min(n, n * PART_BYTES // max(1, sum(array.nbytes for array in arrays.values()))))
        start, created = 0, None
        while True:
            part = {name: array[..., start : start + size, :] for name, array in arrays.items()}
            counts = None if lengths is None else np.clip(lengths - start, 0, size)
            try:
                description = yield from self._post(path, part, {**options, LENGTHS: counts, "at": at})
            except Problem as error:
                if error.status == 413 and size > 1:
                    size //= 2
                    continue
                if created:
                    with suppress(Problem):
                        yield from self.delete(created)
                raise
            start += size
            if start >= n:
                return description
            if path == MEMORIES:
                created, options, path, at = description.id, {}, f"{_path(description.id)}/append", 0
            at = None if at is None or lengths is not None else at + size  # different lengths have no common place

    def _post(self, path: str, arrays: Mapping[str, np.ndarray], fields: Mapping[str, Any]) -> Call[Description]:
        content, headers = upload.encode(arrays, fields)
        return _description((yield from self._calls.send("POST", path, content, headers)))


def _stored_dtype(dtype: Any) -> str | None:
    """The name of the dtype to store; None if none is given.

    Raises:
        ValueError: memories do not have it.
    """
    name = dtype_name(dtype)
    if name is not None and name not in upload.BINARY_DTYPES:
        raise ValueError(f"dtype: expected {' or '.join(upload.BINARY_DTYPES)}, got {name!r}")
    return None if name is None else str(name)


def _sent_dtype(stored: Mapping[str, Any]) -> str:
    """The dtype to send: that of the stored keys and values, or float32 for a block's inputs, projected first."""
    return "float32" if stored.get("block") else stored.get("dtype") or "float32"


def _lengths(lengths: TensorLike) -> np.ndarray | None:
    return None if lengths is None else np.asarray(lengths).reshape(-1)


def _path(id: str) -> str:
    return f"{MEMORIES}/{quote(id, safe='')}"


def _description(response: httpx.Response) -> Description:
    return parse(response, lambda: _parsed(response.json()))


def _parsed(document: Mapping[str, Any]) -> Description:
    """The description in a document, without members that this version does not know."""
    members: dict[str, Any] = {field.name: document[field.name] for field in fields(Description)}
    shapes = {name: tuple(value) for name, value in members.items() if isinstance(value, list)}
    return Description(**members | shapes)
