"""The line, the column and what stands there, of bodies that are no JSON."""

import json
import random
import re

import pytest

from service.base.errors import Malformed
from service.base.steps import drain
from service.codec import json_fault
from service.codec.json_parser import parse_object
from service.codec.json_slices import cut

FAULTS = {
    b"NaN": "expected a value, got NaN; JSON has only finite numbers; in a mask null means -inf",
    b"None": "expected a value, got None; did you mean null?",
    b"'": "expected a value, got '; JSON uses double quotes",
    b"// x": "expected a value, got /; JSON has no comments",
    b".5": "expected a digit, got .5",
    b"00": "expected a number without leading zeros, got 00",
    b"1e999": "expected a number in the range of float64, got 1e999",
    b"99999999999999999999": "expected a whole number of at most 64 bits, got 99999999999999999999",
    b"\xff": "expected UTF-8, got byte 0xff",
    b"\x01": r"expected a value, got \x01",
}


def said(body: bytes) -> str:
    rest, parts = drain(cut(body))
    with pytest.raises(Malformed) as refused:
        parse_object(rest, parts)
    return str(refused.value).removeprefix("failed to parse the request JSON buffer: ")


def place(before: bytes) -> str:
    text = before.decode()
    return f"line {text.count(chr(10)) + 1:,}, column {len(text) - text.rfind(chr(10)):,}"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "before",
    [
        b'{"a": ',
        b'{\n\n "a":[[1, 2],\r\n\t[3]],\n\t"b": ',
        '{"\u00e9\U0001f600": '.encode(),
        b'{"a": [%b1],\n"b": ' % (b"1.5,\n" * 3000),  # a list that is cut out
        b'{"a": "%b", "c": [[%b1]],\n\n "b": ' % (b"QUJD" * 2000, b"1,2,3,4],\n[" * 1000),
    ],
    ids=["short", "lines", "characters", "a list", "a text and a list"],
)
def test_the_place_of_a_fault(before, fault):
    name = re.search(r'"(\w+)": $', before.decode()) if fault == b"NaN" else None
    assert said(before + fault + b"}") == f"{place(before)}{f' ({name[1]})' if name else ''}: {FAULTS[fault]}"


def test_the_field_of_a_number_that_is_not_finite():
    for before in (
        b'"a": [[1, -2.5e3],\n [',
        b'"c": "x, \\"b\\": [", "a": [',
        b'"inputs": [{"a": [',
        b'"b": null, "a": [',
    ):
        for number in (b"NaN", b"-Infinity", b"inf"):
            assert said(b"{%b%b]}" % (before, number)).split(": ")[0].endswith(" (a)")


@pytest.mark.parametrize("seed", range(20))
def test_it_is_where_another_parser_stops(seed):
    draw = random.Random(seed)
    numbers = [[draw.random() for _ in range(3)] for _ in range(3)]
    body = json.dumps({"query": numbers, "a": None}, indent=draw.choice([None, 1]))
    start = draw.randrange(body.index("[", 1), len(body))
    broken = body[:start] + draw.choice("?;@$") + body[start:]
    with pytest.raises(json.JSONDecodeError) as refused:
        json.loads(broken)
    assert said(broken.encode()).startswith(f"line {refused.value.lineno}, column ")


def test_a_body_that_ends_too_early_or_is_compressed():
    assert said(b'{"a": [1,\n 2') == "line 2, column 3: unexpected end of the body"
    assert said(b'{"a": "\xc3\xa9') == "line 1, column 9: unexpected end of the body"
    compressed = said(b"\x1f\x8b\x08\x00")
    assert compressed.endswith("got byte 0x8b; compressed bodies need Content-Encoding: gzip")


def test_only_the_beginning_is_searched(monkeypatch):
    monkeypatch.setattr(json_fault, "MAX_READ_BYTES", 100)
    assert said(b'{"a": [%bx]}' % (b'"",' * 50)).startswith(
        "after the first 1 MiB: The JSON document has an improper structure"
    )
    near = b'{"a": [%bx, %b]}' % (b'"",' * 10, b'"",' * 50)
    assert said(near).startswith("line 1, column 38: expected a value, got x")
    for length in range(85, 105):  # the limit may lie within a character
        assert said(b'{"a": "%b\xc3\xa9\xc3\xa9\xc3\xa9", x}' % (b"a" * length))


def test_lines_of_very_long_parts_are_not_counted(monkeypatch):
    body = b'{"a": [%b1],\n"b": "%b", "c": x, "d": [%b1]}' % (b"1.5,\n" * 3000, b"QUJD" * 2000, b"2," * 4000)
    assert said(body) == f"{place(body[: body.index(b'x')])}: expected a value, got x"
    monkeypatch.setattr(json_fault, "MAX_COUNTED_BYTES", 1 << 15)
    assert said(body) == "after 2 long lists or strings: expected a value, got x"
