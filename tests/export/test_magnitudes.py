"""Every graph of every block, on inputs from 1e-38 to 3e38: right, or not finite, which the service refuses."""

import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from export.graph import export_graph
from export.verification import Check, answered, in_torch, largest_error, rounded, session, taken, without
from models import encoder
from models.catalogue import BLOCKS
from models.examples import SIZES, Given, draw, examples
from models.linear import Linear
from models.transformer import TransformerConfig
from tests.support.magnitudes import inputs_of, is_answer, wrong

INNER_PRODUCTS = ["scaled_dot_product", "dot_product", "luong_dot"]


@pytest.fixture(scope="module")
def graphs(repository):
    """By a block's name: its sessions, and the parameters that each graph fixes."""
    opened = {}

    def graphs_of(name):
        if name not in opened:
            files = sorted((repository / name / "1").glob("*.onnx"))
            opened[name] = {file.stem: (session(file), _fixes(file)) for file in files}
        return opened[name]

    return graphs_of


def _fixes(file):
    properties = onnx.load(file, load_external_data=False).metadata_props
    (card,) = [json.loads(each.value) for each in properties if each.key == "heed"]
    return card.get("fixes", {})


def answers(graphs, inputs):
    """The name and the outputs of every graph that takes these inputs."""
    for graph, (run, fixes) in graphs.items():
        chosen = without(inputs, fixes)
        if chosen is not None and chosen.keys() <= taken(run):
            yield graph, answered(run, [output.name for output in run.get_outputs()], chosen)


@pytest.mark.parametrize("name", BLOCKS)
def test_right_or_no_answer(graphs, name):
    opened = graphs(name)

    @settings(max_examples=30)
    @given(drawn=inputs_of(BLOCKS[name]))
    def check(drawn):
        inputs, moderate = drawn
        for graph, outputs in answers(opened, inputs):
            visible = {output: x for output, x in outputs.items() if is_answer({output: x})}
            assert not wrong(name, inputs, visible), graph
            assert not moderate or visible.keys() == outputs.keys(), graph

    check()


@pytest.mark.parametrize("name", INNER_PRODUCTS)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_sum_that_overflows_on_its_way(graphs, name, softcap):
    """The score of the first key is 3e38, but its first two products are -6e38: -inf would be a weight of 0."""
    rng = np.random.default_rng(0)
    query = np.full((1, 1, 1, 8), 1e19 * 8 ** (0.5 * (name == "scaled_dot_product")), np.float32)
    key = np.zeros((1, 1, 16, 8), np.float32)
    key[..., 0, :5] = np.array([-3e19, -3e19, 3e19, 3e19, 3e19])
    inputs = {"query": query, "key": key, "value": rng.standard_normal((1, 1, 16, 8), np.float32)}
    inputs |= {"softcap": np.array(softcap, np.float32)} if softcap else {}
    seen = 0
    for graph, outputs in answers(graphs(name), inputs):
        seen += 1
        if is_answer({"output": outputs["output"]}):
            assert not wrong(name, inputs, {"output": outputs["output"]}), graph
    assert seen >= 2


@pytest.mark.parametrize("name", INNER_PRODUCTS)
def test_one_row_of_a_batch_that_overflows_harms_no_other(graphs, name):
    inputs = draw(BLOCKS[name], SIZES["distinct"], Given())
    inputs["query"][0] *= 1e30
    inputs["key"][0] *= 1e30
    for graph, outputs in answers(graphs(name), inputs):
        assert np.isnan(outputs["output"][0]).any(), graph
        assert np.isfinite(outputs["output"][1]).all(), graph


@settings(max_examples=40)
@given(exponents=st.tuples(*2 * [st.floats(-44, 37)]), seed=st.integers(0, 2**32))
def test_cosine_of_any_length(graphs, exponents, seed):
    """Each vector has a length of its own, subnormal numbers among them; every answer is right."""
    rng = np.random.default_rng(seed)
    inputs = draw(BLOCKS["cosine"], SIZES["distinct"], Given(), seed)
    for name, exponent in zip(("query", "key"), exponents, strict=True):
        lengths = 10.0 ** rng.uniform(*sorted((exponent, rng.uniform(-44, 37))), (*inputs[name].shape[:-1], 1))
        inputs[name] = (inputs[name] * lengths).astype(np.float32)
    for graph, outputs in answers(graphs("cosine"), inputs):
        assert is_answer(outputs), graph
        assert not wrong("cosine", inputs, outputs), graph


@pytest.mark.parametrize(("query", "key"), [(-200, 0), (0, -200), (-200, -90), (1e38, 1e38), (-200, 1e30), (1e20, -99)])
@pytest.mark.parametrize("lengths", [None, [3, 0]])
def test_linear_far_from_zero(graphs, query, key, lengths):
    """phi of a query or of all keys is below or beyond float32; their ratios, the weights, are not."""
    inputs = draw(BLOCKS["linear"], SIZES["distinct"], Given())
    inputs["query"] = (inputs["query"] * max(1, abs(query) / 1e3) + query).astype(np.float32)
    inputs["key"] = (inputs["key"] * max(1, abs(key) / 1e3) + key).astype(np.float32)
    if lengths:
        inputs["nonpad_kv_seqlen"] = np.array(lengths)
        inputs["key"][0, :, 3:] = 3e38  # padding
    exact = BLOCKS["linear"].reference(Linear(), inputs, np.float64)
    seen = 0
    for graph, outputs in answers(graphs("linear"), inputs):
        for name in outputs.keys() - {"scores"}:
            seen += 1
            np.testing.assert_allclose(outputs[name], exact[name], rtol=3e-5, atol=3e-5, err_msg=f"{graph} {name}")
    assert seen >= 3


def test_linear_keys_lost_beside_a_later_one(graphs):
    """A query that sees only keys whose part in the sums underflows has no answer; zeros would be a wrong one."""
    inputs = draw(BLOCKS["linear"], SIZES["distinct"], Given(parameters={"is_causal": True}))
    inputs["key"][:, :, 0] = -200
    for graph, outputs in answers(graphs("linear"), inputs):
        assert np.isnan(outputs["output"][:, :, 0]).all(), graph
        assert np.isfinite(outputs["output"][:, :, 1:]).all(), graph


@pytest.mark.parametrize("bandwidth", [1e-6, 1e-3, 1e25, 1e30])
def test_kernel_of_any_bandwidth(graphs, bandwidth):
    """Its square is below or beyond float32."""
    inputs = draw(BLOCKS["kernel"], SIZES["distinct"], Given())
    plain = inputs | {"bandwidth": np.array(1, np.float32)}
    inputs = {name: (x * bandwidth).astype(np.float32) if name != "value" else x for name, x in inputs.items()}
    inputs["bandwidth"] = np.array(bandwidth, np.float32)
    for graph, outputs in answers(graphs("kernel"), inputs):
        assert is_answer(outputs), graph
        expected = dict(answers(graphs("kernel"), plain))[graph]
        np.testing.assert_allclose(outputs["weights"], expected["weights"], atol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_stack_over_x_that_overflows(norm):
    """Squares of a layer norm overflow, its answer would be the bias: it is NaN instead."""
    config = TransformerConfig(8, 2, 1, 8, norm=norm, final_norm=True)
    block = encoder.encoder(config)
    model = export_graph(block, block.build(), ["x"], ["output"])
    run = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = draw(block, SIZES["distinct"], Given())["x"]
    exact = block.reference(block.build(), {"x": x}, np.float64)["output"]
    np.testing.assert_allclose(run.run(["output"], {"x": x})[0], exact, atol=1e-5)
    for magnitude in (1e19, 1e25, 1e37):
        (output,) = run.run(["output"], {"x": (x * magnitude).astype(np.float32)})
        assert np.isnan(output).any(axis=(1, 2)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cosine_in_half_precision(dtype):
    """From the least number of the type to the largest."""
    block = replace(BLOCKS["cosine"], dtype=dtype)
    module = block.build()
    checked = 0
    for example, drawn in examples(block, ["distinct", "one_query"]):
        if "lengths" in example:
            inputs = rounded(drawn, dtype)
            exact = block.reference(module, inputs, np.float64)
            found = in_torch(block, module, inputs)
            eps = torch.finfo(getattr(torch, dtype)).eps
            for name in ("weights", "scores"):
                assert largest_error(found[name], exact[name]) < 4 * eps, f"{example} {name}"
            assert np.abs(inputs["query"]).max() > 1e4
            checked += 1
    assert checked == 4


def test_a_budget_that_is_no_number_proves_nothing():
    assert not Check("model", "x", "output", 1.0, np.inf).ok
    assert Check("model", "x", "output", 1.0, 1.0).ok
