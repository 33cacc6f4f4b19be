"""Large JSON in slices: the same arrays as json and numpy make of it, the same refusals, at any place of a cut."""

import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from service.base.errors import Invalid, Malformed, TooLarge
from service.base.steps import drain
from service.codec import json_parser, json_slices
from service.codec.json_slices import MIN_LONG_PART_BYTES, LongList, LongText, cut, is_large, part

NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False, width=32), st.just(-0.0)
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:  ")])


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    """Documents of a test are cut as bodies of megabytes are."""
    monkeypatch.setattr(json_slices, "PIECE_BYTES", 24)
    monkeypatch.setattr(json_parser, "PIECE_BYTES", 24)
    monkeypatch.setattr(json_slices, "MIN_LONG_PART_BYTES", 12)
    monkeypatch.setattr(json_slices, "MAX_COMPARED_BYTES", 8)


def values(text: bytes, kind: str = "f", nulls: bool = False) -> np.ndarray:
    long = LongList(text, 0, len(text))
    shape = drain(long.shape("query"))
    return np.concatenate([*long.pieces("query", kind, shape, nulls)]).reshape(shape)


@st.composite
def documents(draw):
    """A JSON object of tensors, strings and small values, as text and as Python has it."""
    fields = {}
    for name in draw(st.lists(st.sampled_from(["query", "key", "a\\b", 'quo"te', "é", "["]), unique=True, max_size=4)):
        shape = draw(array_shapes(max_dims=4, max_side=4))
        array = np.array(draw(st.lists(NUMBERS, min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))), object)
        small = st.one_of(st.text(max_size=40), st.booleans(), st.none(), st.just({"shape": [1], "x": []}))
        fields[name] = draw(st.one_of(st.just(array.reshape(shape).tolist()), small))
    separators = draw(SEPARATORS)
    return json.dumps(fields, separators=separators, ensure_ascii=draw(st.booleans())).encode(), fields


@given(documents())
def test_a_document_is_the_same_with_its_parts_cut_out(document):
    text, fields = document
    rest, parts = drain(cut(text))
    read = json.loads(rest)
    assert list(read) == list(fields)
    for name, value in fields.items():
        long = part(read[name], parts)
        if not isinstance(long, LongText | LongList):
            assert long == value
        elif isinstance(long, LongText):
            assert json.loads(b'"%b"' % bytes(long.content)) == value
        else:
            assert np.array_equal(values(bytes(long.content)), np.array(value, np.float64))


def test_long_parts_are_cut_and_short_ones_stay():
    text = b"""{"a": [[1, 2, 3], [4, 5, 6]], "b": [1, 2], "c": "0123456789abcdef",
               "inputs": [{"name": "x", "data": [1, 2, 3, 4, 5, 6, 7]}], "outputs": ["weights"]}"""
    rest, parts = drain(cut(text))
    read = json.loads(rest)
    assert (read["b"], read["inputs"][0]["name"], read["outputs"]) == ([1, 2], "x", ["weights"])
    assert [(type(of), bytes(of.content)) for of in parts] == [
        (LongList, b"[[1, 2, 3], [4, 5, 6]]"),
        (LongText, b"0123456789abcdef"),
        (LongList, b"[1, 2, 3, 4, 5, 6, 7]"),
    ]


def test_the_lists_of_a_document_with_many_rows_are_cut_though_none_is_long(monkeypatch):
    """To parse them would make an object of each row, and the more garbage collections, the more there are."""
    monkeypatch.setattr(json_slices, "MIN_LONG_PART_BYTES", MIN_LONG_PART_BYTES)
    text = json.dumps({name: [[0.5]] * 4096 for name in ("query", "key", "value")}).encode()
    assert is_large(text)
    rest, parts = drain(cut(text))
    assert [part(mark, parts) for mark in json.loads(rest).values()] == parts
    assert len(parts) == 3


@pytest.mark.parametrize(
    "text", [b"[%b0]" % (b"0," * 999), b"[%b[0]]" % (b"[0]," * 999), b"[[%b[0]]]" % (b"[0]," * 999)]
)
def test_a_shape_is_read_in_steps(text):
    """Each step reads few bytes, whether rows are long or many."""
    steps = LongList(text, 0, len(text)).shape("query")
    structure = len(text) - text.count(b"0")
    assert sum(1 for _ in steps) >= len(text) // 24 + structure // 8


def test_a_mark_cannot_be_sent():
    assert part("0123456789abcdef:0", [LongText(memoryview(b""))]) == "0123456789abcdef:0"


def test_what_remains_is_bounded():
    beside = "300 bytes apart from long lists of numbers and long strings, more than the 200 bytes allowed; send"
    with pytest.raises(TooLarge, match=beside):
        drain(cut(b'{"inputs":[%b]}' % b",".join([b'{"a":1}'] * 36), 200))


@pytest.mark.parametrize(("quotes", "is_cut"), [(b'\\"', True), (b'\\\\\\"', False)])
def test_many_quotation_marks_that_may_be_escaped_end_the_cutting(monkeypatch, quotes, is_cut):
    """Those behind one backslash are, without a look at each."""
    monkeypatch.setattr(json_slices, "MAX_ESCAPED_QUOTES", 5)
    text = b'{"a": "%b", "b": [1, 2, 3, 4, 5, 6, 7, 8]}' % (quotes * 9)
    rest, parts = drain(cut(text))
    assert [bytes(of.content) for of in parts] == [quotes * 9, b"[1, 2, 3, 4, 5, 6, 7, 8]"] * is_cut
    assert is_cut or rest == text


@given(array_shapes(max_dims=5, max_side=4), SEPARATORS, st.data())
def test_a_list_with_one_character_changed_is_refused_or_what_json_reads(shape, separators, data):
    array = np.arange(np.prod(shape)).reshape(shape)
    text = bytearray(json.dumps(array.tolist(), separators=separators).encode())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place : place + data.draw(st.integers(0, 1))] = data.draw(st.sampled_from([b"", b",", b"[", b"]", b" ", b"7"]))
    try:
        expected = np.array(json.loads(bytes(text)), np.float64)
    except ValueError:
        expected = None
    if expected is None or not text.lstrip().startswith(b"[") or expected.size == 0:
        with pytest.raises((Invalid, Malformed)):
            values(bytes(text))
    else:
        assert np.array_equal(values(bytes(text)), expected)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        *((text, "f", ".") for text in (b"[[1,]2,[3,4]]", b"[[1,2]3,[4,5]]", b"[1[,2]]", b"[[1,2],3[4]]", b"[[1],[3]")),
        (b"1[2,3]", "f", "a number outside its list"),
        (b"[[1,2],[3]]", "f", "query: rows of different lengths"),
        (b"[[1,2],3]", "f", "query: rows of different lengths"),
        (b"[[1,2],[3,null]]", "f", r"query: expected numbers, got null at \[1, 1\]"),
        (b"[[1,2],[true,4]]", "f", r"query: expected numbers, got a boolean at \[1, 0\]"),
        (b"[[1,2],[3,4x]]", "f", r"expected numbers at \[1, 1\] of query, got 4x"),
        (b"[[1,2],[3,]]", "f", r"expected numbers at \[1, 1\] of query, got nothing"),
        (b"[" * 17 + b"1" + b"]" * 17, "f", "query: nested more than 16 levels deep"),
        (b"[]", "f", "query: empty; every axis must have at least one element"),
        (b"[[],[]]", "f", "query: empty; every axis must have at least one element"),
        (b"[[1,1.5],[2,3]]", "i", r"query: expected whole numbers, got 1\.5 at \[0, 1\]"),
        (b"[1,9223372036854775808]", "i", "query: a number is out of range for int64"),
        (b"[[true, false, 1]]", "b", r"query: expected booleans, got 1 at \[0, 2\]"),
    ],
)
def test_errors_name_the_element(text, kind, message):
    with pytest.raises((Malformed, Invalid), match=message):
        values(text, kind)


def test_whole_numbers_booleans_and_nulls():
    assert values(b"[[1,-2],[3,9223372036854775807]]", "i").tolist() == [[1, -2], [3, 2**63 - 1]]
    text = b"[[true, false, true], [false, false, true], [true, true, true]]"
    assert LongList(text, 0, len(text)).is_boolean
    assert values(text, "b").tolist() == json.loads(text)
    far = b"[%b[true]]" % (b"\n" * 5000)
    assert LongList(far, 0, len(far)).is_boolean
    assert values(b"[[0, null], [-1e4, null]]", nulls=True).tolist() == [[0, -np.inf], [-1e4, -np.inf]]


@pytest.mark.parametrize("wrap", [0, 8, 76])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 17, 18, 100])
def test_base64_in_slices(size, wrap):
    content = np.random.default_rng(size).bytes(size)
    text = base64.b64encode(content).decode()
    lines = "\n".join(text[start : start + wrap] for start in range(0, len(text), wrap)) if wrap else text
    escaped = json.dumps(lines)[1:-1].replace("/", "\\/").encode()
    assert drain(LongText(memoryview(escaped)).base64()) == content
    escaped = escaped.replace(b"+", rb"\u002B").replace(rb"\/", rb"\u002f").replace(b"=", rb"\u003D")
    assert drain(LongText(memoryview(escaped)).base64()) == content


@pytest.mark.parametrize(
    "text", ["A", "AA=", "AAAA" * 5 + "AA==" + "AAAA" * 5, "AA==" * 12, "ä" * 40, "A A" * 30, "AAA+" * 9 + "\\"]
)
def test_what_is_no_base64(text):
    with pytest.raises(ValueError):  # noqa: PT011  # of binascii, in words of its own
        drain(LongText(memoryview(json.dumps(text)[1:-1].encode())).base64())
