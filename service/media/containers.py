"""Files without their metadata: Pillow reads any number of comments and profiles, some in quadratic time.

A part is a segment of JPEG, a chunk of PNG or a metadata block of FLAC.
"""

import re

from service.base.errors import Invalid

MAX_PARTS = 300  # a colour profile of JPEG has up to 255
PART_BYTES = 1024  # of a PNG, whose pixels are in chunks of 8 KiB, mostly: one more part is allowed for so many bytes
MAX_FILL_BYTES = 4096  # between the segments of a JPEG
MAX_EXIF_BYTES = 1 << 16  # which has the orientation
PADDING = re.compile(rb"\xff+")
CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"eXIf"}  # of PNG, that are read
START_OF_SCAN, ADOBE, JFIF, EXIF, COMMENT = 0xDA, 0xEE, 0xE0, 0xE1, 0xFE  # markers of JPEG
ALONE = {0x00, 0x01, *range(0xD0, 0xDA)}  # without a length behind them
TABLES = {*range(0xC0, 0xD0), *range(0xDB, 0xE0)} - {0xC8}  # frames, and what decodes them
METADATA = {*range(0xE0, 0xF0), COMMENT}
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def without_metadata(content: bytes | bytearray, field: str) -> bytes | bytearray:
    """A PNG or JPEG of what its pixels and its orientation need; any other file as it is.

    Raises:
        Invalid: it has too many parts, unknown segments, or too long EXIF metadata.
    """
    if content.startswith(PNG_SIGNATURE):
        return _png(content, field)
    return _jpeg(content, field) if content.startswith(b"\xff\xd8") else content


def check_blocks(content: bytes | bytearray, field: str) -> None:
    """Raises Invalid: a FLAC has too many blocks of metadata."""
    place, count, is_last = 4, 0, not content.startswith(b"fLaC")
    while place < len(content) and not is_last:
        is_last = content[place] >= 0x80
        place += 4 + int.from_bytes(content[place + 1 : place + 4], "big")
        count += 1
        if count > MAX_PARTS:
            raise _too_many(field)


def check_exif(size: int, field: str) -> None:
    """Raises Invalid: ``size`` bytes of EXIF metadata are too many."""
    if size > MAX_EXIF_BYTES:
        raise Invalid(f"has EXIF metadata of more than {MAX_EXIF_BYTES:,} bytes", field)


def _png(content: bytes | bytearray, field: str) -> bytes:
    kept, place, count, kind = [content[:8]], 8, 0, b""
    while place < len(content) and kind != b"IEND":
        size = int.from_bytes(content[place : place + 4], "big")
        kind = bytes(content[place + 4 : place + 8])
        if kind == b"eXIf":
            check_exif(size, field)
        if kind in CHUNKS:
            kept.append(content[place : place + 12 + size])
        place += 12 + size
        count += 1
        if count > MAX_PARTS + min(place, len(content)) // PART_BYTES:
            raise _too_many(field)
    return b"".join(kept)


def _jpeg(content: bytes | bytearray, field: str) -> bytes:
    """Segments up to the first scan, without those that are skipped, and all that follows."""
    kept, place, count, filled, exif = [content[:2]], 2, 0, 0, 0
    while (marker := content.find(b"\xff", place)) >= 0:
        padding = PADDING.match(content, marker)
        assert padding is not None, "it begins there"
        start = padding.end() - 1
        filled, count = filled + start - place, count + 1
        if filled > MAX_FILL_BYTES:
            raise Invalid(f"has more than {MAX_FILL_BYTES:,} bytes between its segments", field)
        if count > MAX_PARTS:
            raise _too_many(field)
        kind = content[start + 1] if start + 1 < len(content) else 0
        place = start + 2
        if kind == START_OF_SCAN:
            return b"".join([*kept, content[start:]])
        if kind in ALONE:
            continue
        if kind not in TABLES and kind not in METADATA:
            raise Invalid("the file is truncated or damaged", field)
        place += max(2, int.from_bytes(content[place : place + 2], "big"))
        is_exif = kind == EXIF and content[start + 4 : start + 10] == b"Exif\0\0"
        if is_exif:
            exif += place - start
            check_exif(exif, field)
        if kind in TABLES or kind in (JFIF, ADOBE) or is_exif:
            kept.append(content[start:place])
    return b"".join(kept)


def _too_many(field: str) -> Invalid:
    return Invalid(f"has more than {MAX_PARTS} segments, chunks or blocks of metadata", field)
