"""Every graph of every block, on inputs from 1e-38 to 3e38: correct, or not finite, which the service rejects."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from export.graphs.graph import export_graph
from export.verification.budget import error_budget, largest_error, rounded
from export.verification.checks import Check, in_torch, without_fixed
from export.verification.sessions import Arrays, input_names, run_outputs, session
from models import encoder
from models.block import Block
from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, ExampleOptions, draw, examples
from models.linear import Linear
from models.transformer import TransformerConfig
from tests.support.attending import MODULES

SMALL = [
    {"layers": 2, "batch": 1, "heads": 1, "kv_heads": 1, "m": 1, "n": 2, "past": 1, "d_k": 2, "d_v": 1},
    {"layers": 2, "batch": 2, "heads": 2, "kv_heads": 1, "m": 3, "n": 4, "past": 2, "d_k": 16, "d_v": 16},
]
EXPONENT = 38  # float32 reaches from 1e-38 to 3e38
MODERATE = 4  # nothing overflows where no exponent is beyond
ULPS, NEAR = 16, 1e-5
WEIGHED = ("output", "weights", "cross_weights")  # what follows from scores
LARGEST, LEAST = (float(number) for number in (np.finfo(np.float32).max, np.finfo(np.float32).tiny))


@st.composite
def inputs_of(draw_, block: Block) -> tuple[dict[str, np.ndarray], bool]:
    """Inputs whose tensors are each of a magnitude of its own; and whether all are moderate."""
    known = {
        name: given
        for name, given in OPTIONS.items()
        if {*given.tensors, *given.parameters} <= block.inputs.keys() and not given.lengths
    }
    given = known[draw_(st.sampled_from(sorted(known)))]
    sizes = draw_(st.sampled_from(SMALL))
    inputs = draw(block, sizes, given, draw_(st.integers(0, 2**32)))
    moderate = True
    for name, of in block.inputs.items():
        if name in inputs and inputs[name].ndim and of.dtype == "float32" and not of.mask:
            exponent = draw_(st.floats(-EXPONENT, EXPONENT))
            moderate = moderate and abs(exponent) <= MODERATE
            scaled = inputs[name].astype(np.float64) * 10.0**exponent
            inputs[name] = np.clip(scaled, -LARGEST, LARGEST).astype(np.float32)
    return inputs, moderate


def is_answer(outputs: Arrays) -> bool:
    """What the native API answers; it refuses all else."""
    return all(
        np.isfinite(x).all() or (name in ("scores", "lse") and (x < np.inf).all()) for name, x in outputs.items()
    )


def wrong(name: str, inputs: Arrays, outputs: Arrays) -> dict[str, tuple[float, float]]:
    """The outputs further from the float64 reference than rounding explains: the error, and what is allowed.

    Rounding is a few units in the last place of the inputs, carried through the formula, or the error of plain float32
    numpy; a score past the largest float32 may be -inf. A score is itself rounded, by a unit in the last place, and a
    weight changes by as large a part: two keys whose projections are equal, as of the bias alone, may differ by it.
    """

    def refer(given: Arrays, dtype: Any) -> dict[str, np.ndarray]:
        with np.errstate(all="ignore"):
            return BLOCKS[name].reference(MODULES[name], given, dtype)

    exact = refer(inputs, np.float64)
    rng = np.random.default_rng(0)
    spread = dict.fromkeys(outputs, 0.0)
    for _ in range(6):
        moved = {key: _moved(x, rng) if BLOCKS[name].inputs[key].shape else x for key, x in inputs.items()}
        for output, x in refer(moved, np.float64).items():
            if output in outputs:
                spread[output] = max(spread[output], largest_error(x, exact[output]))
    with np.errstate(all="ignore"):
        budgets = error_budget(refer, inputs)
    scores = exact.get("scores", np.zeros(1))
    unit = np.finfo(np.float32).eps * np.abs(scores[np.isfinite(scores)]).max(initial=0.0)
    exceeding = {}
    for output, x in outputs.items():
        truth = exact[output].reshape(x.shape)
        if output == "scores":
            truth = np.where(truth < -LARGEST, -np.inf, truth)
        largest = np.abs(truth[np.isfinite(truth)]).max(initial=0.0)
        budget = budgets[output] if np.isfinite(budgets[output]) else 0.0
        near = NEAR + (np.expm1(min(2 * unit, 1.0)) if output in WEIGHED else 0.0)
        allowed = max(4 * spread[output] + near * largest, budget) + 100 * LEAST
        error = largest_error(x.astype(np.float64), truth)
        if error > allowed:
            exceeding[output] = (error, allowed)
    return exceeding


def _moved(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if x.dtype != np.float32:
        return x
    return x * (1 + ULPS * np.finfo(np.float32).eps * rng.uniform(-1, 1, x.shape))


INNER_PRODUCTS = ["scaled_dot_product", "dot_product", "luong_dot"]


@pytest.fixture(scope="module")
def graphs(repository):
    """A function from a block's name to its sessions, with the parameters that each graph fixes."""

    @cache
    def opened(name):
        runs = {file.stem: session(file) for file in sorted((repository / name / "1").glob("*.onnx"))}
        specs = {stem: json.loads(run.get_modelmeta().custom_metadata_map["heed"]) for stem, run in runs.items()}
        return {stem: (run, specs[stem].get("fixes", {})) for stem, run in runs.items() if "feature" not in specs[stem]}

    return opened


def outputs_by(graphs, inputs):
    """The name and the outputs of every graph that has these inputs."""
    for graph, (run, fixes) in graphs.items():
        feeds = without_fixed(inputs, fixes)
        if feeds is not None and feeds.keys() <= input_names(run):
            yield graph, run_outputs(run, [output.name for output in run.get_outputs()], feeds)


@pytest.mark.parametrize("draws", [4, pytest.param(15, marks=pytest.mark.extended)])
@pytest.mark.parametrize("name", BLOCKS)
def test_correct_or_not_finite(graphs, name, draws):
    opened = graphs(name)

    @settings(max_examples=draws)
    @given(drawn=inputs_of(BLOCKS[name]))
    def check(drawn):
        inputs, moderate = drawn
        for graph, outputs in outputs_by(opened, inputs):
            visible = {output: x for output, x in outputs.items() if is_answer({output: x})}
            assert not wrong(name, inputs, visible), graph
            assert not moderate or visible.keys() == outputs.keys(), graph

    check()


@pytest.mark.parametrize("name", INNER_PRODUCTS)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_sum_with_partial_sums_that_overflow(graphs, name, softcap):
    """The score of the first key is 3e38, but its first two products are -6e38: -inf would be a weight of 0."""
    rng = np.random.default_rng(0)
    query = np.full((1, 1, 1, 8), 1e19 * 8 ** (0.5 * (name == "scaled_dot_product")), np.float32)
    key = np.zeros((1, 1, 16, 8), np.float32)
    key[..., 0, :5] = np.array([-3e19, -3e19, 3e19, 3e19, 3e19])
    inputs = {"query": query, "key": key, "value": rng.standard_normal((1, 1, 16, 8), np.float32)}
    inputs |= {"softcap": np.array(softcap, np.float32)} if softcap else {}
    answers = {graph: {"output": outputs["output"]} for graph, outputs in outputs_by(graphs(name), inputs)}
    assert len(answers) >= 2
    assert not {graph for graph, answer in answers.items() if is_answer(answer) and wrong(name, inputs, answer)}


@pytest.mark.parametrize("name", INNER_PRODUCTS)
def test_an_overflow_stays_in_its_row_of_the_batch(graphs, name):
    inputs = draw(BLOCKS[name], SIZES["distinct"], ExampleOptions())
    inputs["query"][0] *= 1e30
    inputs["key"][0] *= 1e30
    for graph, outputs in outputs_by(graphs(name), inputs):
        assert np.isnan(outputs["output"][0]).any(), graph
        assert np.isfinite(outputs["output"][1]).all(), graph


@pytest.mark.parametrize("name", INNER_PRODUCTS)
def test_an_overflow_with_a_later_key_is_no_zero_of_an_earlier_query(graphs, name):
    """As causal kernels make of a query of NaN: binary answers of V2 had these zeros."""
    inputs = draw(BLOCKS[name], SIZES["distinct"], ExampleOptions())
    count = min(inputs["query"].shape[-2], inputs["key"].shape[-2])
    inputs = {axis: tensor[..., :count, :].copy() for axis, tensor in inputs.items()}
    inputs["is_causal"] = np.array(True)
    inputs["key"][0, ..., -1, :] = 3e38
    causal = 0
    for graph, outputs in outputs_by(graphs(name), inputs):
        causal += "causal" in str(graph)
        assert np.isnan(outputs["output"][0]).all(), graph
        assert np.isfinite(outputs["output"][1]).all(), graph
    assert causal


@pytest.mark.parametrize(("query", "key"), [(-200, 0), (0, -200), (-200, -90), (1e38, 1e38), (-200, 1e30), (1e20, -99)])
@pytest.mark.parametrize("lengths", [None, [3, 0]])
def test_linear_far_from_zero(graphs, query, key, lengths):
    """phi of a query or of all keys is out of float32's range; their ratios, the weights, are not."""
    inputs = draw(BLOCKS["linear"], SIZES["distinct"], ExampleOptions())
    inputs["query"] = (inputs["query"] * max(1, abs(query) / 1e3) + query).astype(np.float32)
    inputs["key"] = (inputs["key"] * max(1, abs(key) / 1e3) + key).astype(np.float32)
    if lengths:
        inputs["nonpad_kv_seqlen"] = np.array(lengths)
        inputs["key"][0, :, 3:] = 3e38  # padding
    exact = BLOCKS["linear"].reference(Linear(), inputs, np.float64)
    results = list(outputs_by(graphs("linear"), inputs))
    assert len(results) >= 2
    for graph, outputs in results:
        for name in outputs.keys() - {"scores"}:
            np.testing.assert_allclose(outputs[name], exact[name], rtol=3e-5, atol=3e-5, err_msg=f"{graph} {name}")


def test_linear_keys_that_underflow_beside_a_later_one(graphs):
    """A query whose keys all underflow in the sums has an output of NaN; zeros would be wrong."""
    inputs = draw(BLOCKS["linear"], SIZES["distinct"], ExampleOptions(parameters={"is_causal": True}))
    inputs["key"][:, :, 0] = -200
    for graph, outputs in outputs_by(graphs("linear"), inputs):
        assert np.isnan(outputs["output"][:, :, 0]).all(), graph
        assert np.isfinite(outputs["output"][:, :, 1:]).all(), graph


@pytest.mark.parametrize("bandwidth", [1e-6, 1e-3, 1e25, 1e30])
def test_kernel_of_any_bandwidth(graphs, bandwidth):
    """The square of the bandwidth is out of float32's range."""
    inputs = draw(BLOCKS["kernel"], SIZES["distinct"], ExampleOptions())
    plain = inputs | {"bandwidth": np.array(1, np.float32)}
    inputs = {name: (x * bandwidth).astype(np.float32) if name != "value" else x for name, x in inputs.items()}
    inputs["bandwidth"] = np.array(bandwidth, np.float32)
    for graph, outputs in outputs_by(graphs("kernel"), inputs):
        assert is_answer(outputs), graph
        expected = dict(outputs_by(graphs("kernel"), plain))[graph]
        np.testing.assert_allclose(outputs["weights"], expected["weights"], atol=1e-5)


@pytest.mark.parametrize("norm", ["pre", pytest.param("post", marks=pytest.mark.extended)])
def test_a_stack_over_x_that_overflows(norm):
    """Where squares of a layer norm overflow, the output is NaN; torch would return the bias."""
    config = TransformerConfig(8, 2, 1, 8, norm=norm, final_norm=True)
    block = encoder.encoder(config)
    run = session(export_graph(block, block.build(), ["x"], ["output"]).SerializeToString())
    x = draw(block, SIZES["distinct"], ExampleOptions())["x"]
    exact = block.reference(block.build(), {"x": x}, np.float64)["output"]
    np.testing.assert_allclose(run.run(["output"], {"x": x})[0], exact, atol=1e-5)
    for magnitude in (1e19, 1e25, 1e37):
        (output,) = run.run(["output"], {"x": (x * magnitude).astype(np.float32)})
        assert np.isnan(output).any(axis=(1, 2)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cosine_in_half_precision(dtype):
    """Vectors with lengths over the whole range of the type."""
    block = replace(BLOCKS["cosine"], dtype=dtype)
    module = block.build()
    given = [rounded(x, dtype) for name, x in examples(block, ["distinct", "one_query"]) if "lengths" in name]
    assert len(given) == 4
    for inputs in given:
        assert np.abs(inputs["query"]).max() > 1e4
        exact, actual = block.reference(module, inputs, np.float64), in_torch(block, module, inputs)
        for name in ("weights", "scores"):
            assert largest_error(actual[name], exact[name]) < 4 * torch.finfo(getattr(torch, dtype)).eps, name


def test_a_check_with_an_infinite_budget_fails():
    assert not Check("model", "x", "output", 1.0, np.inf).ok
    assert Check("model", "x", "output", 1.0, 1.0).ok
