"""JSON lists of more items than simdjson counts (0xFFFFFF) and longer than what is parsed in one call, in both APIs."""

import base64
import json
from collections import Counter

import numpy as np
import pytest

from service.base.budget import MemoryBudget, Reservation
from service.base.errors import Invalid, Overloaded
from service.codec import json_slices
from service.codec.long_tensor import MAX_CAST_NUMBERS, cast_in_steps
from service.inference import endpoint
from service.model.loader import open_version
from service.ort.provider import Provider
from service.selection.indices import MAX_ITEMS
from service.v2.infer.request import read_tensors
from service.v2.infer.tensors import BinaryInput
from tests.support import graphs
from tests.support.attending import coded
from tests.support.decoding import decode_native, decode_v2

LENGTH = 0xFFFFFF + 5  # a multiple of 4
NUMBERS = b"[" + b"0," * (LENGTH - 1) + b"7]"


@pytest.fixture(scope="module")
def model(repository):
    return open_version(repository / "scaled_dot_product" / "1", Provider("cpu", "requested"), 1)


def test_a_native_request_with_a_long_list(model):
    value = b'{"shape":[4,%d],"data":%b}' % (LENGTH // 4, NUMBERS)
    array = decode_native(b'{"query":[[0]],"key":[[0],[0],[0],[0]],"value":%b}' % value, model)["value"]
    assert array.shape == (1, 1, 4, LENGTH // 4)
    assert array[0, 0, -1, -1] == 7


@pytest.mark.parametrize(
    ("given", "dtype", "mask"),
    [
        ("bool", "float32", True),
        ("uint8", "float32", False),
        ("float16", "float32", False),
        ("float32", "float32", False),
    ],
)
def test_a_long_text_is_cast_in_steps(given, dtype, mask):
    """In one step a mask of 100 million flags would stop the event loop for a second, and take 13 bytes for each."""
    values = np.random.default_rng(0).integers(0, 2, 10 * MAX_CAST_NUMBERS).astype(given)
    expected = np.where(values, 0, -np.inf).astype(dtype) if mask else values.astype(dtype)
    reservation = Reservation(MemoryBudget(1 << 30, Overloaded, Counter()))
    result, count = run_counted(cast_in_steps("x", values, np.dtype(dtype), mask, reservation))
    assert np.array_equal(result, expected)
    assert count == 10
    assert reservation.bytes == (0 if given == dtype else expected.nbytes)


def test_flags_in_binary_are_unpacked_in_steps():
    flags = np.random.default_rng(0).integers(0, 255, 10 * MAX_CAST_NUMBERS).astype(np.uint8)
    for declared, expected in ((np.dtype("float32"), np.where(flags, 0, -np.inf)), (np.dtype("bool"), flags != 0)):
        mask = BinaryInput("attn_mask", "m", np.dtype("bool"), (10, MAX_CAST_NUMBERS), 3, flags.size, declared)
        assert mask.unpacked_bytes == flags.size * declared.itemsize
        result, count = run_counted(mask.unpack(b"abc" + flags.tobytes()))
        assert np.array_equal(result, expected.reshape(10, -1))
        assert (result.dtype, count) == (declared, 10)


def test_a_long_list_of_flags_becomes_a_mask_in_steps(model):
    flags = np.random.default_rng(0).integers(0, 2, 4 * MAX_CAST_NUMBERS).astype(np.bool_)
    reservation = Reservation(MemoryBudget(1 << 30, Overloaded, Counter()))
    result, count = run_counted(read_tensors({"attn_mask": flags.reshape(4, -1)}, model, reservation))
    assert np.array_equal(result["attn_mask"], np.where(flags, 0, -np.inf).reshape(4, -1))
    assert count >= 4
    assert reservation.bytes == 5 * flags.size


def run_counted(steps):
    """The result of the steps, and how many there are."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def decoded(body, model):
    """The inputs of a native request, or why it is refused."""
    try:
        return {name: array.tolist() for name, array in decode_native(body, model).items()}
    except Invalid as error:
        return str(error)


FLOATS = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
FULL_RANK = {name: {"shape": [1, 1, 4, 1], "data": [0, 1, 2, 3]} for name in ("query", "key", "value")}
IDS = (2**53 + 1 + np.arange(4, dtype=np.int64)).tolist()  # float64 cannot hold them


def ids(form):
    return dict.fromkeys(("query_document_ids", "document_ids"), form)


VALUES = {
    "whole numbers": ids(IDS),
    "flat whole numbers": ids({"shape": [4], "data": IDS}),
    "nested whole numbers": FULL_RANK | ids({"shape": [1, 4], "data": [IDS]}),
    "whole numbers in base64": ids(coded(np.array(IDS))),
    "a fraction": ids({"shape": [4], "data": [0.5, *IDS[1:]]}),
    "base64": {"value": coded(FLOATS)},
    "base64 in lines": {"value": coded(FLOATS, base64=base64.encodebytes(FLOATS.tobytes()).decode())},
    "booleans": {"attn_mask": [[True, False, True, True]] * 4},
    "null": {"attn_mask": [[0.5, None, 0, 1e-3]] * 4},
    "shape": {"value": {"shape": [3, 70], "data": [0] * 60}},
    "long shape": {"value": {"shape": [2**63 - 1] * 60, "data": [1]}},
    "boolean among numbers": {"value": [[0, 1]] * 20 + [[0, True]]},
    "no base64": {"value": coded(FLOATS, base64="A" * 100 + "*")},
    "dtype": {"value": coded(FLOATS, dtype="float33")},
    "text": {"value": "A" * 200},
}


SAID = {  # where it is long, in fewer words than of a short one
    "long shape": "value: expected a list of whole numbers, got a list",
    "text": "value: expected a list of numbers, got text",
}


@pytest.mark.parametrize("name", VALUES)
def test_a_long_part_is_decoded_or_refused_as_a_short_one(model, name, monkeypatch):
    keys = [[number] for number in range(4)]
    body = json.dumps({"query": keys, "key": keys, "value": keys, **VALUES[name]}).encode()
    expected = SAID.get(name) or decoded(body, model)
    cuts = []
    monkeypatch.setattr(
        endpoint, "cut", lambda content, **options: cuts.append(content) or json_slices.cut(content, **options)
    )
    for limit, size in {"LARGE_BODY_BYTES": 0, "MIN_LONG_PART_BYTES": 12, "PIECE_BYTES": 24}.items():
        monkeypatch.setattr(json_slices, limit, size)
    assert decoded(body, model) == expected
    assert cuts
    assert "whole" not in name or expected["document_ids"] == [IDS]


@pytest.mark.parametrize("count", [2000, MAX_ITEMS, MAX_ITEMS + 1])
def test_a_long_list_of_indices_in_a_large_body(model, count):
    rows = 300_000
    body = {"query": {"shape": [rows, 1], "data": [1] * rows}, "key": [[1]], "value": [[1]], "queries": [*range(count)]}
    content = json.dumps(body).encode()
    assert len(content) > json_slices.LARGE_BODY_BYTES
    if count <= MAX_ITEMS:
        assert decode_native(content, model)["query"].shape == (1, 1, rows, 1)
        return
    with pytest.raises(Invalid, match="queries: expected a list of at most 4,096 elements"):
        decode_native(content, model)


@pytest.mark.parametrize(
    ("shape", "data"), [([4, LENGTH // 4], NUMBERS), ([1, LENGTH], b"[%b]" % NUMBERS)], ids=["flat", "nested"]
)
def test_a_v2_request_with_a_long_list(shape, data, tmp_path):
    graphs.identity(tmp_path / "identity" / "1", "INT64")
    model = open_version(tmp_path / "identity" / "1", Provider("cpu", "requested"), 1)
    body = b'{"inputs":[{"name":"x","shape":%b,"datatype":"INT64","data":%b}]}' % (str(shape).encode(), data)
    array = decode_v2(body, b"", model)["x"]
    assert list(array.shape) == shape
    assert array[-1, -1] == 7
