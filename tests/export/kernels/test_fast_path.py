"""The fast paths agree with the reference and model.onnx over several blocks of keys, and where all keys are masked.

Those for CUDA run on the CPU, which has the same operators.
"""

import functools
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from export.graphs.graph import export_graph
from export.kernels.blocks import ROWS
from export.kernels.fast_path import ATTENTION, CUDA, fast_paths
from export.kernels.masked import CELLS, MASKED_ROWS
from export.verification.budget import error_budget, largest_error, rounded
from export.verification.checks import in_torch, without_fixed
from export.verification.rounding import rounding_twin
from export.verification.sessions import input_names, session
from models.catalogue import BLOCKS
from models.precision import in_precision

CAUSAL = {"is_causal": True}
CASES = {
    "plain": {},
    "causal": CAUSAL,
    "window": {"left_window_size": 70},
    "causal window": CAUSAL | {"left_window_size": 70},
    "both windows": {"left_window_size": 0, "right_window_size": 5},
    "softcap": {"softcap": 2.0},
    "padded": {"nonpad_kv_seqlen": [0, 1, 200]},
    "causal padded": CAUSAL | {"nonpad_kv_seqlen": [0, 1, 200]},
    "past": {"past": 37},
    "causal past": CAUSAL | {"past": 37},
    "mask": {"mask": (3, 4, True, True)},
    "mask of keys": CAUSAL | {"mask": (3, 1, False, True)},
    "mask of queries": {"mask": (1, 4, True, False)},
}


def drawn(name: str, m: int, n: int, case: dict) -> dict[str, np.ndarray]:
    """Random inputs of a block with three batch rows; a mask with rows masks all keys for the last query."""
    rng = np.random.default_rng(m + n)

    def normal(*shape):
        return rng.standard_normal(shape, np.float32)

    kv_heads, d_k, d_v = 2, 24, 16
    inputs = {"query": normal(3, 2 * kv_heads, m, d_k), "key": normal(3, kv_heads, n, d_k)}
    inputs["value"] = normal(3, kv_heads, n, d_v)
    past = case.get("past", 0)
    if past:
        inputs |= {"past_key": normal(3, kv_heads, past, d_k), "past_value": normal(3, kv_heads, past, d_v)}
    if "mask" in case:
        batch, mask_heads, rows, keys = case["mask"]
        mask = normal(batch, mask_heads, m if rows else 1, past + n if keys else 1)
        mask[rng.random(mask.shape) < 0.4] = -np.inf
        mask[:, :, -1] = -np.inf if rows else mask[:, :, -1]
        inputs["attn_mask"] = mask
    for parameter in case.keys() - {"past", "mask"}:
        array = np.asarray(case[parameter], BLOCKS[name].inputs[parameter].dtype)
        inputs[parameter] = np.minimum(array, n) if parameter == "nonpad_kv_seqlen" else array
    return inputs


LENGTHS = [(2 * ROWS + 3, 2 * ROWS + 3), (300, 90)]
LENGTHS += [pytest.param(m, n, marks=pytest.mark.extended) for m, n in ((1, 300), (ROWS, 500))]
ON_CUDA = {
    "plain": {"fused", "fused_padded", "fused_masked"},
    "causal": {"fused_causal"},
    "padded": {"fused_padded"},
    "mask": {"fused_masked"},
    "mask of queries": {"fused_masked"},
}


@functools.cache
def opened(folder: Path, path: str) -> onnxruntime.InferenceSession:
    """The session of a graph, opened once for all cases."""
    return session((folder / f"{path}.onnx").read_bytes())


def referring(block):
    """The block's reference, as ``error_budget`` takes it."""
    module = block.build()
    return lambda given, dtype: block.reference(module, given, dtype)


def served(folder, paths, m, n, case):
    """The outputs, for a case, of the fast paths in ``folder`` that take them, each within its budget."""
    refer, inputs = referring(BLOCKS["scaled_dot_product"]), drawn("scaled_dot_product", m, n, CASES[case])
    exact, budget = refer(inputs, np.float64)["output"], error_budget(refer, inputs, draws=3)["output"]
    outputs = {}
    for path, fixes in paths.items():
        run, given = opened(folder, path), without_fixed(inputs, fixes)
        if given is not None and given.keys() <= input_names(run):
            outputs[path] = run.run(["output"], given)[0]
            assert largest_error(outputs[path], exact) <= budget, path
    return outputs


@pytest.mark.parametrize(("m", "n"), LENGTHS)
@pytest.mark.parametrize("case", CASES)
def test_every_fast_path_and_the_canonical_graph_agree_with_the_reference(case, m, n, repository):
    """Exports prove the same of every block, at fewer lengths; the canonical graph, "model", fixes nothing."""
    paths = {"model": {}} | {path: fast_path.fixes for path, fast_path in ATTENTION.items()}
    outputs = served(repository / "scaled_dot_product" / "1", paths, m, n, case)
    assert {"model", "blocks"} <= outputs.keys()


@pytest.mark.parametrize("case", ON_CUDA)
@pytest.mark.parametrize(("m", "n"), [(1, 70), (130, 130), (70, 33)])
def test_every_path_for_cuda_agrees_with_the_reference(case, m, n, fused):
    outputs = served(fused, {path: fast_path.fixes for path, fast_path in CUDA.items()}, m, n, case)
    assert outputs.keys() == ON_CUDA[case]
    if case == "padded":  # a row without keys is zero
        assert [bool(row.any()) for row in outputs["fused_padded"]] == [False, True, True]


@pytest.mark.parametrize("name", ["query", "key"])
@pytest.mark.parametrize("path", ["model", "causal"])
def test_a_nan_anywhere_is_not_taken_for_a_masked_key(path, name, repository):
    """A maximum of ONNX Runtime skips a NaN by its place, and a causal kernel returns zero for a query of NaN."""
    run = opened(repository / "scaled_dot_product" / "1", path)
    inputs = {each: np.ones((1, 1, 19, 8), np.float32) for each in ("query", "key", "value")}
    inputs |= {} if path == "causal" else {"is_causal": np.array(True)}
    for place in np.ndindex(19, 8):
        given = inputs | {name: inputs[name].copy()}
        given[name][0, 0, *place] = np.nan
        row = place[0]
        assert np.isnan(run.run(["output"], given)[0][0, 0, row : row + 1 if name == "query" else None]).all(), place


def with_maxima_of_cuda(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, in which the maximum of numbers that all are -inf is the lowest float, as cuDNN computes it."""
    lowest = numpy_helper.from_array(np.finfo(np.float32).min, "lowest")
    for graph in (model.graph, *model.functions):
        nodes = [helper.make_node("Constant", [], ["lowest float"], value=lowest)]
        for node in graph.node:
            nodes.append(node)
            if node.op_type == "ReduceMax":
                name, node.output[0] = node.output[0], f"{node.output[0]} of cuDNN"
                nodes.append(helper.make_node("Max", [node.output[0], "lowest float"], [name]))
        del graph.node[:]
        graph.node.extend(nodes)
    return model


@pytest.mark.parametrize(("path", "case"), [("model", "padded"), ("model", "mask"), ("fused_masked", "mask")])
def test_a_row_without_keys_is_zero_by_the_maxima_of_cuda(path, case, fused, repository):
    folder = repository / "scaled_dot_product" / "1" if path == "model" else fused
    run = session(with_maxima_of_cuda(onnx.load(folder / f"{path}.onnx")).SerializeToString())
    refer, inputs = referring(BLOCKS["scaled_dot_product"]), drawn("scaled_dot_product", 70, 33, CASES[case])
    exact, budget = refer(inputs, np.float64), error_budget(refer, inputs, draws=3)
    names = [output.name for output in run.get_outputs()]
    for name, found in zip(names, run.run(names, inputs), strict=True):
        assert largest_error(found, exact[name]) <= budget[name], name


@pytest.mark.parametrize(("path", "case"), [("fused_padded", "padded"), ("fused_masked", "mask")])
def test_the_rounding_twin_of_a_fused_path_in_bfloat16(path, case, tmp_path):
    block = in_precision(BLOCKS["dot_product"], "bfloat16")
    fast_path, module = fast_paths(block)[path], block.build()
    graph = export_graph(block, module, *fast_path.graph(block), fast_path)
    assert {opset.domain: opset.version for opset in graph.opset_import}[""] == 24
    run = session(rounding_twin(graph, tmp_path).SerializeToString())
    inputs = rounded(drawn("dot_product", 33, 40, CASES[case]), "bfloat16")

    def refer(given, dtype):
        return in_torch(block, module, given) if dtype == np.float32 else block.reference(module, given, dtype)

    exact = refer(inputs, np.float64)["output"]
    assert largest_error(run.run(None, inputs)[0], exact) <= error_budget(refer, inputs, 3, "bfloat16")["output"]


def test_half_blocks_have_fused_paths_and_none_of_the_cpu():
    for name, block in BLOCKS.items():
        half = fast_paths(in_precision(block, "float16"))
        assert "cpu" not in {fast_path.provider for fast_path in half.values()}
        assert "cuda" not in {fast_path.provider for fast_path in fast_paths(block).values()}
        on_cuda = {path for path, fast_path in fast_paths(block, cuda=True).items() if fast_path.provider == "cuda"}
        assert on_cuda == {path for path, fast_path in half.items() if fast_path.provider == "cuda"}
        assert bool(on_cuda) == any(fast_path.provider == "cpu" for fast_path in fast_paths(block).values()), name


MASKS = [(1, 2, 0, 1), (2, 2, 0, 0)]
OTHER_MASKS = [(1, 1, 1, 1), (1, 1, 1, 0), (2, 1, 0, 0)]
MOST_ROWS = 2, 2, MASKED_ROWS + 77, 300
OF_MOST_ROWS = [
    *((MOST_ROWS, mask) for mask in MASKS),
    *(pytest.param(MOST_ROWS, mask, marks=pytest.mark.extended) for mask in OTHER_MASKS),
]
OF_MOST_CELLS = [((1, 1, 300, CELLS // 290), (1, 1, 0, 0))]  # all masks would take ten times as long


@pytest.mark.parametrize(("sizes", "mask_sizes"), OF_MOST_ROWS + OF_MOST_CELLS)
def test_a_mask_over_several_blocks_of_queries(sizes, mask_sizes, repository):
    """The mask's first row is the lowest float, which masks no key, the last -inf; a size of 0 is the whole axis."""
    rng = np.random.default_rng(0)
    batch, heads, m, n = sizes
    rows = mask_sizes[2]
    mask = rng.standard_normal([one or whole for one, whole in zip(mask_sizes, sizes, strict=True)], np.float32)
    mask[rng.random(mask.shape) < 0.4] = -np.inf
    if not rows:
        mask[:, :, 0], mask[:, :, -1] = np.finfo(np.float32).min, -np.inf
    query = rng.standard_normal((batch, heads, m, 8), np.float32)
    key, value = rng.standard_normal((2, batch, 1, n, 8), np.float32)
    inputs = {"query": query, "key": key, "value": value, "attn_mask": mask}
    refer = referring(BLOCKS["scaled_dot_product"])
    exact, plain = (refer(inputs, dtype) for dtype in (np.float64, np.float32))
    budget = error_budget(lambda *_: plain, inputs, draws=1, exact=exact)["output"]
    actual = opened(repository / "scaled_dot_product" / "1", "masked").run(None, inputs)[0]
    assert largest_error(actual, exact["output"]) <= budget
    assert rows or not actual[:, :, -1].any()


def described(name, folder, paths):
    """The metadata and the outputs of each fast path are what they should be."""
    for path, fast_path in paths.items():
        run = opened(folder, path)
        spec = json.loads(run.get_modelmeta().custom_metadata_map["heed"])
        assert (spec["block"], spec["fast_path"]) == (name, path)
        assert {key: spec[key] for key in fast_path.spec()} == fast_path.spec()
        inputs, outputs = fast_path.graph(BLOCKS[name])
        assert input_names(run) == set(inputs)
        assert [output.name for output in run.get_outputs()] == outputs


@pytest.mark.parametrize("name", [name for name, block in BLOCKS.items() if fast_paths(block)])
def test_a_fast_path_describes_itself(name, repository, fused):
    described(name, repository / name / "1", fast_paths(BLOCKS[name]))
    if name == "scaled_dot_product":
        described(name, fused, CUDA)
