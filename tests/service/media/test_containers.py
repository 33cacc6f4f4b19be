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
JPEG_80 = file_of(PICTURE, "JPEG", quality=80)
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


EXIF = b"MM\0*" + struct.pack(">IHHHII", 8, 1, 0x112, 5, 20_000, 26) + bytes(160_000)  # the orientation, as fractions
LONG_EXIF = {
    "PNG": PNG[:33] + chunk(b"eXIf", EXIF) + PNG[33:],
    "JPEG": JPEG[:2] + (b"\xff\xe1\xff\xffExif\0\0" + bytes(65_527)) * 2 + JPEG[2:],
    "WEBP": file_of(PICTURE, "WEBP", exif=b"Exif\0\0" + EXIF),
}


@pytest.mark.parametrize("content", LONG_EXIF.values(), ids=LONG_EXIF)
def test_long_exif_metadata_is_refused(content):
    with pytest.raises(Invalid, match="images: has EXIF metadata of more than 65,536 bytes"):
        Picture(bytearray(content), "images").unpacked(3)


def test_an_unknown_segment_is_refused():
    """Pillow would read on inside of it."""
    hidden = b"\xff\xf0\x00\x0b\xff\xe1\x00\x09Exif\0"
    with pytest.raises(Invalid, match="images: the file is truncated or damaged"):
        Picture(bytearray(JPEG[:2] + hidden + JPEG[2:]), "images")


TEXT = PngImagePlugin.PngInfo()
for number in range(100):
    TEXT.add_text(f"key {number}", "value")
WITH_METADATA = {
    "a colour profile": file_of(PICTURE, "JPEG", quality=80, icc_profile=bytes(255 * 65_000)),
    "comments": file_of(PICTURE, pnginfo=TEXT),
    "profiles that are larger than the file": PNG[:33]
    + chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1 << 20))) * 9
    + PNG[33:],
    "zeros behind the end": PNG + bytes(8192),
}


@pytest.mark.parametrize("content", WITH_METADATA.values(), ids=WITH_METADATA)
def test_metadata_is_not_read(content):
    expected = JPEG_80 if content.startswith(b"\xff\xd8") else PNG
    picture = Picture(bytearray(content), "images")
    assert not {"icc_profile", "key 1"} & picture._image.info.keys()
    assert picture.unpacked(3) == Picture(bytearray(expected), "images").unpacked(3)


def test_a_large_picture_may_have_a_chunk_for_each_kilobyte():
    """Programs write pixels in chunks of 8 KiB, and some in smaller ones."""
    pixels = np.random.default_rng(0).integers(0, 255, (600, 600, 3), np.uint8)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in pixels))
    assert len(data) > 2 * MAX_PARTS * PART_BYTES
    split = b"".join(chunk(b"IDAT", data[i : i + PART_BYTES]) for i in range(0, len(data), PART_BYTES))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 600, 600, 8, 2, 0, 0, 0))
    picture = Picture(bytearray(PNG[:8] + header + split + chunk(b"IEND")), "images")
    assert np.array_equal(np.asarray(picture.unpacked(3)), pixels)
