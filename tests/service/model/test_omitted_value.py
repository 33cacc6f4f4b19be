"""A request for outputs that do not depend on the values may omit them."""

import numpy as np
import pytest

from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, draw
from tests.support.attending import attend, post
from tests.support.v2 import error, infer, tensor

SDPA = "scaled_dot_product"


def drawn(name, option="plain"):
    return draw(BLOCKS[name], SIZES["distinct"], OPTIONS[option])


@pytest.mark.parametrize(
    ("name", "option", "outputs"),
    [
        *((name, "plain", ["weights", "scores", "lse"]) for name in (SDPA, "cosine", "additive", "projected")),
        *((name, "attn_mask", ["weights", "scores", "lse"]) for name in (SDPA, "multi_head")),
        *((name, "past", ["weights", "present_key"]) for name in (SDPA, "multi_head")),  # it decides the width
    ],
)
def test_the_outputs_are_those_with_the_value(client, name, option, outputs):
    inputs = drawn(name, option)
    expected = attend(client, name, **inputs, outputs=outputs)
    del inputs["value"]
    for _ in range(2):  # the second time by the cached plan
        answer = attend(client, name, **inputs, outputs=outputs)
        for output in outputs:
            np.testing.assert_array_equal(answer[output], expected[output])


@pytest.mark.parametrize(
    ("name", "omitted", "fields", "words"),
    [
        (SDPA, "value", {"outputs": ["output"]}, "missing (required for output)"),
        (SDPA, "value", {"outputs": ["weights", "present_value"]}, "missing (required for present_value)"),
        (SDPA, "value", {}, "missing (required for output)"),
        ("multi_head", "value", {"outputs": ["weights", "weights_by_norm"]}, "missing (required for weights_by_norm)"),
        (SDPA, "key", {"outputs": ["weights"]}, ""),
    ],
)
def test_an_output_that_needs_it(client, name, omitted, fields, words):
    inputs = drawn(name)
    del inputs[omitted]
    response = post(client, name, inputs | fields)
    assert (response.status_code, response.json()["field"]) == (422, omitted)
    assert response.json()["detail"].startswith(f"{omitted}: {words}")


def test_v2(client):
    inputs = drawn(SDPA)
    body = {"inputs": [tensor(name, inputs[name]) for name in ("query", "key")]}
    (answer,) = infer(client, SDPA, body | {"outputs": [{"name": "weights"}]}).json()["outputs"]
    exact = BLOCKS[SDPA].reference(None, inputs, np.float64)["weights"]
    np.testing.assert_allclose(np.reshape(answer["data"], exact.shape), exact, atol=1e-6)
    error(infer(client, SDPA, body), 400, "missing required input(s) ['value']")
