"""JSON is read in pieces, of which each takes some milliseconds at most, whatever its bytes are."""

import pytest

from service.base.errors import Malformed
from service.codec.json_parser import (
    MAX_EXPONENTS,
    MAX_FIELDS,
    MAX_GAP_BYTES,
    PIECE_BYTES,
    SLOW_PIECE_BYTES,
    numbers,
    parse_numbers,
    parse_object,
    split,
)
from service.codec.json_slices import is_large

SLOW = b"1.2345678901234567890123e-300,"


def pieces(content: bytes) -> list[memoryview]:
    return list(split(content, 0, len(content)))


@pytest.mark.parametrize("wrong", [b"[1,[2", b'[1,"2"]', b"{}", b"[1e999]", b"[null]", b""])
def test_a_list_is_read_while_the_error_of_another_is_kept(wrong):
    """The traceback of the error keeps the document, of which a parser has one at a time."""
    before = parse_numbers(b"[1,2]", "f")
    with pytest.raises(ValueError) as kept:  # noqa: PT011
        parse_numbers(wrong, "f")
    assert parse_numbers(b"[3,4,5]", "f").tolist() == [3, 4, 5]
    assert before.tolist() == [1, 2]
    assert kept.value is not None


@pytest.mark.parametrize("gap", [b" ", b"1", b"["], ids=["blanks", "digits", "brackets"])
def test_a_list_has_a_comma_in_each_part(gap):
    filled = b"1," * PIECE_BYTES
    pieces(filled + gap * MAX_GAP_BYTES)
    with pytest.raises(Malformed, match=f"more than {MAX_GAP_BYTES} bytes between two commas"):
        pieces(filled + gap * (PIECE_BYTES + MAX_GAP_BYTES + 1) + b",1")


def test_numbers_with_exponents_are_parsed_in_smaller_pieces():
    slow = SLOW * (2 * PIECE_BYTES // len(SLOW)) + b"1"
    assert max(map(len, pieces(slow))) < SLOW_PIECE_BYTES + len(SLOW)
    assert max(map(len, pieces(slow.replace(b"e-", b"00")))) > PIECE_BYTES - len(SLOW)
    slow = b"[%b]" % slow
    (*_, last) = numbers(slow, 0, len(slow), "f")
    assert last[-1] == 1


@pytest.mark.parametrize("text", [b"1,,1", b"1,null", b"1 1", b"1,[2", b"1,", b'1,"2"', b"1" * 2048])
def test_what_is_no_list_of_numbers_is_none_in_pieces(text):
    ones = b"1," * PIECE_BYTES
    for place in (b"%b,%b1" % (text, ones), b"%b%b,%b1" % (ones, text, ones), ones + text):
        with pytest.raises(ValueError):  # noqa: PT011
            list(numbers(b"[%b]" % place, 0, len(place) + 2, "f"))


@pytest.mark.parametrize(("content", "large"), [(SLOW * (MAX_EXPONENTS + 1), True), (SLOW * MAX_EXPONENTS, False)])
def test_a_short_body_with_many_exponents_is_cut(content, large):
    assert len(content) > SLOW_PIECE_BYTES - len(SLOW) * 200
    assert is_large(b" " * SLOW_PIECE_BYTES + content) == large


def test_an_object_has_a_limited_number_of_fields():
    fields = [b'"%d":1' % number for number in range(MAX_FIELDS + 1)]
    assert len(parse_object(b"{%b}" % b",".join(fields[1:]))) == MAX_FIELDS
    with pytest.raises(Malformed, match=f"{MAX_FIELDS + 1} fields, more than the {MAX_FIELDS} allowed"):
        parse_object(b"{%b}" % b",".join(fields))
