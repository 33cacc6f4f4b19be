"""Compressed bodies are given to zlib in slices, of which it copies little."""

import asyncio
import gzip
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from service.base.budget import MemoryBudget, Reservation
from service.base.errors import Malformed, Overloaded
from service.http import compression
from service.http.compression import SLICE_BYTES, STEP_BYTES, deflater, inflate, slices

STORED = gzip.compress(bytes(3 * SLICE_BYTES + 5), compresslevel=0)  # as long as its content
SMALL = gzip.compress(bytes(5 * STEP_BYTES))


def inflated(body: bytes) -> tuple[bytes, list[int]]:
    """The content, and the length of each input of zlib."""
    lengths: list[int] = []

    async def offload(function, *arguments):
        if arguments[1:] == (STEP_BYTES,):
            lengths.append(len(arguments[0]))
        return function(*arguments)

    reservation = Reservation(MemoryBudget(1 << 30, Overloaded, Counter()))
    return asyncio.run(inflate(body, "gzip", 1 << 29, reservation, SimpleNamespace(offload=offload))), lengths


@pytest.mark.parametrize("body", [STORED, SMALL], ids=["stored", "zeros"])
def test_zlib_gets_a_body_in_slices(body):
    content, lengths = inflated(body)
    assert content == gzip.decompress(body)
    assert max(lengths) <= SLICE_BYTES
    assert len(lengths) > 3


@pytest.mark.parametrize("follows", [b"x", b"x" * SLICE_BYTES])
def test_bytes_behind_the_end_are_refused(monkeypatch, follows):
    with pytest.raises(Malformed, match="unexpected data after the end of the gzip body"):
        inflated(STORED + follows)
    monkeypatch.setattr(compression, "SLICE_BYTES", len(STORED))  # the end of the content is that of a slice
    with pytest.raises(Malformed, match="unexpected data after the end of the gzip body"):
        inflated(STORED + follows)


def test_a_body_that_ends_early_is_refused():
    with pytest.raises(Malformed, match="unexpected end of the gzip body"):
        inflated(STORED[:-9])


def test_a_response_is_compressed_in_parts():
    pieces = [b"a" * 10, b"b" * (2 * STEP_BYTES + 7), np.arange(STEP_BYTES, dtype=np.uint8), b"", b"c"]
    parts = list(slices(pieces))
    assert max(map(len, parts)) < 2 * STEP_BYTES
    whole = b"".join(map(bytes, pieces))
    assert b"".join(parts) == whole
    compressor = deflater("gzip")
    assert gzip.decompress(b"".join([*map(compressor.compress, parts), compressor.flush()])) == whole
