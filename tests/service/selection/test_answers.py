"""Every option over HTTP: both APIs answer the numbers that numpy makes of all weights, or name the wrong field."""

import math

import numpy as np
import pytest

from heed_client.v2 import binary_request
from service.selection.derived import DERIVED
from tests.support.attending import attend, post
from tests.support.attention import true_entropy, true_head_statistics, true_pool, true_received, true_rollout
from tests.support.v2 import DTYPES, error, infer, parts, tensor

RNG = np.random.default_rng(5)
INPUTS = {
    "scaled_dot_product": {name: RNG.standard_normal((2, 4, 6, 3), np.float32) for name in ("query", "key", "value")},
    "self_attention": {"x": RNG.standard_normal((2, 6, 32), np.float32)},  # one head
    "multi_head": {name: RNG.standard_normal((2, 6, 64), np.float32) for name in ("query", "key", "value")},
    "encoder": {"input_ids": RNG.integers(0, 100, (2, 6)), "nonpad_kv_seqlen": np.array([6, 4])},
    "decoder": {"input_ids": RNG.integers(0, 100, (2, 6))},
}
SDPA = "scaled_dot_product"
STACKS = ("encoder", "decoder")
SELF_ATTENTION = ("self_attention", *STACKS)  # the keys are of the queries' dimension, or that of a past and theirs


def pooled(array, k, by):
    shape = array.shape[:-2]
    matrices = [true_pool(matrix, k, by) for matrix in array.reshape(-1, *array.shape[-2:])]
    return np.reshape(matrices, (*shape, *matrices[0].shape))


def mean(array, axis):
    return array.astype(np.float64).mean(axis)


OPTIONS = {  # the request's, and what numpy makes of all weights
    "a head": ({"heads": "0"}, lambda w: w[..., :1, :, :]),
    "the last head": ({"heads": "-1"}, lambda w: w[..., -1:, :, :]),
    "queries": ({"queries": "4,1:3,-1"}, lambda w: w[..., [4, 1, 2, 5], :]),
    "queries backwards": ({"queries": "::-2", "heads": "0:1"}, lambda w: w[..., :1, ::-2, :]),
    "mean of heads": ({"reduce_heads": "mean"}, lambda w: mean(w, -3)),
    "average": ({"average_attn_weights": True}, lambda w: mean(w, -3)),
    "max of heads, a query": ({"reduce_heads": "max", "queries": "3"}, lambda w: w.max(-3)[..., 3:4, :]),
    "pool": ({"weights_pool": 4}, lambda w: pooled(w.astype(np.float64), 4, np.mean)),
    "pool by max": ({"weights_pool": 2, "weights_pool_by": "max"}, lambda w: pooled(w, 2, np.max)),
    "threshold": ({"weights_threshold": 0.2}, lambda w: np.where(w < np.float32(0.2), 0, w)),
    "threshold of a mean": (
        {"weights_threshold": 0.2, "reduce_heads": "mean", "weights_dtype": "float32"},
        lambda w: np.where(mean(w, -3) < 0.2, 0, mean(w, -3)),
    ),
    "float16": ({"weights_dtype": "float16"}, lambda w: w.astype(np.float16)),
    "float32": ({"weights_dtype": "float32", "queries": "1,0"}, lambda w: w[..., [1, 0], :]),
}
LAYERED = {
    "a layer": ({"layers": "1", "heads": "2"}, lambda w: w[1:, :, 2:3]),
    "layers": ({"layers": "1,0"}, lambda w: w[::-1]),
    "a layer counted from the end": ({"layers": -1}, lambda w: w[-1:]),
    "mean of layers": ({"reduce_layers": "mean"}, lambda w: mean(w, 0)),
    "both": ({"reduce_layers": "max", "reduce_heads": "mean"}, lambda w: mean(w, 2).max(0)),
}
CASES = [
    *((block, name, *case) for block in INPUTS for name, case in OPTIONS.items()),
    *((block, name, *case) for block in STACKS for name, case in LAYERED.items()),
]


def native(client, block, outputs, **options):
    """The answer of the native API; the parts of the largest weights are named as in V2."""
    response = post(client, block, {**INPUTS[block], "outputs": outputs, **options})
    assert response.status_code == 200, response.text
    found = {}
    for name, value in response.json().items():
        found |= {f"{name}_{part}": value[part] for part in value} if isinstance(value, dict) else {name: value}
    assert found.pop("block") == block
    return found


def send_v2(client, block, tensors, outputs, options, binary=False):
    if binary:
        headers, pieces = binary_request(tensors, outputs, options)
        return client.post(f"/v2/models/{block}/infer", content=b"".join(pieces), headers=headers)
    inputs = [tensor(name, array, {"f": "FP32", "i": "INT64"}[array.dtype.kind]) for name, array in tensors.items()]
    listed = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
    return infer(client, block, {"inputs": inputs, "parameters": options, **listed})


def v2(client, block, outputs, binary, **options):
    """The arrays of a V2 answer, and its names in their order."""
    answer, attached = parts(send_v2(client, block, INPUTS[block], outputs, options, binary))
    arrays = {}
    for one in answer["outputs"]:
        name, dtype = one["name"], DTYPES[one["datatype"]]
        data = np.frombuffer(attached[name], dtype) if binary else np.asarray(one["data"], dtype)
        arrays[name] = data.reshape(one["shape"])
    return arrays


def answers(client, block, outputs, **options):
    """The arrays of V2's answer in binary, which are those of V2's JSON and of the native API."""
    binary, in_json = (v2(client, block, outputs, is_binary, **options) for is_binary in (True, False))
    natively = native(client, block, outputs, **options)
    assert [*binary] == [*in_json]
    assert binary.keys() == natively.keys()
    for name, array in binary.items():
        np.testing.assert_array_equal(in_json[name], array, strict=True)
        numbers = np.asarray(natively[name]).astype(array.dtype)
        np.testing.assert_array_equal(numbers if numbers.ndim else numbers[None], array, strict=True)
    return binary


@pytest.fixture(scope="module")
def whole(client):
    """All weights of each block."""
    return {block: v2(client, block, ["weights"], True)["weights"] for block in INPUTS}


@pytest.mark.parametrize(("block", "name", "options", "expected"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_weights(client, whole, block, name, options, expected):
    found = answers(client, block, ["weights"], **options)["weights"]
    assert found.dtype == (np.float16 if name == "float16" else np.float32)
    np.testing.assert_allclose(found, expected(whole[block]), rtol=1e-6 if name != "float16" else 1e-3, atol=1e-7)


@pytest.mark.parametrize("block", ["scaled_dot_product", "multi_head"])
def test_scores_are_selected_and_reduced_too(client, block):
    options = {"is_causal": True, "heads": "1:3", "reduce_heads": "mean"}
    all_scores = v2(client, block, ["scores"], True, is_causal=True)["scores"]
    expected = all_scores[:, 1:3].astype(np.float64).mean(1)
    found = v2(client, block, ["scores", "output"], True, **options)
    np.testing.assert_allclose(found["scores"], expected, rtol=1e-6)
    assert np.isneginf(found["scores"][:, 0, 1:]).all()
    assert found["output"].shape[:2] == all_scores.shape[:2] if block != "multi_head" else (2, 6)
    assert native(client, block, ["scores"], **options)["scores"][0][0][1] is None


@pytest.mark.parametrize("block", INPUTS)
def test_derived_outputs(client, whole, block):
    w = whole[block]
    expected = {"entropy": true_entropy(w), "received": true_received(w)}
    if block in STACKS:
        expected["rollout"] = true_rollout(w)
    if block in SELF_ATTENTION:
        expected["head_statistics"] = true_head_statistics(w, range(6))
    listed = client.get(f"/v1/attention/{block}").json()["derived"]
    properties = client.get(f"/v2/models/{block}").json()["properties"]
    assert {name for name in DERIVED if f"{name} (output on request)" in properties} == set(expected)
    found = answers(client, block, list(expected))
    assert [one["name"] for one in listed] == list(found) == list(expected)
    for one in listed:
        assert found[one["name"]].ndim == len(one["shape"])
        np.testing.assert_allclose(found[one["name"]], expected[one["name"]], rtol=1e-5, atol=2e-6)
    assert (found["entropy"] <= math.log(w.shape[-1]) + 1e-6).all()


def test_head_statistics_with_a_past(client):
    """The first query is behind the keys of the past."""
    x = INPUTS["self_attention"]["x"]
    past = {name: RNG.standard_normal((2, 1, 3, d), np.float32) for name, d in (("past_key", 16), ("past_value", 32))}
    found = attend(client, "self_attention", x=x, **past, is_causal=True, outputs=["weights", "head_statistics"])
    w = np.asarray(found["weights"], np.float32)
    assert w.shape[-2:] == (6, 9)
    expected = true_head_statistics(w, range(3, 9))
    np.testing.assert_allclose(found["head_statistics"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("block", INPUTS)
@pytest.mark.parametrize("options", [{}, {"heads": "0", "queries": "1:4"}, {"reduce_heads": "mean"}], ids=str)
def test_the_largest(client, block, options):
    weights = v2(client, block, ["weights"], True, **options)["weights"]
    found = answers(client, block, ["output", "weights"], weights_top_k=3, **options)
    assert list(found) == ["output", "weights_indices", "weights_values"]
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :3]
    np.testing.assert_array_equal(found["weights_indices"], order, strict=True)
    np.testing.assert_array_equal(found["weights_values"], np.take_along_axis(weights, order, -1), strict=True)


@pytest.mark.parametrize("block", INPUTS)
@pytest.mark.parametrize(("top_k", "name"), [({}, "weights"), ({"weights_top_k": 2}, "weights_values")])
def test_uint8(client, whole, block, top_k, name):
    found = answers(client, block, ["weights"], weights_dtype="uint8", **top_k)
    assert list(found)[-2:] == [name, "weights_scale"]
    scale = float(found["weights_scale"].item())
    assert scale == pytest.approx(whole[block].max() / 255, rel=1e-6)
    exact = v2(client, block, ["weights"], True, **top_k)[name]
    assert np.abs(found[name] * scale - exact).max() <= scale / 2 * (1 + 1e-5)


@pytest.mark.parametrize("options", [{"heads": 0}, {"reduce_heads": "max", "queries": [0, 2]}, {"weights_top_k": 1}])
def test_axes_that_the_query_leaves_out_are_left_out(client, options):
    """Heads first, then the batch: the answer is that of a query with both, without these axes."""
    inputs = {name: array[:1, :1] for name, array in INPUTS["scaled_dot_product"].items()}
    outputs = ["weights", "entropy", "received"]
    full = attend(client, **inputs, outputs=outputs, **options)
    no_heads, neither = (
        attend(client, **{name: array[place] for name, array in inputs.items()}, outputs=outputs, **options)
        for place in (0, (0, 0))
    )
    heads = 0 if "reduce_heads" in options else 1
    for name, answer in full.items():
        for part in answer if isinstance(answer, dict) else [None]:
            array, less, least = (one if part is None else one[part] for one in (answer, no_heads[name], neither[name]))
            np.testing.assert_array_equal(array.squeeze(1) if heads else array, less)
            np.testing.assert_array_equal(less[0], least)


@pytest.mark.parametrize("layers", [[1], [-1], {"shape": [1], "data": [1]}], ids=["list", "from the end", "tensor"])
def test_layers_of_a_graph_are_a_tensor_too(client, whole, layers):
    found = native(client, "encoder", ["weights"], layers=layers)["weights"]
    np.testing.assert_array_equal(np.asarray(found, np.float32), whole["encoder"][1:])


def test_a_layer_before_the_first_is_refused_in_a_list_too(client):
    answer = post(client, "encoder", {**TOKENS, "layers": [0, -3]}).json()
    assert (answer["field"], answer["detail"]) == ("layers", "layers: expected indices from -2 to 1, got -3")


def test_the_vectors_of_heads_are_selected_and_not_reduced(client):
    whole = native(client, "encoder", ["query", "key"])
    for options, queries in (({}, slice(None)), ({"queries": "4,1"}, [4, 1]), ({"reduce_heads": "mean"}, slice(None))):
        outputs = ["weights", "query", "key"]
        found = native(client, "encoder", outputs, layers=[1], **({"heads": [2]} | options))
        for name, picked in (("query", queries), ("key", slice(None))):
            expected = np.asarray(whole[name])[1:, :, 2:3][..., picked, :]
            np.testing.assert_array_equal(np.asarray(found[name]), expected, name)


def test_only_entropy_runs_the_graph_with_weights(client):
    """A graph without weights is the faster one for the output alone; both are asked for after one another."""
    for outputs in (["output"], ["entropy"], ["output", "entropy"], ["output"]):
        for binary in (False, True):
            assert list(v2(client, "multi_head", outputs, binary)) == outputs


def test_the_default_is_unchanged(client):
    """Derived outputs are answered by name alone."""
    metadata = client.get("/v2/models/encoder").json()
    assert [one["name"] for one in metadata["outputs"]] == ["output", "weights"]
    assert list(v2(client, "encoder", None, False)) == ["output", "weights"]
    assert list(native(client, "encoder", None)) == ["output", "weights"]


@pytest.mark.parametrize("decimals", [0, 3, 7])
@pytest.mark.parametrize(
    "options", [{}, {"weights_dtype": "float16"}, {"weights_top_k": 2}, {"weights_dtype": "uint8"}]
)
def test_decimals_round_floats_in_json(client, decimals, options):
    outputs, block = ["output", "weights"], "scaled_dot_product"
    exact, rounded = (v2(client, block, outputs, False, **options, **more) for more in ({}, {"decimals": decimals}))
    binary = v2(client, block, outputs, True, **options, decimals=decimals)
    natively = native(client, block, outputs, **options, decimals=decimals)
    for name, array in exact.items():
        np.testing.assert_array_equal(binary[name], array)
        if array.dtype.kind != "f" or name == "weights_scale":
            np.testing.assert_array_equal(rounded[name], array)
        else:
            wanted = np.round(array.astype(np.float64), decimals).astype(array.dtype)
            np.testing.assert_array_equal(rounded[name], wanted)
        np.testing.assert_array_equal(np.reshape(natively[name], array.shape).astype(array.dtype), rounded[name])


QKV = {name: np.ones((1, 4, 3, 2), np.float32) for name in ("query", "key", "value")}
TOKENS = {"input_ids": np.array([[1, 2, 3]])}
AVERAGE, LAYERS, UINT8 = {"average_attn_weights": True}, {"reduce_layers": "max"}, {"weights_dtype": "uint8"}
ENTROPY, NEGATIVE = {"outputs": ["entropy"]}, {"scale": -1.0}
WRONG = {  # options and outputs, field, what the error says; block, unless it is scaled_dot_product
    "head out of range": ({"heads": 4}, "heads", "from -4 to 3, got 4"),
    "query out of range": ({"queries": "3"}, "queries", "from -3 to 2, got 3"),
    "layer out of range": ({"layers": "2"}, "layers", "from -2 to 1", "encoder"),
    "reduced layers of one": ({"reduce_layers": "mean"}, "reduce_layers", "has no axis of layers"),
    "too many decimals": ({"decimals": 8}, "decimals", "expected a whole number from 0 to 7"),
    "negative threshold": (
        {"weights_threshold": -0.1},
        "weights_threshold",
        "expected a number of at least 0, got -0.1",
    ),
    "threshold of scores": (
        {"weights_threshold": 0.1, "outputs": ["scores"]},
        "weights_threshold",
        "requires weights among",
    ),
    "pool of nothing": ({"weights_pool": 0}, "weights_pool", "whole number of at least 1"),
    "top too many": ({"weights_top_k": 4}, "weights_top_k", "expected at most 3, the number of keys"),
    "selection of no attention": (
        {"heads": 0, "outputs": ["output"]},
        "heads",
        "requires weights or scores or entropy",
    ),
    "average of no weights": (AVERAGE | {"outputs": ["output"]}, "average_attn_weights", "requires weights"),
    "type of scores": ({"weights_dtype": "uint8", "outputs": ["scores"]}, "weights_dtype", "requires weights among"),
    "pool of entropy": (
        {"weights_pool": 1, "outputs": ["entropy"]},
        "weights_pool",
        "requires weights or scores among",
    ),
    "layers of rollout": (LAYERS | {"outputs": ["rollout"]}, "reduce_layers", "requires weights or scores", "encoder"),
    "uint8 of what is negative": (NEGATIVE | UINT8, "weights_dtype", "weights of at least 0, got -2", "multiplicative"),
    "entropy of what is negative": (
        NEGATIVE | ENTROPY,
        "outputs",
        "requires weights of at least 0, got -2",
        "multiplicative",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_wrong_options(client, case):
    options, field, said, block = case if len(case) == 4 else (*case, SDPA)
    tensors = TOKENS if block == "encoder" else QKV
    parameters = {name: value for name, value in options.items() if name != "outputs"}
    for _ in range(2):  # nothing wrong is remembered
        response = post(client, block, {**tensors, **options})
        assert (response.status_code, response.json().get("field")) == (422, field), response.text
        assert said in response.json()["detail"]
        error(send_v2(client, block, tensors, options.get("outputs"), parameters), 400, f"{field}: ", said)


@pytest.mark.parametrize("value", [[[1]], {}, [None], ["0"], list(range(5000)), [0] * 100_000, "0," * 5000])
def test_wrong_lists(client, value):
    response = post(client, SDPA, {**QKV, "heads": value})
    assert (response.status_code, response.json()["field"]) == (422, "heads"), response.text


def test_rollout_needs_as_many_keys_as_queries(client):
    past = np.ones((2, 1, 4, 5, 8), np.float32)
    body = {**TOKENS, "past_key": past, "past_value": past}
    assert post(client, "decoder", {**body, "outputs": ["entropy"]}).status_code == 200
    detail = post(client, "decoder", {**body, "outputs": ["rollout"]}).json()["detail"]
    assert detail.startswith("outputs: rollout requires as many queries as keys, got 3 and 8")


def test_a_block_without_layers_has_no_rollout(client):
    response = post(client, SDPA, {**QKV, "outputs": ["rollout"]})
    assert response.status_code == 400
    assert "unknown output 'rollout'; available: output, weights, scores" in response.json()["detail"]
    error(send_v2(client, SDPA, QKV, ["rollout"], {}), 400, "unexpected inference output 'rollout'")


def test_what_overflows_is_an_error(client):
    large = {name: 1e30 * array for name, array in QKV.items()}
    for options in ({"outputs": ["entropy"]}, {"outputs": ["weights"], "weights_dtype": "uint8"}):
        response = post(client, SDPA, {**large, **options})
        assert response.status_code == 422
        assert "is not finite" in response.json()["detail"]
