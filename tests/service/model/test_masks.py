"""Masks in numbers, in both APIs: what could be read in two ways is refused, null is -infinity."""

import json

import numpy as np
import pytest

from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, draw
from tests.support.attending import attend, coded, post
from tests.support.v2 import binary, error, infer, tensor

SDPA = "scaled_dot_product"
MASKED = [name for name, block in BLOCKS.items() if "attn_mask" in block.inputs]
DRAWN = np.random.default_rng(0).standard_normal((3, 1, 1, 2, 4), np.float32)
QKV = dict(zip(("query", "key", "value"), DRAWN, strict=True))
LISTS = {name: array[0, 0].tolist() for name, array in QKV.items()}
BITS = np.array([[1, 0], [1, 1]])
ALLOWED = BITS.astype(bool)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
V2_INTEGERS = [name.upper() for name in INTEGERS]
# Fewer outputs are computed by other graphs, larger requests by yet others.
OUTPUTS = [["output"], ["weights"], ["output", "weights", "scores"]]


def refused(client, block=SDPA, **body) -> str:
    """The detail of a 422 that names the mask."""
    response = post(client, block, body)
    assert response.status_code == 422, response.text
    assert response.json()["field"] == "attn_mask"
    return response.json()["detail"]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("values", [BITS, 0 * BITS, -1 * BITS[:, :1]], ids=["bits", "zeros", "others"])
def test_integers_are_refused(client, dtype, values):
    mask = coded(values.astype(dtype))
    for flag in ({}, {"additive_mask": True}):
        detail = refused(client, **LISTS, attn_mask=mask, **flag)
        assert f"expected booleans (true = may attend) or floats (added to the scores), got {dtype}" in detail


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


@pytest.mark.parametrize("name", NOTATIONS)
def test_zeros_and_ones_are_refused_unless_they_are_meant(client, name):
    mask = NOTATIONS[name]
    detail = refused(client, **LISTS, attn_mask=mask)
    assert "nothing but 0 and 1" in detail
    assert "send booleans (true = may attend), or additive_mask true" in detail
    assert refused(client, **LISTS, attn_mask=mask, additive_mask=False) == detail
    assert refused(client, **LISTS, attn_mask=mask, additive_mask=None) == detail
    meant = attend(client, **LISTS, attn_mask=mask, additive_mask=True, outputs=["scores"])["scores"]
    plain = attend(client, **LISTS, outputs=["scores"])["scores"]
    np.testing.assert_allclose(meant - plain, [[0, 1]] * 2 if name == "one row" else BITS, atol=1e-6)


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("outputs", [["output"], ["output", "weights"]], ids=str)
def test_every_block_that_takes_a_mask_refuses_zeros_and_ones(client, name, outputs):
    inputs = draw(BLOCKS[name], SIZES["distinct"], OPTIONS["attn_mask"])
    shape = inputs.pop("attn_mask").shape
    mask = np.indices(shape).sum(axis=0) % 2
    assert "nothing but 0 and 1" in refused(client, name, **inputs, attn_mask=mask, outputs=outputs)
    assert "integers" not in refused(client, name, **inputs, attn_mask=mask.astype(np.float32), outputs=outputs)
    assert "got int8" in refused(client, name, **inputs, attn_mask=coded(mask.astype(np.int8)), outputs=outputs)
    found = attend(client, name, **inputs, attn_mask=mask, outputs=outputs, additive_mask=True)
    near = attend(client, name, **inputs, attn_mask=mask + 1e-9, outputs=outputs)  # not 0 and 1, and so no question
    for output, array in found.items():
        np.testing.assert_allclose(array, near[output], atol=1e-5)


@pytest.mark.parametrize("mask", [[[0, 0], [0, 0]], [[1, 1], [1, 1]], [[0.0, 0.0]], coded(np.ones((2, 2)))])
def test_one_number_everywhere_changes_no_weight_and_is_taken(client, mask):
    plain, found = attend(client, **LISTS), attend(client, **LISTS, attn_mask=mask)
    np.testing.assert_allclose(found["weights"], plain["weights"], atol=1e-6)


ADDED = {
    "null": [[0, None], [None, 0]],
    "null first": [[None, 0], [0, None]],
    "only null in a row": [[None, None], [0, 0]],
    "null and one": [[1, None], [1, 1]],
    "null and fractions": [[0.25, None], [-1e4, 3]],
    "whole numbers": [[0, -10000], [2, -1]],
    "one, and below": [[-1, 0], [1, 0]],
}


def as_array(lists) -> np.ndarray:
    numbers = np.array(lists, np.float64)  # null, None in Python, is NaN here
    return np.where(np.isnan(numbers), -np.inf, numbers).astype(np.float32)


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("outputs", OUTPUTS, ids=str)
def test_null_is_minus_infinity_in_every_notation(client, name, outputs):
    lists, exact = ADDED[name], as_array(ADDED[name])
    expected = attend(client, **LISTS, attn_mask=coded(exact), outputs=outputs)
    data = [item for row in lists for item in row]
    flat, nested = ({"shape": [2, 2], "data": form} for form in (data, lists))
    for mask in (lists, flat, nested):
        found = attend(client, **LISTS, attn_mask=mask, outputs=outputs)
        for output, array in found.items():
            np.testing.assert_array_equal(array, expected[output])
    answers = []
    for form in (data, [[lists]]):
        mask = {**tensor("attn_mask", exact[None, None]), "data": form}
        body = {"inputs": [*map(tensor, QKV, QKV.values()), mask], "outputs": [{"name": "output"}]}
        answers.append(infer(client, SDPA, body))
    assert answers[0].status_code == 200, answers[0].text
    assert answers[0].json() == answers[1].json()
    if "output" in expected:
        output = np.reshape(answers[0].json()["outputs"][0]["data"], (2, 4))
        np.testing.assert_allclose(output, expected["output"], atol=1e-6)


WRONG = {
    "NaN": (coded(np.array([[np.nan, 0], [0, 0]])), "holds NaN"),
    "infinity": (coded(np.array([[np.inf, 0], [0, 0]])), "holds infinity"),
    "null among booleans": ([[True, None], [True, True]], "expected booleans, got null at [0, 1]"),
    "booleans behind null": ([[None, True], [True, True]], "expected numbers, got a boolean at [0, 1]"),
    "text behind null": ([[None, "null"], [0, 0]], 'expected numbers, got text "null" at [0, 1]'),
    "a list behind null": ([[None, [0]], [0, 0]], "expected numbers, got a list at [0, 1]"),
    "an object": ([[None, {"null": 0}], [0, 0]], "expected numbers, got an object at [0, 1]"),
    "more than the shape": ({"shape": [1, 1], "data": [None, 0]}, "needs 1 numbers, got 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_mask_stays_refused(client, name):
    mask, words = WRONG[name]
    assert words in refused(client, **LISTS, attn_mask=mask)


def test_null_is_refused_elsewhere(client):
    for form in ([[0, None, 0, 0]] * 2, {"shape": [2, 4], "data": [None] * 8}):
        response = post(client, SDPA, {**LISTS, "query": form})
        assert response.status_code == 422
        assert "got null" in response.json()["detail"]
    data = [None] * 8
    error(infer(client, SDPA, v2(BITS, query={**tensor("query", QKV["query"]), "data": data})), 400, "got null")


def test_the_flag_is_a_boolean_of_blocks_with_a_mask(client):
    for value in (1, "true"):
        response = post(client, SDPA, {**LISTS, "additive_mask": value})
        assert (response.status_code, response.json()["field"]) == (422, "additive_mask")
    assert post(client, "linear", {**LISTS, "additive_mask": True}).status_code == 400
    assert post(client, SDPA, {**LISTS, "additive_mask": True}).status_code == 200


def v2(mask, datatype="FP32", flag=None, **change) -> dict:
    given = {name: tensor(name, array) for name, array in QKV.items()} | change
    lists = np.asarray(mask)
    entry = {"name": "attn_mask", "shape": [1, 1, *lists.shape], "datatype": datatype, "data": lists.ravel().tolist()}
    parameters = {} if flag is None else {"additive_mask": flag}
    return {"inputs": [*given.values(), entry], "outputs": [{"name": "weights"}], "parameters": parameters}


@pytest.mark.parametrize("datatype", V2_INTEGERS)
def test_v2_refuses_integers_and_says_what_to_send(client, datatype):
    words = f"data-type is '{datatype}'", "expects 'FP32' (added to the scores) or 'BOOL' (true = may attend)"
    for flag in (None, True):
        error(infer(client, SDPA, v2(BITS, datatype, flag)), 400, *words)
    arrays = {**QKV, "attn_mask": BITS[None, None].astype(datatype.lower())}
    datatypes = dict.fromkeys(QKV, "FP32") | {"attn_mask": datatype}
    error(binary(client, SDPA, arrays, datatypes), 400, *words)


def test_v2_refuses_zeros_and_ones_each_time_unless_they_are_meant(client):
    """The mask is looked at in each request: those before it of the same form were right."""
    arrays, datatypes = {**QKV, "attn_mask": BITS[None, None].astype(np.float32)}, dict.fromkeys(QKV, "FP32")
    datatypes["attn_mask"] = "FP32"
    good = arrays | {"attn_mask": arrays["attn_mask"] - 0.5}
    for _ in range(40):  # by then such requests are answered as they come off the socket
        assert infer(client, SDPA, v2(BITS - 0.5)).status_code == 200
        assert binary(client, SDPA, good, datatypes).status_code == 200
        error(infer(client, SDPA, v2(BITS)), 400, "attn_mask: holds nothing but 0 and 1", "additive_mask")
        error(binary(client, SDPA, arrays, datatypes), 400, "attn_mask: holds nothing but 0 and 1", "additive_mask")
    assert infer(client, SDPA, v2(BITS, flag=True)).status_code == 200
    assert binary(client, SDPA, arrays, datatypes, parameters={"additive_mask": True}).status_code == 200
    assert infer(client, SDPA, v2(ALLOWED, "BOOL")).status_code == 200
    error(infer(client, SDPA, v2(BITS, flag=1)), 400, "expected parameter 'additive_mask' to be a boolean, got 1")


def test_the_descriptions_say_so(client):
    (mask,) = (of for of in client.get(f"/v1/attention/{SDPA}").json()["inputs"] if of["name"] == "attn_mask")
    assert "additive_mask" in mask["description"]
    assert "additive_mask" in client.get(f"/v2/models/{SDPA}").json()["properties"]["attn_mask (optional)"]
    document = client.get("/openapi.json").json()

    def fields(block):
        content = document["paths"][f"/v1/attention/{block}"]["post"]["requestBody"]["content"]
        name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
        return document["components"]["schemas"][name]["properties"]

    assert {"type": "boolean"} in fields(SDPA)["additive_mask"]["anyOf"]
    assert "additive_mask" not in fields("linear")
    assert "additive_mask" in json.dumps(document["components"]["schemas"]["InferRequest"])
