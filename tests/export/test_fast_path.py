"""The fast paths agree with the reference and model.onnx over several blocks, and where all keys are masked."""

import functools
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from export.blocks_kernel import ROWS
from export.fast_path import ATTENTION, fast_paths
from export.masked_kernel import CELLS, MASKED_ROWS
from export.verification import error_budget, input_names, largest_error, session, without_fixed
from models.catalogue import BLOCKS
from tests.support.fast_path_cases import CASES, drawn

PAST = ("past_key", "past_value")


@functools.cache
def opened(folder: Path, path: str) -> onnxruntime.InferenceSession:
    """The session of a graph, opened once for all cases."""
    return session((folder / f"{path}.onnx").read_bytes())


@pytest.mark.parametrize("name", ["dot_product", "scaled_dot_product", "multi_head"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("m", "n"), [(1, 300), (2 * ROWS + 3, 2 * ROWS + 3), (300, 90), (ROWS, 500)])
def test_every_fast_path_agrees_with_the_reference_and_the_canonical_graph(name, case, m, n, repository):
    block, module = BLOCKS[name], BLOCKS[name].build()
    inputs = drawn(name, m, n, CASES[case])

    def refer(given, dtype):
        return block.reference(module, given, dtype)

    exact, budget = refer(inputs, np.float64)["output"], error_budget(refer, inputs, draws=3)["output"]
    folder = repository / name / "1"
    canonical = opened(folder, "model").run(["output"], inputs)[0]
    served = []
    for path, fast_path in ATTENTION.items():
        run = opened(folder, path)
        given = without_fixed(inputs, fast_path.fixes)
        if given is None or not given.keys() <= input_names(run):
            continue
        got = run.run(None, given)[0]
        assert largest_error(got, exact) <= budget, path
        assert largest_error(got, canonical) <= 2 * budget, path
        served.append(path)
    assert "blocks" in served


MASKS = [(1, 1, 1, 1), (1, 1, 1, 0), (1, 2, 0, 1), (2, 1, 0, 0), (2, 2, 0, 0)]
OF_MOST_ROWS = [((2, 2, MASKED_ROWS + 77, 300), mask) for mask in MASKS]
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
    block = BLOCKS["scaled_dot_product"]
    module = block.build()

    @functools.cache  # the inputs are the same in each call
    def by(dtype):
        return block.reference(module, inputs, dtype)

    exact = by(np.float64)["output"]
    budget = error_budget(lambda _, dtype: by(dtype), inputs, draws=1)["output"]
    actual = opened(repository / "scaled_dot_product" / "1", "masked").run(None, inputs)[0]
    assert largest_error(actual, exact) <= budget
    assert rows or not actual[:, :, -1].any()


@pytest.mark.parametrize("name", [name for name, block in BLOCKS.items() if fast_paths(block)])
def test_a_fast_path_describes_itself(name, repository):
    for path, fast_path in fast_paths(BLOCKS[name]).items():
        run = session(repository / name / "1" / f"{path}.onnx")
        card = json.loads(run.get_modelmeta().custom_metadata_map["heed"])
        assert (card["block"], card["fast_path"]) == (name, path)
        assert {key: card[key] for key in fast_path.card()} == fast_path.card()
        assert [out.name for out in run.get_outputs()] == fast_path.graph(BLOCKS[name])[1]


STACKED = {
    "plain": {},
    "padded": {"nonpad_kv_seqlen": np.array([0, 1, 200])},
    "mask": {"attn_mask": np.where(np.arange(333) % 3, 0, -np.inf).astype(np.float32)[None, None, None]},
    "past": {name: np.random.default_rng(0).standard_normal((2, 3, 4, 21, 8), np.float32) for name in PAST},
}


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in ("encoder", "decoder") for case in STACKED])
def test_every_layer_of_a_stack_takes_the_path(name, case, repository):
    block, module = BLOCKS[name], BLOCKS[name].build()
    inputs = {"input_ids": np.random.default_rng(1).integers(0, 100, (3, 333)), **STACKED[case]}
    if not inputs.keys() <= block.inputs.keys():
        pytest.skip(f"the {name} has no such option")

    def refer(given, dtype):
        return block.reference(module, given, dtype)

    exact, budget = refer(inputs, np.float64), error_budget(refer, inputs, draws=1)
    served = set()
    for path in fast_paths(block):
        run = opened(repository / name / "1", path)
        if inputs.keys() <= input_names(run):
            names = [value.name for value in run.get_outputs()]
            for output, got in zip(names, run.run(names, inputs), strict=True):
                assert largest_error(got, exact[output]) <= budget[output], (path, output)
            served.add(path)
    expected = {"padded": {"padded"}, "plain": {"flash", "padded"} if name == "encoder" else {"causal"}}
    assert served == {"output"} | expected.get(case, set())
