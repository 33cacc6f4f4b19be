"""The fast paths for CUDA, run on the CPU, which has the same operators."""

import json

import numpy as np
import onnx
import pytest

from export.fast_path import CUDA, fast_paths
from export.graph import export_graph
from export.rounding import rounding_twin
from export.verification import error_budget, in_torch, input_names, largest_error, rounded, session, without_fixed
from models.catalogue import BLOCKS
from models.precision import in_precision
from tests.support.fast_path_cases import CASES, drawn

SERVED = {
    "plain": {"fused", "fused_padded", "fused_masked"},
    "causal": {"fused_causal"},
    "padded": {"fused_padded"},
    "mask": {"fused_masked"},
    "mask of queries": {"fused_masked"},
}


@pytest.mark.parametrize("case", SERVED)
@pytest.mark.parametrize(("m", "n"), [(1, 70), (130, 130), (70, 33)])
def test_every_fused_path_agrees_with_the_reference(case, m, n, fused):
    block, module = BLOCKS["scaled_dot_product"], BLOCKS["scaled_dot_product"].build()
    inputs = drawn(block.name, m, n, CASES[case])

    def refer(given, dtype):
        return block.reference(module, given, dtype)

    exact, budget = refer(inputs, np.float64)["output"], error_budget(refer, inputs, draws=3)["output"]
    served = set()
    for path, fast_path in CUDA.items():
        run = session(fused / f"{path}.onnx")
        given = without_fixed(inputs, fast_path.fixes)
        if given is None or not given.keys() <= input_names(run):
            continue
        assert largest_error(run.run(None, given)[0], exact) <= budget, path
        served.add(path)
    assert served == SERVED[case]


def test_a_row_without_keys_is_zero_in_the_padded_path(fused):
    inputs = drawn("scaled_dot_product", 5, 9, CASES["padded"])
    actual = session(fused / "fused_padded.onnx").run(None, inputs)[0]
    assert not actual[0].any()
    assert actual[1:].any()


@pytest.mark.parametrize("path", ["fused_padded", "fused_masked"])
def test_the_rounding_twin_of_a_fused_path_in_bfloat16(path, tmp_path):
    block, case = in_precision(BLOCKS["dot_product"], "bfloat16"), CASES["padded" if path == "fused_padded" else "mask"]
    fast_path, module = fast_paths(block)[path], block.build()
    graph = export_graph(block, module, *fast_path.graph(block), fast_path)
    assert {opset.domain: opset.version for opset in graph.opset_import}[""] == 24
    run = session(rounding_twin(graph, tmp_path).SerializeToString())
    inputs = rounded(drawn("dot_product", 33, 40, case), "bfloat16")

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


def test_the_metadata_of_a_fused_path_names_cuda(fused):
    for path, fast_path in CUDA.items():
        entries = onnx.load(fused / f"{path}.onnx").metadata_props
        card = json.loads(next(entry.value for entry in entries if entry.key == "heed"))
        assert (card["fast_path"], card["provider"]) == (path, "cuda")
        assert card["fixes"] == dict(fast_path.fixes)
