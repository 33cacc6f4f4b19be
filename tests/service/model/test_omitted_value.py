"""A request for outputs that do not depend on the values may omit them."""

import numpy as np
import pytest

from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, draw
from tests.support.attending import attend, post
from tests.support.v2 import tensor

NAMES = ["scaled_dot_product", "cosine", "additive", "multi_head", "projected"]


def drawn(name, option="plain"):
    return draw(BLOCKS[name], SIZES["distinct"], OPTIONS[option])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("option", ["plain", "attn_mask"])
def test_weights_scores_and_lse_are_those_with_the_value(client, name, option):
    inputs = drawn(name, option)
    outputs = ["weights", "scores", "lse"]
    whole = attend(client, name, **inputs, outputs=outputs)
    del inputs["value"]
    for _ in range(2):  # the second time by the cached plan
        found = attend(client, name, **inputs, outputs=outputs)
        for output, expected in whole.items():
            np.testing.assert_array_equal(found[output], expected)


@pytest.mark.parametrize("name", ["scaled_dot_product", "multi_head"])
def test_a_past_value_decides_the_width(client, name):
    inputs = drawn(name, "past")
    whole = attend(client, name, **inputs, outputs=["weights", "present_key"])
    del inputs["value"]
    found = attend(client, name, **inputs, outputs=["weights", "present_key"])
    np.testing.assert_array_equal(found["weights"], whole["weights"])
    np.testing.assert_array_equal(found["present_key"], whole["present_key"])


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("scaled_dot_product", ["output"]),
        ("scaled_dot_product", ["weights", "present_value"]),
        ("scaled_dot_product", None),
        ("multi_head", None),
        ("multi_head", ["weights", "weights_by_norm"]),
    ],
)
def test_an_output_that_needs_it(client, name, outputs):
    inputs = drawn(name)
    del inputs["value"]
    response = post(client, name, inputs | ({"outputs": outputs} if outputs else {}))
    assert response.status_code == 422
    assert response.json()["field"] == "value"
    assert response.json()["detail"] == f"value: required for {outputs[-1] if outputs else 'output'}, and not given"


def test_key_is_always_required(client):
    inputs = drawn("scaled_dot_product")
    del inputs["key"]
    response = post(client, "scaled_dot_product", inputs | {"outputs": ["weights"]})
    assert (response.status_code, response.json()["field"]) == (422, "key")


def test_v2(client):
    inputs = drawn("scaled_dot_product")
    tensors = [tensor(name, inputs[name]) for name in ("query", "key")]
    path = "/v2/models/scaled_dot_product/infer"
    found = client.post(path, json={"inputs": tensors, "outputs": [{"name": "weights"}]})
    assert found.status_code == 200, found.text
    exact = BLOCKS["scaled_dot_product"].reference(None, inputs, np.float64)["weights"]
    np.testing.assert_allclose(np.reshape(found.json()["outputs"][0]["data"], exact.shape), exact, atol=1e-6)
    refused = client.post(path, json={"inputs": tensors})
    assert refused.status_code == 400
    assert "missing required input(s) ['value']" in refused.json()["error"]
