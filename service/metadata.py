"""What an ONNX file says of itself, read without opening a session: it decides whether one is opened."""

import mmap
from collections.abc import Iterator
from pathlib import Path

PROPERTY = 14  # ModelProto.metadata_props, each a StringStringEntryProto:
KEY, VALUE = 1, 2
SIZES = {1: 8, 5: 4}  # of a protobuf wire type, in bytes
VARINT, BYTES = 0, 2


def metadata(file: Path) -> dict[str, str]:
    """The entries of its metadata; none of what is no ONNX file, or cannot be read: ONNX Runtime says why."""
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            entries = [dict(_fields(entry)) for field, entry in _fields(content) if field == PROPERTY]
            return {entry[KEY].decode(): entry[VALUE].decode() for entry in entries}
    except (OSError, ValueError, IndexError, KeyError):
        return {}


def _fields(message: bytes | mmap.mmap) -> Iterator[tuple[int, bytes]]:
    """The number and the bytes of each field that has bytes; of a whole file's, its metadata alone: a graph is long."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        field, wire = tag >> 3, tag & 7
        if wire == VARINT:
            _, place = _varint(message, place)
            continue
        size, place = _varint(message, place) if wire == BYTES else (SIZES[wire], place)
        if wire == BYTES and (field == PROPERTY or isinstance(message, bytes)):
            yield field, message[place : place + size]
        place += size


def _varint(message: bytes | mmap.mmap, place: int) -> tuple[int, int]:
    """The number that begins at ``place``, seven bits a byte, and the place behind it."""
    value = 0
    for shift in range(0, 64, 7):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
    raise ValueError("a number of more than 64 bits")
