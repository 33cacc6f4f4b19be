"""Lists of numbers as orjson writes them, or rounded to decimals: exactly, in every shape, type and range."""

from decimal import ROUND_HALF_EVEN, Decimal, localcontext

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.base.steps import drain
from service.codec.fixed_point import MIN_NUMBERS, write_fixed
from service.codec.json_writer import MAX_FIXED_NUMBERS, MAX_PIECE_NUMBERS, write_json

FLOATS = st.sampled_from([np.float16, np.float32, np.float64])


def exact(number: float, decimals: int) -> Decimal:
    """The number rounded as text, without a binary float in between."""
    with localcontext(prec=400):
        return Decimal(number).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_EVEN)


def texts(array: np.ndarray, decimals: int) -> list[str]:
    """The numbers of an array of one axis as they are written."""
    written = bytes(write_fixed(array, decimals)).decode()
    assert np.shape(orjson.loads(written)) == array.shape
    return written[1:-1].split(",")


SHAPES = [(3,), (3, 5, 7), (2, 3, 50_000), (1, 8, 128, 128), (MAX_PIECE_NUMBERS, 2), (2, MAX_PIECE_NUMBERS + 3)]
SHAPES += [(MAX_PIECE_NUMBERS,), (MAX_PIECE_NUMBERS + 1,), (3 * MAX_PIECE_NUMBERS,)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pieces_make_what_orjson_writes_at_once(shape):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    pieces = drain(write_json([b'{"output":', b',"weights":', b"}"], [array, b"[0]"]))
    assert b"".join(pieces) == orjson.dumps({"output": array, "weights": [0]}, option=orjson.OPT_SERIALIZE_NUMPY)
    assert (len(pieces) > 5) == (array.size > MAX_PIECE_NUMBERS)


@given(st.data(), st.integers(0, 7), st.sampled_from([1.0, 9.99, 99.0, 1000.0, 9e4]))
def test_each_number_is_rounded_exactly(data, decimals, largest):
    """In the tables' range; halves, which are many among short decimals, go to the even neighbour."""
    halves = st.integers(-1000, 1000).map(lambda eighths: eighths / 8 / max(1, 125 / largest))
    few = data.draw(st.lists(st.floats(-largest, largest) | halves, min_size=1, max_size=40))
    array = np.resize(np.array(few, np.float32), MIN_NUMBERS)
    written = texts(array, decimals)
    is_fixed = all(len(text.partition(".")[2]) == decimals for text in written)  # orjson writes the fewest digits
    for number, text in zip(array[: len(few)].tolist(), written, strict=False):
        if is_fixed:
            assert Decimal(text.strip()) == exact(number, decimals)
        else:
            assert np.float32(text) == np.float32(exact(number, decimals))


@given(arrays.arrays(FLOATS, arrays.array_shapes(max_dims=4, max_side=20), elements={"allow_subnormal": False}))
def test_any_array_is_json_with_null_for_what_is_not_finite(array):
    for decimals in (0, 3, 7):
        read = np.array(orjson.loads(bytes(write_fixed(array, decimals))), np.float64)
        assert read.shape == array.shape
        finite = np.isfinite(array)
        assert np.isnan(read[~finite]).all()
        numbers = array[finite].astype(np.float64)
        allowed = 0.5 * 10.0**-decimals + np.abs(numbers) * np.finfo(array.dtype).eps
        assert (np.abs(read[finite] - numbers) <= allowed).all()


@pytest.mark.parametrize(
    ("first", "second", "decimals", "expected"),
    [
        (0.25, 0.75, 1, " 0.2, 0.8"),
        (0.5, 1.5, 0, "   0,   2"),
        (0.125, 0.0, 4, "0.1250,0.0000"),
        (-0.00001, 0.5, 4, "0.0000,0.5000"),
        (-0.5, 12.25, 2, " -0.50, 12.25"),
        (1e-7, 1.0, 7, "0.0000001,1.0000000"),
        (9999.5, 0.5, 1, "  9999.5,     0.5"),
    ],
)
def test_a_number_is_as_wide_as_the_widest(first, second, decimals, expected):
    array = np.tile(np.array([first, second], np.float32), MIN_NUMBERS)
    assert ",".join(texts(array, decimals)[:2]) == expected


@pytest.mark.parametrize("shape", [(70_000,), (3, 41, 401), (2, 3, 5, 1111), (1, 1, 40_000, 1), (5000, 2, 3)], ids=str)
def test_large_arrays_are_written_in_pieces(shape):
    array = np.random.default_rng(0).standard_normal(shape, np.float32)
    pieces = drain(write_json([b'{"output":', b"}"], [array], 6))
    assert len(pieces) > array.size // MAX_FIXED_NUMBERS
    assert orjson.loads(b"".join(pieces))["output"] == orjson.loads(bytes(write_fixed(array, 6)))


@pytest.mark.parametrize("largest", [1e5, 3e38, np.inf, np.nan])
def test_one_number_out_of_range_changes_no_other(largest):
    array = np.tile(np.float32([0.123456, largest]), MIN_NUMBERS)
    read = orjson.loads(bytes(write_fixed(array, 3)))
    assert set(read[::2]) == {0.123}
    (other,) = set(read[1::2])
    assert np.float32(np.inf if other is None else other) == np.float32(largest) or (np.isnan(largest) and not other)


@pytest.mark.parametrize("texts", [[], ["a"], ['\x01"ä'] * 5000, ["a" * 300_000, "", "b" * 300_000, "c"]])
def test_strings_are_written_in_groups(texts):
    array = np.empty(len(texts), np.object_)
    array[:] = texts
    steps = list(write_json([b'{"data":', b"}"], [array]))
    assert orjson.loads(b"".join(drain(write_json([b'{"data":', b"}"], [array])))) == {"data": texts}
    assert len(steps) == 1 + {0: 0, 1: 1, 5000: 5, 4: 3}[len(texts)]
