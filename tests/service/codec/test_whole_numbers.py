"""Whole numbers are read as they are in every notation, also those that float64 cannot hold."""

import base64
import json
from collections import Counter

import numpy as np
import pytest

from service.budget import MemoryBudget, Reservation
from service.codec.json_parser import parse_object
from service.codec.json_reader import JsonReader
from service.codec.json_slices import LongList, LongText, cut
from service.codec.long_tensor import read_all
from service.codec.steps import drain
from service.errors import Invalid, Overloaded
from service.tensors.spec import TensorSpec

SPEC = TensorSpec("document_ids", np.dtype(np.int64), ("batch", "n"), required=True)
COUNT = 3000  # some 60 KB of text: a long list where it is cut
IDS = (2**53 + 1 + np.arange(COUNT, dtype=np.int64)).reshape(1, COUNT)
NOTATIONS = {
    "nested": IDS.tolist(),
    "flat data": {"shape": IDS.shape, "data": IDS.ravel().tolist()},
    "nested data": {"shape": IDS.shape, "data": IDS.tolist()},
    "base64": {"shape": IDS.shape, "dtype": "int64", "base64": base64.b64encode(IDS.tobytes()).decode()},
}


def read(document: dict, is_cut: bool) -> np.ndarray:
    body = json.dumps(document).encode()
    parts: list[LongText | LongList] = []
    if is_cut:
        body, parts = drain(cut(body))
        assert parts
    with parse_object(body, parts) as parsed:
        tensors = {"document_ids": JsonReader(parts).tensor(SPEC, parsed["document_ids"])}
        del parsed
    reservation = Reservation(MemoryBudget(1 << 30, Overloaded, Counter()))
    return drain(read_all(tensors, reservation))["document_ids"]


@pytest.mark.parametrize("is_cut", [False, True], ids=["short", "long"])
@pytest.mark.parametrize("notation", NOTATIONS)
def test_each_notation_has_the_same_numbers(notation, is_cut):
    np.testing.assert_array_equal(read({"document_ids": NOTATIONS[notation]}, is_cut).reshape(IDS.shape), IDS)


@pytest.mark.parametrize("is_cut", [False, True], ids=["short", "long"])
def test_a_fraction_is_refused(is_cut):
    data = [0.5, *IDS.ravel().tolist()[1:]]
    with pytest.raises(Invalid, match=r"expected whole numbers, got 0\.5"):
        read({"document_ids": {"shape": IDS.shape, "data": data}}, is_cut)
