"""The first JSON fault in a document that simdjson refuses: its place, text and element, by orjson."""

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

import orjson

MAX_READ_BYTES = 1 << 20  # of a document in which the fault is searched for; some milliseconds
COPIED_BYTES = 1 << 20  # of a long part in one step
MAX_COUNTED_BYTES = 1 << 25  # of long parts whose lines are counted; some 10 ms
MIN_PART_BYTES = 1 << 14  # the cost of counting the lines of a short one, in bytes
TOKEN = re.compile(r"[\w.+-]{1,40}|\S|\Z")
LONG_INTEGER = re.compile(r"(?<![\w.+-])-?\d{19,}(?![\w.])")
MEANT = {  # words of Python and JavaScript -> their equivalents in JSON
    **dict.fromkeys(("True", "TRUE"), "did you mean true?"),
    **dict.fromkeys(("False", "FALSE"), "did you mean false?"),
    **dict.fromkeys(("None", "undefined", "nil", "NULL"), "did you mean null?"),
    **dict.fromkeys(
        ("NaN", "nan", "Infinity", "-Infinity", "inf", "-inf", "Inf", "-Inf"),
        "JSON has only finite numbers; in a mask null means -inf",
    ),
    **dict.fromkeys(("/", "#"), "JSON has no comments"),
    "'": "JSON uses double quotes",
}
NOT_FINITE = {word for word, hint in MEANT.items() if hint.startswith("JSON has only finite")}
NAMED = re.compile(r'"([\w.]{1,40})"\s*:[\s\w.,\[\]+-]*\Z')  # a field, and what its value has before a fault
ENDS = ("unexpected end of data", "input data is empty")
GZIP = b"\x1f\x8b"
EXPECTED = {  # orjson's message -> ours
    "unexpected character, expected a string key": "expected a name in double quotes",
    "unexpected character, expected a JSON value": "expected a value",
    "unexpected character, expected ':' after key": "expected : after the name",
    "unexpected character, expected ',' or '}'": "expected , or }",
    "unexpected character, expected ',' or ']'": "expected , or ]",
    "unexpected content after document": "expected nothing after the end of the object",
    "no digit after sign": "expected a digit",
    "no digit after decimal point": "expected a digit after the decimal point",
    "no digit after exponent sign": "expected a digit in the exponent",
    "number with leading zero is not allowed": "expected a number without leading zeros",
    "number is infinity when parsed as double": "expected a number in the range of float64",
    "trailing comma is not allowed": "expected another entry after the comma",
    "unexpected control character in string": "expected line breaks and tabs in a string to be escaped as \\n and \\t",
    "invalid escaped sequence in string": "expected a JSON escape sequence",
    "depth limit exceeded": "nested more than 1024 levels deep",
}


class Cut(Protocol):
    """A long part that was cut out of a document, and how many characters stood around it."""

    @property
    def marks(self) -> int: ...
    @property
    def content(self) -> memoryview: ...


def describe(body: bytes | memoryview, reason: str, cuts: Sequence[tuple[bytes, Cut]] = ()) -> str:
    """The line, the column and the text of the first fault in ``body``; ``reason`` if it is not found.

    Each of ``cuts`` is a text in the body, and the longer one in whose place it stands.
    """
    content = bytes(body[:MAX_READ_BYTES])
    is_whole = len(content) == len(body)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if is_whole or error.end < len(content):
            hint = "; compressed bodies need Content-Encoding: gzip" if content.startswith(GZIP) else ""
            place = _place(content[: error.start], cuts)
            return f"{place}: expected UTF-8, got byte 0x{content[error.start]:02x}{hint}"
        text = content[: error.start].decode()  # the limit is within a character
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg not in ENDS:
            position, fault = _fault(error.msg, text, error.pos)
            return f"{_place(text[:position].encode(), cuts)}{_field(text, position)}: {fault}"
        if not is_whole:
            return f"after the first 1 MiB: {reason}"
        return f"{_place(content, cuts)}: unexpected end of the body"
    number = LONG_INTEGER.search(text)
    if number is None:
        return reason
    place = _place(text[: number.start()].encode(), cuts)
    return f"{place}: expected a whole number of at most 64 bits, got {number[0][:40]}"


def _fault(message: str, text: str, position: int) -> tuple[int, str]:
    """The start of the fault and its description, from orjson's message and position."""
    expected = EXPECTED.get(message, message.removeprefix("unexpected character, "))
    if "string" in message and not message.endswith("string key"):  # within a text
        return position, f"{expected}, got {repr(text[position : position + 1])[1:-1]}"
    if message == "no digit after sign" and text[:position].endswith("-"):
        position -= 1
    match = TOKEN.search(text, position + message.startswith("trailing comma"))
    start, token = (match.start(), match[0]) if match else (len(text), "")
    if not token:
        return start, f"{expected}, got the end of the body"
    hint = f"; {MEANT[token]}" if token in MEANT else ""
    return start, f"{expected}, got {token if token.isprintable() else repr(token)[1:-1]}{hint}"


def _field(text: str, position: int) -> str:
    """The name of the field whose value has a number at ``position`` that is not finite; empty for another fault."""
    token = TOKEN.match(text, position)
    if token is None or token[0] not in NOT_FINITE:
        return ""
    named = NAMED.search(text, 0, position)
    return f" ({named[1]})" if named else ""


def _place(before: bytes, cuts: Sequence[tuple[bytes, Cut]]) -> str:
    """``line 2, column 5``, both from 1, of the text behind ``before``, whose long parts may have been cut out.

    Where these are very long, only how many they are.
    """
    if sum(len(cut.content) + MIN_PART_BYTES for _, cut in cuts) > MAX_COUNTED_BYTES:
        return f"after {before.count(cuts[0][0][:-2]):,} long lists or strings"
    line, column = 1, 1
    for text in _pieces(before, cuts):
        lines = text.count(b"\n")
        last = text[text.rfind(b"\n") + 1 :].decode("utf-8", "ignore")
        line, column = line + lines, len(last) + (1 if lines else column)
    return f"line {line:,}, column {column:,}"


def _pieces(before: bytes, cuts: Sequence[tuple[bytes, Cut]]) -> Iterator[bytes]:
    """The text ``before`` a fault with the long parts that were cut out of it, in pieces."""
    end = 0
    for placeholder, cut in cuts:
        start = before.find(placeholder, end)
        if start < 0:
            break
        yield before[end:start]
        for begin in range(0, len(cut.content), COPIED_BYTES):
            yield bytes(cut.content[begin : begin + COPIED_BYTES])
        yield b'"' * cut.marks
        end = start + len(placeholder)
    yield before[end:]
