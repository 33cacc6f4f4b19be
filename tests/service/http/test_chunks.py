"""Bodies in chunks: wherever the packets are cut, the parser gets the chunks, and trailers stay out of the request."""

import pytest

from service.http.chunks import MAX_FRAMING_BYTES, MAX_LINE_BYTES, MAX_TRAILER_BYTES, ChunkedBody, WrongFraming

CHUNKS = b'5\r\n{"a":\r\nA;note="x"\r\n 1234567}\n\r\n0\r\n'
MAX_BYTES = 1 << 20
SMALL, LONG = b"1\r\nx\r\n", b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
NEXT = b"POST /next HTTP/1.1\r\n"


def taken(content: bytes, packets: list[int]) -> tuple[bytes, bytes]:
    """What the parser gets of ``content``, cut at ``packets``, up to the message's end; and the bytes behind it."""
    body, parsed = ChunkedBody(MAX_BYTES), b""
    for start, end in zip([0, *packets], [*packets, len(content)], strict=True):
        place = start
        while place < end:
            place, piece = body.take(content[:end], place)
            parsed += piece
            if parsed.endswith(b"0\r\n\r\n"):
                return parsed, content[place:]
    return parsed, b""


@pytest.mark.parametrize("trailers", [b"", b"X-API-Key: other\r\nContent-Encoding: gzip\r\n"], ids=["none", "two"])
def test_a_message_ends_in_the_same_place_wherever_packets_are_cut(trailers):
    content = CHUNKS + trailers + b"\r\n" + NEXT
    for first in range(1, len(content)):
        parsed, _ = taken(content, [first])
        assert parsed == CHUNKS + b"\r\n"
    assert taken(content, [])[1] == NEXT


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"x\r\n", 400),
        (b"-1\r\n", 400),
        (b"5\n12345\r\n", 400),
        (b"\r\n", 400),
        (b"1" * 16 + b"\r\n", 400),
        (b"5;" + b"x" * MAX_LINE_BYTES, 400),
        (b"0\r\nX-API-Key\r\n\r\n", 400),
        (b"0\r\nX: \0\r\n\r\n", 400),
        (b"0\r\nX: y\n\r\n\r\n", 400),
        (b"0\r\n" + b"ab:\r\n" * (MAX_TRAILER_BYTES // 5 + 1), 431),
        (SMALL * (MAX_FRAMING_BYTES // 4), 413),
        (LONG + SMALL * (MAX_FRAMING_BYTES // 4), 413),
    ],
    ids=[
        "no size",
        "negative",
        "no CR",
        "empty",
        "too large a size",
        "long line",
        "no field",
        "NUL",
        "no CR in trailers",
        "long trailers",
        "small chunks",
        "small chunks after a long one",
    ],
)
def test_wrong_framing_is_refused(content, status):
    with pytest.raises(WrongFraming) as raised:
        taken(content, [])
    assert raised.value.status == status
    with pytest.raises(WrongFraming):
        taken(content, [*range(1, len(content))])


def test_small_chunks_are_taken_as_long_as_they_are_few():
    content = LONG + SMALL * 3_000 + b"0\r\n\r\n"
    assert taken(content, [])[0] == content
