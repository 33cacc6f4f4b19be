"""gzip and deflate (zlib): of request bodies, bounded in what they may grow to; of answers, where it pays."""

import re
import zlib
from typing import Literal

from service.body import Body
from service.errors import Malformed, TooLarge, UnsupportedEncoding

WINDOWS = {"gzip": 31, "deflate": 15}  # zlib's wbits
CODING = re.compile(r"([a-z*][\w-]*)(?:\s*;\s*q=(\d(?:\.\d*)?))?", re.ASCII | re.IGNORECASE)
LEVEL = 1  # more costs much and gains little on random mantissas
LEAST = 1024  # bytes; below, the headers outweigh it


def inflate(body: Body, encoding: str, longest: int) -> bytes:
    """``body`` without its encoding, of at most ``longest`` bytes.

    Raises:
        UnsupportedEncoding: neither gzip, deflate nor identity.
        TooLarge: it grows past ``longest``.
        Malformed: it is not what it says.
    """
    if encoding not in WINDOWS:
        raise UnsupportedEncoding(f"Content-Encoding '{encoding}' is not supported; there are gzip and deflate")
    inflater = zlib.decompressobj(WINDOWS[encoding])
    try:
        content = inflater.decompress(body, longest + 1)
    except zlib.error as error:
        raise Malformed(f"the body is not {encoding}: {error}") from None
    if len(content) > longest:
        raise TooLarge(f"the decompressed body exceeds the maximum allowed (max_body_bytes), {longest:,} bytes")
    if not inflater.eof or inflater.unused_data:
        raise Malformed(
            f"the body is not {encoding}: {'more follows its end' if inflater.eof else 'it ends too early'}"
        )
    return content


def accepted(header: str, when: Literal["never", "asked", "offered"], length: int) -> str | None:
    """The encoding for an answer of ``length`` bytes to a client with this Accept-Encoding; None: as it is.

    HTTP libraries offer all that they know on every call; a client that wants an encoding names it alone.
    """
    if when == "never" or length < LEAST or not header:
        return None
    offered = {match[1].lower(): float(match[2] or 1) for match in CODING.finditer(header)}
    offered.pop("identity", None)
    if when == "asked" and len(offered) != 1:
        return None
    usable = {name: quality for name, quality in offered.items() if name in WINDOWS and quality > 0}
    return max(usable, key=usable.__getitem__) if usable else None


def deflate(content: bytes, encoding: str) -> bytes:
    """``content`` in ``encoding``."""
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOWS[encoding])
    return compressor.compress(content) + compressor.flush()
