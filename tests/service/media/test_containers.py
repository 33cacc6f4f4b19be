"""A file of too many parts is refused before a library reads its header, which would take it seconds."""

import struct
import zlib

import numpy as np
import pytest
from PIL import PngImagePlugin

from service.base.errors import Invalid
from service.media.containers import MAX_FILL_BYTES, MAX_PARTS, PART_BYTES
from service.media.picture import Picture
from service.media.sound import Sound
from tests.support.media import file_of, noise, sound_of, tone

PICTURE = noise(61, 47)
JPEG, PNG, FLAC = file_of(PICTURE, "JPEG"), file_of(PICTURE), sound_of(tone(0.1, 8000), 8000, "FLAC", "PCM_16")
FILL = b"\xff" * (MAX_FILL_BYTES + 1)


def chunk(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


TOO_MANY = {
    "segments": JPEG[:2] + b"\xff\xe1\x00\x02" * MAX_PARTS + JPEG[2:],
    "exif": JPEG[:2] + b"\xff\xe1\x00\x0eExif\0\0MM\0*\0\0" * MAX_PARTS + JPEG[2:],
    "padding": JPEG[:2] + FILL + JPEG[2:],
    "bytes between segments": JPEG[:2] + b"\0" * len(FILL) + JPEG[2:],
    "escaped bytes": JPEG[:2] + b"\xff\x00" * MAX_PARTS + JPEG[2:],
    "chunks": PNG[:33] + chunk(b"aaAa") * 2 * MAX_PARTS + PNG[33:],
    "texts": PNG[:33] + chunk(b"tEXt") * 2 * MAX_PARTS + PNG[33:],
    "blocks": FLAC[:4] + b"\x10\0\0\0" * MAX_PARTS + FLAC[4:],
}


@pytest.mark.parametrize("content", TOO_MANY.values(), ids=TOO_MANY)
def test_a_file_of_too_many_parts_is_refused(content):
    kind = Sound if content.startswith(b"fLaC") else Picture
    with pytest.raises(Invalid, match=r"images: has more than"):
        kind(bytearray(content), "images")


def test_a_large_colour_profile_and_texts_are_read():
    text = PngImagePlugin.PngInfo()
    for number in range(100):
        text.add_text(f"key {number}", "value")
    profile = bytes(255 * 65_000)
    for content in (file_of(PICTURE, "JPEG", icc_profile=profile), file_of(PICTURE, pnginfo=text)):
        assert Picture(bytearray(content), "images").unpacked(3).size == PICTURE.size


def test_a_large_picture_may_have_a_chunk_for_each_kilobyte():
    """Programs write pixels in chunks of 8 KiB, and some in smaller ones."""
    pixels = np.random.default_rng(0).integers(0, 255, (600, 600, 3), np.uint8)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in pixels))
    assert len(data) > 2 * MAX_PARTS * PART_BYTES
    split = b"".join(chunk(b"IDAT", data[i : i + PART_BYTES]) for i in range(0, len(data), PART_BYTES))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 600, 600, 8, 2, 0, 0, 0))
    picture = Picture(bytearray(PNG[:8] + header + split + chunk(b"IEND")), "images")
    assert np.array_equal(np.asarray(picture.unpacked(3)), pixels)
