"""Wrong options are errors that name the field, in both APIs, and never a wrong answer."""

import numpy as np
import pytest

from tests.support.attending import post
from tests.support.v2 import error, infer, tensor

QKV = {name: np.ones((1, 4, 3, 2), np.float32) for name in ("query", "key", "value")}
TOKENS = {"input_ids": np.array([[1, 2, 3]])}
SDPA = "scaled_dot_product"
AVERAGE, LAYERS, UINT8 = {"average_attn_weights": True}, {"reduce_layers": "max"}, {"weights_dtype": "uint8"}
ENTROPY, NEGATIVE = {"outputs": ["entropy"]}, {"scale": -1.0}
WRONG = {  # options and outputs, field, what the error says; block, unless it is scaled_dot_product
    "head out of range": ({"heads": 4}, "heads", "from -4 to 3, for 4 heads of weights, got 4"),
    "query out of range": ({"queries": "3"}, "queries", "from -3 to 2, for 3 queries of weights, got 3"),
    "layer out of range": ({"layers": "2"}, "layers", "from -2 to 1", "encoder"),
    "layers of one": ({"layers": 0}, "layers", "has no axis of layers"),
    "reduced layers of one": ({"reduce_layers": "mean"}, "reduce_layers", "has no axis of layers"),
    "fraction": ({"heads": 0.5}, "heads", "expected an index"),
    "unknown reduction": ({"reduce_heads": "sum"}, "reduce_heads", "expected mean or max"),
    "contradiction": (AVERAGE | {"reduce_heads": "max"}, "average_attn_weights", "reduce_heads is max"),
    "unknown type": ({"weights_dtype": "int8"}, "weights_dtype", "expected float32, float16 or uint8"),
    "too many decimals": ({"decimals": 8}, "decimals", "expected a whole number from 0 to 7"),
    "decimals as text": ({"decimals": "2"}, "decimals", "expected a whole number from 0 to 7"),
    "pool of nothing": ({"weights_pool": 0}, "weights_pool", "whole number from 1"),
    "pool by without pool": ({"weights_pool_by": "max"}, "weights_pool_by", "needs weights_pool"),
    "pool and the largest": ({"weights_pool": 2, "weights_top_k": 1}, "weights_top_k", "together"),
    "top too many": ({"weights_top_k": 4}, "weights_top_k", "expected at most 3, the number of keys"),
    "selection of no attention": ({"heads": 0, "outputs": ["output"]}, "heads", "needs weights or scores or entropy"),
    "average of no weights": (AVERAGE | {"outputs": ["output"]}, "average_attn_weights", "needs weights"),
    "largest of entropy": ({"weights_top_k": 1, "outputs": ["entropy"]}, "weights_top_k", "needs weights among"),
    "type of scores": ({"weights_dtype": "uint8", "outputs": ["scores"]}, "weights_dtype", "needs weights among"),
    "pool of entropy": ({"weights_pool": 1, "outputs": ["entropy"]}, "weights_pool", "needs weights or scores among"),
    "layers of rollout": (LAYERS | {"outputs": ["rollout"]}, "reduce_layers", "needs weights or scores", "encoder"),
    "uint8 of what is negative": (NEGATIVE | UINT8, "weights_dtype", "weights from 0, got -2", "multiplicative"),
    "entropy of what is negative": (NEGATIVE | ENTROPY, "outputs", "needs weights from 0, got -2", "multiplicative"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_wrong_options(client, case):
    options, field, said, block = case if len(case) == 4 else (*case, SDPA)
    tensors, kind = (TOKENS, "INT64") if block == "encoder" else (QKV, "FP32")
    parameters = {name: value for name, value in options.items() if name != "outputs"}
    body = {"inputs": [tensor(name, array, kind) for name, array in tensors.items()], "parameters": parameters}
    if "outputs" in options:
        body["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in options["outputs"]]
    for _ in range(2):  # nothing wrong is remembered
        response = post(client, block, {**tensors, **options})
        assert (response.status_code, response.json().get("field")) == (422, field), response.text
        assert said in response.json()["detail"]
        error(infer(client, block, body), 400, f"{field}: ", said)


@pytest.mark.parametrize("value", [[[1]], {}, [None], ["0"], list(range(5000)), [0] * 100_000, "0," * 5000])
def test_wrong_lists(client, value):
    response = post(client, SDPA, {**QKV, "heads": value})
    assert response.status_code == 422, response.text
    assert response.json()["field"] == "heads"


def test_rollout_needs_as_many_keys_as_queries(client):
    past = np.ones((2, 1, 4, 5, 8), np.float32)
    body = {**TOKENS, "past_key": past, "past_value": past}
    assert post(client, "decoder", {**body, "outputs": ["entropy"]}).status_code == 200
    problem = post(client, "decoder", {**body, "outputs": ["rollout"]}).json()
    assert problem["field"] == "outputs"
    assert "rollout needs as many keys as queries, got 3 queries and 8 keys" in problem["detail"]


def test_a_block_without_layers_has_no_rollout(client):
    response = post(client, SDPA, {**QKV, "outputs": ["rollout"]})
    assert response.status_code == 400
    assert "unknown output 'rollout'; there are output, weights, scores" in response.json()["detail"]
    body = {"inputs": [tensor(name, array) for name, array in QKV.items()], "outputs": [{"name": "rollout"}]}
    error(infer(client, SDPA, body), 400, "unexpected inference output 'rollout'")


def test_what_overflows_is_an_error(client):
    large = {name: 1e30 * array for name, array in QKV.items()}
    for options in ({"outputs": ["entropy"]}, {"outputs": ["weights"], "weights_dtype": "uint8"}):
        response = post(client, SDPA, {**large, **options})
        assert response.status_code == 422
        assert "is not finite" in response.json()["detail"]
