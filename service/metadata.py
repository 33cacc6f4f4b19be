"""What an ONNX file says of itself, read without opening a session: it decides whether one is opened."""

import mmap
from collections.abc import Iterator
from pathlib import Path

PROPERTY = 14  # ModelProto.metadata_props, each a StringStringEntryProto:
KEY, VALUE = 1, 2
SIZES = {1: 8, 5: 4}  # of a protobuf wire type, in bytes
VARINT, BYTES = 0, 2


def metadata(file: Path) -> dict[str, str]:
    """The entries of its metadata; none of what is no ONNX file.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        if not stream.seek(0, 2):
            return {}
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                entries = [dict(_fields(entry)) for field, entry in _fields(content) if field == PROPERTY]
                return {entry[KEY].decode(): entry[VALUE].decode() for entry in entries}
            except (IndexError, KeyError, UnicodeDecodeError):
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
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
