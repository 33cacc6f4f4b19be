"""The metadata of an ONNX file, read without a session: it decides whether a session is opened."""

import itertools
import mmap
from collections.abc import Iterator
from pathlib import Path

PROPERTY = 14  # ModelProto.metadata_props, each a StringStringEntryProto:
KEY, VALUE = 1, 2
SIZES = {1: 8, 5: 4}  # of a protobuf wire type, in bytes
VARINT, BYTES = 0, 2
MAX_FIELDS = 100_000  # of a file outside of its graph; ONNX files have about ten, and one for each function


class NotAModel(ValueError):
    """No ONNX file, where ONNX Runtime would need minutes to refuse it, or never would; the message says why."""


def metadata(file: Path) -> dict[str, str]:
    """The entries of the file's metadata; none where it is no ONNX file or cannot be read: ONNX Runtime says why.

    Raises:
        NotAModel: it is no regular file but a named pipe, say, or has more fields than any ONNX file.
    """
    if file.exists() and not file.is_file():
        raise NotAModel(f"{file.name} is not a regular file")
    count = itertools.count(1)
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            entries = [dict(_fields(entry, count)) for field, entry in _fields(content, count) if field == PROPERTY]
            return {entry[KEY].decode(): entry[VALUE].decode() for entry in entries}
    except NotAModel:
        raise
    except (OSError, ValueError, IndexError, KeyError):
        return {}


def _fields(message: bytes | mmap.mmap, count: Iterator[int]) -> Iterator[tuple[int, bytes]]:
    """The number and the bytes of each field that has bytes; of a whole file only the metadata: a graph is long.

    ``count`` counts the fields of a file and of all its entries together.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        field, wire = tag >> 3, tag & 7
        if field == 0:
            raise ValueError("protobuf has no field 0")
        if next(count) > MAX_FIELDS:
            raise NotAModel(f"not an ONNX model: more than {MAX_FIELDS:,} fields outside of its graph")
        if wire == VARINT:
            _, place = _varint(message, place)
            continue
        size, place = _varint(message, place) if wire == BYTES else (SIZES[wire], place)
        if wire == BYTES and (field == PROPERTY or isinstance(message, bytes)):
            yield field, message[place : place + size]
        place += size


def _varint(message: bytes | mmap.mmap, place: int) -> tuple[int, int]:
    """The number at ``place``, of seven bits a byte, and the place after it."""
    value = 0
    for shift in range(0, 64, 7):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
    raise ValueError("a number of more than 64 bits")
