"""The framing of a body in chunks (RFC 9112, 7.1): where its chunks and its trailers end, within limits."""

import re

from service.base.messages import size_words

CRLF = b"\r\n"
END_OF_TRAILERS = CRLF + CRLF
TRAILERS = re.compile(rb"(?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*)*\r\n\r\n")
SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\r\n]*)?\r\n")
MAX_LINE_BYTES = 1 << 10  # before a chunk: its size, and extensions
MAX_TRAILER_BYTES = 8 << 10
# The framing of a whole message: only 3,300 chunks, some 4 milliseconds, may have less than some 400 bytes.
MAX_FRAMING_BYTES = 16 << 10
MAX_FRAMING_SHARE = 64  # and this part of the data, of each chunk at most
MAX_ALLOWED_BYTES = 16  # as a long chunk must not allow many short ones


class WrongFraming(Exception):
    """Chunks that are malformed, or exceed a limit; answered with ``status``. ``limit`` is the setting, if any."""

    def __init__(self, status: int, reason: str, limit: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.limit = limit


class ChunkedBody:
    """Follows the chunks of one message as they come. The parser gets them as they are, without the trailers.

    Trailers are ignored: they must not change how a message is framed, routed, authenticated or read (RFC 9110, 6.5.1).
    """

    __slots__ = ("_bytes", "_framing", "_left", "_line", "_max_bytes", "_trailers")

    def __init__(self, max_bytes: int) -> None:
        self._bytes, self._max_bytes = 0, max_bytes  # that have come, and may, of the chunks with their framing
        self._left = 0  # bytes of a chunk, and of the line break behind it, that have not come
        self._line = b""  # the start of a line whose end has not come
        self._framing = 0  # bytes around the chunks, without those that their data allows; below 0 it is 0
        self._trailers: bytes | None = None  # that have come, behind a line break; None before the last chunk

    def take(self, content: bytes, start: int) -> tuple[int, bytes | memoryview]:
        """How far ``content`` belongs together from ``start`` on, and what of it the parser gets.

        The message ends where the parser gets an empty line.

        Raises:
            WrongFraming: it is no chunk, or a limit is exceeded.
        """
        if self._trailers is not None:
            return self._take_trailers(content, start, self._trailers)
        place, length = start, len(content)
        while place < length and self._trailers is None:
            if self._left:
                step = min(self._left, length - place)
                self._left -= step
                place += step
            else:
                place = self._take_line(content, place)
        self._bytes += place - start
        if self._bytes > self._max_bytes:
            longest = f"longer than the {size_words(self._max_bytes)} allowed (twice max_body_bytes)"
            raise WrongFraming(413, f"The chunks with their framing are {longest}.", "max_body_bytes")
        return place, memoryview(content)[start:place]

    def _take_line(self, content: bytes, start: int) -> int:
        """The end of the line before a chunk, or of its part that has come."""
        end = content.find(b"\n", start, start + MAX_LINE_BYTES) + 1
        self._line += content[start : end or len(content)]
        if len(self._line) > MAX_LINE_BYTES:
            raise WrongFraming(400, f"A line before a chunk is longer than {MAX_LINE_BYTES} bytes.")
        if not end:
            return len(content)
        line, self._line = self._line, b""
        size = SIZE.fullmatch(line)
        if size is None:
            raise WrongFraming(400, "A chunk does not start with its size.")
        data = int(size[1], 16)
        allowed = min(data // MAX_FRAMING_SHARE, MAX_ALLOWED_BYTES)
        self._framing = max(0, self._framing + len(line) + len(CRLF) - allowed)
        if self._framing > MAX_FRAMING_BYTES:
            raise WrongFraming(
                413,
                f"The chunks are too small: their framing is longer than {size_words(MAX_FRAMING_BYTES)}, "
                f"without 1/{MAX_FRAMING_SHARE} of each.",
            )
        if data:
            self._left = data + len(CRLF)
        else:
            self._trailers = CRLF
        return end

    def _take_trailers(self, content: bytes, start: int, before: bytes) -> tuple[int, bytes]:
        trailers = before + content[start : start + MAX_TRAILER_BYTES + len(END_OF_TRAILERS)]
        place = trailers.find(END_OF_TRAILERS, max(0, len(before) - len(END_OF_TRAILERS)))
        end = len(content) if place < 0 else start + place + len(END_OF_TRAILERS) - len(before)
        if end - start + len(before) - len(CRLF) > MAX_TRAILER_BYTES:
            raise WrongFraming(431, f"The trailers are longer than {size_words(MAX_TRAILER_BYTES)}.")
        if place < 0:
            self._trailers = trailers
            return end, b""
        if not TRAILERS.fullmatch(trailers, 0, place + len(END_OF_TRAILERS)):
            raise WrongFraming(400, "The trailers are not header fields.")
        return end, CRLF
