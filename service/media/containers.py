"""Bounds on the parts of a file before a library reads its header: Pillow and libsndfile read any number of them.

A part is a segment of JPEG, a chunk of PNG or a metadata block of FLAC. Some of Pillow's loops copy all parts before.
"""

import re
from collections.abc import Iterator

from service.base.errors import Invalid

MAX_PARTS = 300  # a colour profile of JPEG has up to 255
PART_BYTES = 1024  # of a PNG, whose pixels are in chunks of 8 KiB, mostly: one more part is allowed for so many bytes
MAX_FILL_BYTES = 4096  # between the segments of a JPEG
PADDING = re.compile(rb"\xff+")
START_OF_SCAN = 0xDA
ALONE = {0x00, 0x01, *range(0xD0, 0xDA)}  # markers of JPEG without a length behind them


def check_parts(content: bytes | bytearray, field: str) -> None:
    """Raises Invalid: a PNG, JPEG or FLAC has too many parts."""
    if content.startswith(b"\x89PNG"):
        parts, allowance = _chunks(content), PART_BYTES
    elif content.startswith(b"\xff\xd8"):
        parts, allowance = _segments(content, field), 0
    elif content.startswith(b"fLaC"):
        parts, allowance = _blocks(content), 0
    else:
        return
    for count, end in enumerate(parts, 1):
        if count > MAX_PARTS + (end // allowance if allowance else 0):
            raise Invalid(f"has more than {MAX_PARTS} segments, chunks or blocks of metadata", field)


def _chunks(content: bytes | bytearray) -> Iterator[int]:
    """Where each chunk of a PNG ends."""
    place = 8
    while place < len(content):
        place += 12 + int.from_bytes(content[place : place + 4], "big")
        yield min(place, len(content))


def _segments(content: bytes | bytearray, field: str) -> Iterator[int]:
    """Where each segment of a JPEG ends, up to its first scan."""
    place, filled = 2, 0
    while (marker := content.find(b"\xff", place)) >= 0:
        padding = PADDING.match(content, marker)
        assert padding is not None, "it begins there"
        filled += padding.end() - 1 - place
        if filled > MAX_FILL_BYTES:
            raise Invalid(f"has more than {MAX_FILL_BYTES:,} bytes between its segments", field)
        kind, place = content[padding.end() : padding.end() + 1], padding.end() + 1
        if not kind or kind[0] == START_OF_SCAN:
            return
        if kind[0] not in ALONE:
            place += max(2, int.from_bytes(content[place : place + 2], "big"))
        yield place


def _blocks(content: bytes | bytearray) -> Iterator[int]:
    """Where each block of a FLAC's metadata ends."""
    place, is_last = 4, False
    while place < len(content) and not is_last:
        is_last = content[place] >= 0x80
        place += 4 + int.from_bytes(content[place + 1 : place + 4], "big")
        yield place
