"""Masks in numbers, in both APIs: what could be read in two ways is refused, null is -infinity."""

import json

import numpy as np
import pytest

from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, draw
from tests.support.attending import attend, coded, post
from tests.support.v2 import binary, error, infer, tensor

SDPA = "scaled_dot_product"
DRAWN = np.random.default_rng(0).standard_normal((3, 1, 1, 2, 4), np.float32)
QKV = dict(zip(("query", "key", "value"), DRAWN, strict=True))
LISTS = {name: array[0, 0].tolist() for name, array in QKV.items()}
BITS = np.array([[1, 0], [1, 1]])
DATATYPES = dict.fromkeys(QKV, "FP32")
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
# Fewer outputs are computed by other graphs, larger requests by yet others.
OUTPUTS = [["output"], ["weights"], ["output", "weights", "scores"]]


def refused(client, block=SDPA, field="attn_mask", **body) -> str:
    """The detail of a 422 that names the field."""
    response = post(client, block, body)
    assert (response.status_code, response.json()["field"]) == (422, field), response.text
    return response.json()["detail"]


def v2(mask, output="weights", datatype="FP32", flag=None, **change) -> dict:
    given = {name: tensor(name, array) for name, array in QKV.items()} | change
    lists = np.asarray(mask)
    entry = {"name": "attn_mask", "shape": [1, 1, *lists.shape], "datatype": datatype, "data": lists.ravel().tolist()}
    parameters = {} if flag is None else {"additive_mask": flag}
    return {"inputs": [*given.values(), entry], "outputs": [{"name": output}], "parameters": parameters}


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_refused_in_both_apis(client, dtype):
    said = f"expected booleans (true = may attend) or floats (added to the scores), got {dtype}"
    for values in (BITS, 0 * BITS, -1 * BITS[:, :1]):
        for flag in (False, True):
            assert said in refused(client, **LISTS, attn_mask=coded(values.astype(dtype)), additive_mask=flag)
    datatype = dtype.upper()
    words = f"data-type is '{datatype}'", "expects 'FP32' (added to the scores) or 'BOOL' (true = may attend)"
    for flag in (None, True):
        error(infer(client, SDPA, v2(BITS, datatype=datatype, flag=flag)), 400, *words)
    arrays = QKV | {"attn_mask": BITS[None, None].astype(dtype)}
    error(binary(client, SDPA, arrays, DATATYPES | {"attn_mask": datatype}), 400, *words)


NOTATIONS = {
    "integers": BITS.tolist(),
    "floats": BITS.astype(float).tolist(),
    "one row": [0, 1],
    "flat integers": {"shape": [2, 2], "data": BITS.ravel().tolist()},
    "flat floats": {"shape": [2, 2], "data": BITS.ravel().astype(float).tolist()},
    "float16": coded(BITS.astype(np.float16)),
    "float32": coded(BITS.astype(np.float32)),
    "float64": coded(BITS.astype(np.float64)),
    "negative zero": coded(np.where(BITS, 1, -0.0)),
}


@pytest.mark.parametrize("mask", NOTATIONS.values(), ids=NOTATIONS)
def test_zeros_and_ones_are_refused_unless_they_are_meant(client, mask):
    detail = refused(client, **LISTS, attn_mask=mask)
    assert "contains only 0 and 1" in detail
    assert "send booleans (true = may attend), or additive_mask true" in detail
    assert {refused(client, **LISTS, attn_mask=mask, additive_mask=flag) for flag in (False, None)} == {detail}
    meant = attend(client, **LISTS, attn_mask=mask, additive_mask=True, outputs=["scores"])["scores"]
    plain = attend(client, **LISTS, outputs=["scores"])["scores"]
    np.testing.assert_allclose(meant - plain, [[0, 1]] * 2 if mask == [0, 1] else BITS, atol=1e-6)


def test_another_block_refuses_zeros_and_ones_too(client):
    inputs = draw(BLOCKS["encoder"], SIZES["distinct"], OPTIONS["attn_mask"])
    mask = np.indices(inputs.pop("attn_mask").shape).sum(axis=0) % 2
    assert "only 0 and 1" in refused(client, "encoder", **inputs, attn_mask=mask)
    meant = attend(client, "encoder", **inputs, attn_mask=mask, additive_mask=True)
    near = attend(client, "encoder", **inputs, attn_mask=mask + 1e-9)  # not 0 and 1, and so no question
    for output, array in meant.items():
        np.testing.assert_allclose(array, near[output], atol=1e-5)


ADDED = {
    "one number everywhere": [[1, 1], [1, 1]],
    "zeros alone": [[0.0, 0.0], [0.0, 0.0]],
    "null": [[0, None], [None, 0]],
    "null first": [[None, 0], [0, None]],
    "only null in a row": [[None, None], [0, 0]],
    "null and one": [[1, None], [1, 1]],
    "null and fractions": [[0.25, None], [-1e4, 3]],
    "whole numbers": [[0, -10000], [2, -1]],
    "one, and below": [[-1, 0], [1, 0]],
}


@pytest.mark.parametrize("lists", ADDED.values(), ids=ADDED)
@pytest.mark.parametrize("outputs", OUTPUTS, ids=str)
def test_null_is_minus_infinity_in_every_notation(client, lists, outputs):
    exact = np.nan_to_num(np.array(lists, np.float32), nan=-np.inf)  # null, None in Python, is NaN there
    expected = attend(client, **LISTS, attn_mask=coded(exact), outputs=outputs)
    flat = [item for row in lists for item in row]
    for mask in (lists, {"shape": [2, 2], "data": flat}, {"shape": [2, 2], "data": lists}):
        actual = attend(client, **LISTS, attn_mask=mask, outputs=outputs)
        for output, array in actual.items():
            np.testing.assert_array_equal(array, expected[output])
    for data in (flat, [[lists]]):
        body = v2(exact, outputs[0])
        body["inputs"][-1]["data"] = data
        answer = infer(client, SDPA, body)
        assert answer.status_code == 200, answer.text
        given = np.array(answer.json()["outputs"][0]["data"], np.float32)
        np.testing.assert_allclose(given, expected[outputs[0]].ravel(), atol=1e-6)


WRONG = {
    "booleans behind null": ("attn_mask", [[None, True], [True, True]], "expected numbers, got a boolean at [0, 1]"),
    "text behind null": ("attn_mask", [[None, "null"], [0, 0]], 'expected numbers, got "null" at [0, 1]'),
    "a list behind null": ("attn_mask", [[None, [0]], [0, 0]], "expected numbers, got a list at [0, 1]"),
    "an object": ("attn_mask", [[None, {"null": 0}], [0, 0]], "expected numbers, got an object at [0, 1]"),
    "more than the shape": ("attn_mask", {"shape": [1, 1], "data": [None, 0]}, "needs 1 number, got 2"),
    "a query of null": ("query", [[0, None, 0, 0]] * 2, "got null"),
    "a flat query of null": ("query", {"shape": [2, 4], "data": [None] * 8}, "got null"),
}


@pytest.mark.parametrize(("field", "value", "words"), WRONG.values(), ids=WRONG)
def test_null_is_a_number_of_masks_alone(client, field, value, words):
    assert words in refused(client, **LISTS | {field: value}, field=field)


def test_v2_has_null_in_masks_alone(client):
    query = {**tensor("query", QKV["query"]), "data": [None] * 8}
    error(infer(client, SDPA, v2(BITS, query=query)), 400, "got null")


@pytest.mark.parametrize(
    ("block", "flag", "status"), [(SDPA, 1, 422), (SDPA, "true", 422), (SDPA, True, 200), ("linear", True, 400)]
)
def test_the_flag_is_a_boolean_of_blocks_with_a_mask(client, block, flag, status):
    response = post(client, block, {**LISTS, "additive_mask": flag})
    assert response.status_code == status
    assert status == 200 or response.json()["field"] == "additive_mask"


def test_v2_refuses_zeros_and_ones_each_time_unless_they_are_meant(client):
    """The mask is looked at in each request: those before it of the same form were right."""
    datatypes = DATATYPES | {"attn_mask": "FP32"}
    arrays = QKV | {"attn_mask": BITS[None, None].astype(np.float32)}
    good = arrays | {"attn_mask": arrays["attn_mask"] - 0.5}
    for _ in range(40):  # by then such requests are answered as they come off the socket
        assert infer(client, SDPA, v2(BITS - 0.5)).status_code == 200
        assert binary(client, SDPA, good, datatypes).status_code == 200
        error(infer(client, SDPA, v2(BITS)), 400, "attn_mask: contains only 0 and 1", "additive_mask")
        error(binary(client, SDPA, arrays, datatypes), 400, "attn_mask: contains only 0 and 1", "additive_mask")
    assert infer(client, SDPA, v2(BITS, flag=True)).status_code == 200
    assert binary(client, SDPA, arrays, datatypes, parameters={"additive_mask": True}).status_code == 200
    assert infer(client, SDPA, v2(BITS.astype(bool), datatype="BOOL")).status_code == 200
    error(infer(client, SDPA, v2(BITS, flag=1)), 400, "expected parameter 'additive_mask' to be a boolean, got 1")


def test_the_descriptions_say_so(client):
    (mask,) = (of for of in client.get(f"/v1/attention/{SDPA}").json()["inputs"] if of["name"] == "attn_mask")
    assert "additive_mask" in mask["description"]
    assert "additive_mask" in client.get(f"/v2/models/{SDPA}").json()["properties"]["attn_mask (optional)"]
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert {"type": "boolean"} in schemas[f"{SDPA}_request"]["properties"]["additive_mask"]["anyOf"]
    assert "additive_mask" not in schemas["linear_request"]["properties"]
    assert "additive_mask" in json.dumps(schemas["InferRequest"])
