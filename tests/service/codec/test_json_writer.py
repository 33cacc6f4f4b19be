"""Long lists of numbers written in pieces as orjson writes them at once, and read in pieces."""

import numpy as np
import orjson
import pytest

from service.codec.json_parser import PIECE_BYTES, numbers
from service.codec.json_writer import MAX_PIECE_NUMBERS, write_json
from service.codec.steps import drain

SHAPES = [
    (3,),
    (MAX_PIECE_NUMBERS,),
    (MAX_PIECE_NUMBERS + 1,),
    (3 * MAX_PIECE_NUMBERS,),
    (2, 3, 50_000),
    (MAX_PIECE_NUMBERS, 2),
    (1, 8, 128, 128),
    (2, MAX_PIECE_NUMBERS + 3),
    (3, 5, 7),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pieces_make_what_orjson_writes_at_once(shape):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    pieces = drain(write_json([b'{"output":', b',"weights":', b"}"], [array, b"[0]"]))
    assert b"".join(pieces) == orjson.dumps({"output": array, "weights": [0]}, option=orjson.OPT_SERIALIZE_NUMPY)
    assert (len(pieces) > 5) == (array.size > MAX_PIECE_NUMBERS)


@pytest.mark.parametrize("text", [b"1,,1", b"1,null", b"1 1", b"1,[2", b"1,", b'1,"2"', b"1" * 2048])
def test_what_is_no_list_of_numbers_is_none_in_pieces(text):
    ones = b"1," * PIECE_BYTES
    for place in (b"%b,%b1" % (text, ones), b"%b%b,%b1" % (ones, text, ones), ones + text):
        with pytest.raises(ValueError):  # noqa: PT011
            list(numbers(memoryview(b"[%b]" % place), "f"))
