"""Options of the weights on the fast path: never a plan of other options, always the ordinary answer."""

import json

import numpy as np
import pytest

from heed_client.v2 import binary_request
from tests.support.http_requests import SDPA, http
from tests.support.v2 import tensor

V2 = "/v2/models/scaled_dot_product/infer"
RNG = np.random.default_rng(3)
TENSORS = {name: RNG.standard_normal((2, 3, 5, 4), np.float32) for name in ("query", "key", "value")}
OPTIONS = [
    {},
    {"heads": "0"},
    {"heads": "1"},
    {"heads": "0,2", "queries": "1:3"},
    {"reduce_heads": "mean"},
    {"reduce_heads": "max"},
    {"average_attn_weights": True},
    {"weights_top_k": 2},
    {"weights_top_k": 3},
    {"weights_dtype": "uint8"},
    {"weights_dtype": "float16"},
    {"decimals": 2},
    {"decimals": 5},
    {"heads": "1", "decimals": 2},
    {"weights_pool": 2},
    {"weights_pool": 2, "weights_pool_by": "max"},
]
OUTPUTS = [["output", "weights"], ["entropy"], ["weights", "received"]]
OF_ROWS = {"heads", "queries", "reduce_heads", "average_attn_weights"}  # the options that apply without weights
CASES = [
    (options, outputs)
    for options in OPTIONS
    for outputs in OUTPUTS
    if "weights" in outputs or not options.keys() - OF_ROWS
]


def native(options, outputs, scale):
    tensors = {name: (scale * array).tolist() for name, array in TENSORS.items()}
    return http({**tensors, **options, "outputs": outputs}, SDPA)


def v2_json(options, outputs, scale):
    inputs = [tensor(name, scale * array) for name, array in TENSORS.items()]
    return http({"inputs": inputs, "outputs": [{"name": name} for name in outputs], "parameters": options}, V2)


def v2_binary(options, outputs, scale):
    tensors = {name: np.float32(scale) * array for name, array in TENSORS.items()}
    headers, pieces = binary_request(tensors, outputs, options)
    return http(b"".join(pieces), V2, *(f"{name}: {value}" for name, value in headers.items()))


@pytest.mark.parametrize("write", [native, v2_json, v2_binary])
def test_both_ways_answer_alike(client, other, write):
    """Each request is asked on the fast path with the plans of all others known, and with other numbers."""
    for options, outputs in CASES:
        client.learn(write(options, outputs, 1))
    answers = set()
    for options, outputs in CASES:
        request = write(options, outputs, 2)
        quick, ordinary = client.ask_quick(request), other.ask_ordinary(request)
        assert quick.status == 200
        assert quick.alike == ordinary.alike
        answers.add(quick.body)
    without_effect = {"average_attn_weights"}  # beside the mean of heads
    if write is v2_binary:
        without_effect.add("decimals")
    same = sum(not without_effect.isdisjoint(options) for options, _ in CASES)
    assert len(answers) == len(CASES) - same


@pytest.mark.parametrize(("write", "wrong", "shape"), [(native, 422, (2, 1, 5, 5)), (v2_json, 400, (50,))])
def test_an_error_is_not_remembered(client, other, write, wrong, shape):
    for head, status in ((3, wrong), (2, 200), (3, wrong)):
        request = write({"heads": head}, ["weights"], 1)
        quick, ordinary = client.ask(request), other.ask_ordinary(request)
        assert quick.status == status
        assert quick.alike == ordinary.alike
        if status == 200:
            answer = json.loads(quick.body)
            weights = answer["weights"] if write is native else answer["outputs"][0]["data"]
            assert np.shape(weights) == shape
