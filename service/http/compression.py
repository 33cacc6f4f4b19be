"""gzip and deflate (zlib): request bodies, with a limit on their decompressed size; and responses, where it pays."""

import re
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

from service.base.budget import Reservation
from service.base.errors import Malformed, TooLarge, UnsupportedEncoding
from service.base.messages import size_words
from service.engine.engine import Engine
from service.http.body import SMALLER, Body, Headers
from service.http.response import Piece, flat

IDENTITY = b"identity"
WINDOWS = {"gzip": 31, "deflate": 15}  # zlib's wbits
CODING = re.compile(r"([a-z*][\w-]*)(?:\s*;\s*q=(\d(?:\.\d*)?))?", re.ASCII | re.IGNORECASE)
MAX_CACHED_CHARS = 256  # of an Accept-Encoding whose preference is cached
STEP_BYTES = 1 << 20  # inflated or compressed in one step, in a thread
SLICE_BYTES = 1 << 18  # of a compressed body, given to zlib at once: in each step it copies the part that is left of it
LEVEL = 1  # more costs much and gains little on random mantissas
MIN_BYTES = 1024  # of a response that is compressed; below, the headers outweigh the gain


def content_encoding(headers: Headers) -> str | None:
    """How the body of a request is compressed; None: not at all.

    Raises:
        UnsupportedEncoding: neither gzip, deflate nor identity.
    """
    encoding = headers.get(b"content-encoding", IDENTITY)
    if encoding == IDENTITY:
        return None
    name = encoding.strip().lower().decode("latin-1")
    if name == IDENTITY.decode():
        return None
    if name not in WINDOWS:
        raise UnsupportedEncoding(f"Content-Encoding '{name}' is not supported; expected gzip or deflate")
    return name


async def inflate(
    body: Body, encoding: str, longest: int, reservation: Reservation, engine: Engine, advice: str = SMALLER
) -> bytes:
    """``body`` without its encoding, of at most ``longest`` bytes, which are added to ``reservation`` piece by piece.

    Raises:
        TooLarge: it grows past ``longest``.
        TooMuchMemory, Overloaded: there is no room for what it grows to.
        Malformed: it is not in that encoding.
    """
    inflater = zlib.decompressobj(WINDOWS[encoding])
    pieces: list[bytes] = []
    length = place = 0
    rest: Body = b""
    while (rest or place < len(body)) and not inflater.eof:
        if not rest:
            rest = memoryview(body)[place : place + SLICE_BYTES]
            place += len(rest)
        try:
            pieces.append(await engine.offload(inflater.decompress, rest, STEP_BYTES))
        except zlib.error:
            raise Malformed(f"invalid {encoding} data in the body (Content-Encoding: {encoding})") from None
        length, rest = length + len(pieces[-1]), inflater.unconsumed_tail
        if length > longest:
            raise TooLarge(
                f"the decompressed body exceeds the maximum allowed, {size_words(longest)} (max_body_bytes); {advice}"
            )
        reservation.add(2 * len(pieces[-1]))  # as a piece, and joined with the others
    if not inflater.eof or inflater.unused_data or place < len(body):
        what = "unexpected data after the" if inflater.eof else "unexpected"
        raise Malformed(f"{what} end of the {encoding} body")
    return pieces[0] if len(pieces) == 1 else await engine.offload(_join, pieces)


def _join(pieces: list[bytes]) -> bytes:
    """``pieces`` in one, which are freed. Many bytes are copied without the interpreter's lock."""
    whole = b"".join(pieces)
    pieces.clear()
    return whole


def choose_encoding(header: str, when: Literal["never", "requested", "offered"], length: int) -> str | None:
    """The encoding for a response of ``length`` bytes to a client with this Accept-Encoding; None: none.

    HTTP libraries offer all encodings that they know on every call; a client that wants one names it alone.
    """
    if when == "never" or length < MIN_BYTES:
        return None
    return _preferred(header, when) if len(header) <= MAX_CACHED_CHARS else _preferred.__wrapped__(header, when)


@lru_cache(256)
def _preferred(header: str, when: str) -> str | None:
    offered = {match[1].lower(): float(match[2] or 1) for match in CODING.finditer(header)}
    offered.pop("identity", None)
    if when == "requested" and len(offered) != 1:
        return None
    usable = {name: quality for name, quality in offered.items() if name in WINDOWS and quality > 0}
    return max(usable, key=usable.__getitem__) if usable else None


def deflater(encoding: str) -> "zlib._Compress":
    """What compresses to ``encoding``."""
    return zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOWS[encoding])


def slices(pieces: Sequence[Piece]) -> Iterator[bytes]:
    """The bytes of ``pieces``, cut and joined to parts of about ``STEP_BYTES``."""
    group: list[Body] = []
    size = 0
    for piece in pieces:
        whole = memoryview(flat(piece))
        for start in range(0, len(whole), STEP_BYTES):
            group.append(whole[start : start + STEP_BYTES])
            size += len(group[-1])
            if size >= STEP_BYTES:
                yield b"".join(group)
                group, size = [], 0
    if group:
        yield b"".join(group)
