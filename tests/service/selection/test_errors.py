"""Wrong options are errors that name the field, in both APIs, and never a wrong answer."""

import numpy as np
import pytest

from tests.support.attending import post
from tests.support.v2 import error, infer, tensor

QKV = {name: np.ones((1, 4, 3, 2), np.float32) for name in ("query", "key", "value")}
TOKENS = {"input_ids": np.array([[1, 2, 3]])}
SDPA = "scaled_dot_product"
WRONG = {  # block, options, outputs, field, what the error says
    "head out of range": (SDPA, {"heads": 4}, None, "heads", "from -4 to 3, for 4 heads of weights, got 4"),
    "head too negative": (SDPA, {"heads": "0,-5"}, None, "heads", "from -4 to 3, for 4 heads of weights, got -5"),
    "query out of range": (SDPA, {"queries": "3"}, None, "queries", "from -3 to 2, for 3 queries of weights, got 3"),
    "an empty range": (SDPA, {"queries": "3:"}, None, "queries", "selects none of the 3 queries of weights"),
    "layer out of range": ("encoder", {"layers": "2"}, None, "layers", "from -2 to 1"),
    "layers of one": (SDPA, {"layers": 0}, None, "layers", "has no axis of layers"),
    "reduced layers of one": (SDPA, {"reduce_layers": "mean"}, None, "reduce_layers", "has no axis of layers"),
    "fraction": (SDPA, {"heads": 0.5}, None, "heads", "expected an index"),
    "flag as index": (SDPA, {"heads": True}, None, "heads", "expected an index"),
    "unknown reduction": (SDPA, {"reduce_heads": "sum"}, None, "reduce_heads", "expected mean or max"),
    "number as reduction": (SDPA, {"reduce_heads": 1}, None, "reduce_heads", "expected mean or max"),
    "contradiction": (
        SDPA,
        {"average_attn_weights": True, "reduce_heads": "max"},
        None,
        "average_attn_weights",
        "reduce_heads is max",
    ),
    "unknown type": (SDPA, {"weights_dtype": "int8"}, None, "weights_dtype", "expected float32, float16 or uint8"),
    "too many decimals": (SDPA, {"decimals": 8}, None, "decimals", "expected a whole number from 0 to 7"),
    "decimals as text": (SDPA, {"decimals": "2"}, None, "decimals", "expected a whole number from 0 to 7"),
    "decimals as a flag": (SDPA, {"decimals": True}, None, "decimals", "expected a whole number from 0 to 7"),
    "pool of nothing": (SDPA, {"weights_pool": 0}, None, "weights_pool", "whole number from 1"),
    "pool by without pool": (SDPA, {"weights_pool_by": "max"}, None, "weights_pool_by", "needs weights_pool"),
    "pool and the largest": (SDPA, {"weights_pool": 2, "weights_top_k": 1}, None, "weights_top_k", "together"),
    "top too many": (SDPA, {"weights_top_k": 4}, None, "weights_top_k", "expected at most 3, the number of keys"),
    "selection of no attention": (SDPA, {"heads": 0}, ["output"], "heads", "needs weights or scores or entropy"),
    "largest of entropy": (SDPA, {"weights_top_k": 1}, ["entropy"], "weights_top_k", "needs weights among"),
    "type of scores": (SDPA, {"weights_dtype": "uint8"}, ["scores"], "weights_dtype", "needs weights among"),
    "pool of entropy": (SDPA, {"weights_pool": 1}, ["entropy"], "weights_pool", "needs weights or scores among"),
    "layers of rollout": (
        "encoder",
        {"reduce_layers": "max"},
        ["rollout"],
        "reduce_layers",
        "needs weights or scores or entropy",
    ),
    "uint8 of what is negative": (
        "multiplicative",
        {"weights_dtype": "uint8", "scale": -1.0},
        ["weights"],
        "weights_dtype",
        "uint8 needs weights from 0, got -2",
    ),
    "entropy of what is negative": (
        "multiplicative",
        {"scale": -1.0},
        ["entropy"],
        "outputs",
        "entropy needs weights from 0, got -2",
    ),
}


@pytest.mark.parametrize(("block", "options", "outputs", "field", "said"), WRONG.values(), ids=WRONG)
def test_wrong_options(client, block, options, outputs, field, said):
    tensors = TOKENS if block == "encoder" else QKV
    for _ in range(2):  # nothing wrong is remembered
        response = post(client, block, {**tensors, **options, "outputs": outputs})
        assert response.status_code == 422, response.text
        problem = response.json()
        assert problem["field"] == field
        assert said in problem["detail"]
        kind = "INT64" if block == "encoder" else "FP32"
        body = {"inputs": [tensor(name, array, kind) for name, array in tensors.items()], "parameters": options}
        if outputs:
            body["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
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
