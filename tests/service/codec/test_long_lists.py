"""JSON lists of more items than simdjson counts (0xFFFFFF) and longer than what is parsed in one call, in both APIs."""

import base64
import json

import numpy as np
import pytest

from service.codec import json_slices
from service.errors import Invalid, TooLarge
from service.model.loader import open_version
from service.ort.provider import Provider
from tests.support import graphs
from tests.support.decoding import decode_native, decode_v2

LENGTH = 0xFFFFFF + 5  # a multiple of 4
NUMBERS = b"[" + b"0," * (LENGTH - 1) + b"7]"


def test_a_native_request_with_a_long_list(repository):
    body = b'{"query":[[0]],"key":[[0],[0],[0],[0]],"value":{"shape":[4,%d],"data":%b}}' % (LENGTH // 4, NUMBERS)
    model = open_version(repository / "scaled_dot_product" / "1", Provider("cpu", "asked for"), 1)
    value = decode_native(body, model)["value"]
    assert value.shape == (1, 1, 4, LENGTH // 4)
    assert value[0, 0, -1, -1] == 7


@pytest.mark.parametrize("forbidden", [b"false", b"null"])
def test_a_native_request_with_a_long_mask(repository, forbidden):
    rows = 300_000
    row = b"[%b,%b]" % (forbidden, b"true" if forbidden == b"false" else b"0.5")
    body = b'{"query":{"shape":[%d,1],"data":%b},"key":[[0],[1]],"value":[[0],[1]],"attn_mask":[%b]}' % (
        rows,
        NUMBERS[: 2 * rows].rstrip(b",") + b"]",
        b",".join([row] * rows),
    )
    model = open_version(repository / "scaled_dot_product" / "1", Provider("cpu", "asked for"), 1)
    mask = decode_native(body, model)["attn_mask"]
    assert mask.shape == (1, 1, rows, 2)
    assert (mask[..., 0] == -np.inf).all()
    assert (mask[..., 1] == (0 if forbidden == b"false" else 0.5)).all()


def test_a_native_request_with_long_base64(repository):
    value = np.random.default_rng(0).standard_normal((4, 100_000)).astype(np.float32)
    text = base64.encodebytes(value.tobytes()).decode()
    fields = {"query": [[0]], "key": [[0]] * 4, "value": {"shape": [4, 100_000], "dtype": "float32", "base64": text}}
    model = open_version(repository / "scaled_dot_product" / "1", Provider("cpu", "asked for"), 1)
    assert np.array_equal(decode_native(json.dumps(fields).encode(), model)["value"][0, 0], value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            b'{"shape":[3,%d],"data":[%b0]}' % (LENGTH, b"0," * 600_000),
            "value: shape .* needs 50331660 numbers, got 600001",
        ),
        (b"[%b[0]]" % (b"[0,1]," * 200_000), "value: rows of different lengths"),
        (b"[%b[0,true]]" % (b"[0,1]," * 200_000), r"value: expected numbers, got a boolean at \[200000, 1\]"),
        (b'{"shape":[1],"dtype":"float32","base64":"%b*"}' % (b"A" * 2_000_000), "value: its base64 is not base64"),
        (b'{"shape":[1],"dtype":"float33","base64":"%b"}' % (b"A" * 2_000_000), "value: expected dtype to be one of"),
        (b'"%b"' % (b"A" * 2_000_000), "value: expected a list of numbers, got text"),
        (
            b'{"shape":[%b0],"data":[1]}' % (b"9223372036854775807," * 60_000),
            "value: expected a list of whole numbers, got a list",
        ),
        (b'[%b"x"]' % (b"0," * 600_000), r"the JSON has 1\.1 MiB beside its long lists"),
    ],
)
def test_what_is_wrong_with_a_long_value(repository, value, message, monkeypatch):
    monkeypatch.setattr(json_slices, "MAX_REST_BYTES", 1 << 20)
    model = open_version(repository / "scaled_dot_product" / "1", Provider("cpu", "asked for"), 1)
    with pytest.raises((Invalid, TooLarge), match=message):
        decode_native(b'{"query":[[0]],"key":[[0]],"value":%b}' % value, model)


@pytest.mark.parametrize("form", ["flat", "nested"])
def test_a_v2_request_with_a_long_list(form, tmp_path):
    graphs.identity(tmp_path / "identity" / "1", "INT64")
    model = open_version(tmp_path / "identity" / "1", Provider("cpu", "asked for"), 1)
    shape, data = ([4, LENGTH // 4], NUMBERS) if form == "flat" else ([1, LENGTH], b"[%b]" % NUMBERS)
    body = b'{"inputs":[{"name":"x","shape":%b,"datatype":"INT64","data":%b}]}' % (str(shape).encode(), data)
    array = decode_v2(body, b"", model)["x"]
    assert list(array.shape) == shape
    assert array[-1, -1] == 7
