"""The command for a machine with a GPU, with the CPU in its place; and the report of rows as a GPU gives them."""

import json
import subprocess
import sys
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from benchmarks import ROOT
from benchmarks.gpu import report
from benchmarks.gpu.attention import LENGTHS, cell_name, errors
from benchmarks.gpu.clock import REPEATS, busy
from benchmarks.gpu.numbers import check, nodes_on_cpu
from benchmarks.gpu.repository import open_model
from benchmarks.gpu.rows import Rows, in_processes
from models.catalogue import BLOCKS

ABOUT = {"command": "c", "provider": "cuda", "machine": {}, "versions": {}}


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.extended
def test_the_command_measures_and_goes_on(two_blocks, tmp_path):
    out, models = tmp_path / "out.jsonl", tmp_path / "models"
    models.mkdir()
    (models / "float32").symlink_to(two_blocks)
    asked = ["--provider", "cpu", "--blocks", "dot_product", "--repository", models, "--out", out]
    done = bench(*asked)
    assert done.returncode == 0, done.stderr
    run, numbers, _, *timed, _ = map(json.loads, out.read_text().splitlines())
    assert run["provider"] == "cpu"
    assert numbers["cell"] == "numbers/dot_product"
    assert numbers["checks"] > 300
    assert 0 < numbers["worst"] <= 1
    assert numbers["nodes"].startswith("CPU ")
    assert [row["cell"].split("/")[1] for row in timed] == ["output", "weights", "causal"]
    for row in timed:
        assert set(row["error"]) == ({"output", "weights"} if "/weights/" in row["cell"] else {"output"})
        assert all(0 < error <= 1 for error in row["error"].values())
        assert all(len(ms) == REPEATS and min(ms) > 0 for ms in row["ms"].values())
    text = out.with_suffix(".md").read_text()
    assert "**A trial on the CPU." in text
    assert "| numbers in float32 |  | " in text
    assert "| ≤ 1.15 |" not in text  # of bfloat16
    again = bench(*asked)
    assert again.returncode == 0, again.stderr
    assert len(out.read_text().splitlines()) == 1 + 1 + 1 + 3 + 1 + 3  # a run and its two parts, with no cell


def test_tf32_in_place_of_float32_is_noticed(two_blocks, tmp_path):
    """Inputs of MatMul with ten bits of their fractions: all that TF32 keeps, and float16 too."""
    model = onnx.load(two_blocks / "dot_product" / "1" / "model.onnx")
    nodes = []
    for node in model.graph.node:
        for i, name in enumerate(node.input if node.op_type == "MatMul" else ()):
            half, node.input[i] = f"{node.name}_{i}_half", f"{node.name}_{i}_back"
            nodes.append(onnx.helper.make_node("Cast", [name], [half], to=onnx.TensorProto.FLOAT16))
            nodes.append(onnx.helper.make_node("Cast", [half], [node.input[i]], to=onnx.TensorProto.FLOAT))
        nodes.append(node)
    assert len(nodes) == len(model.graph.node) + 2 * 4
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    version = tmp_path / "dot_product" / "1"
    version.mkdir(parents=True)
    onnx.save(model, version / "model.onnx")
    (row,) = check(tmp_path, "cpu", "dot_product", "float32")
    assert row["where"].startswith("model full precision scores: error 0.000244, allowed 0")
    assert row["wrong_count"] > 1


@pytest.mark.skipif("CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this machine has CUDA")
@pytest.mark.extended
def test_without_a_gpu_it_says_so(tmp_path):
    done = bench("--out", tmp_path / "out.jsonl")
    assert done.returncode == 2
    assert "no GPU, or torch or ONNX Runtime is built without CUDA" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.extended
def test_a_failure_is_told(tmp_path):
    ((cell, row),) = in_processes(1, {("numbers/linear",): partial(check, tmp_path, "cpu", "linear", "float32")})
    assert cell == "numbers/linear"
    assert "model.onnx" in row["failed"]


def test_nodes_on_the_cpu_are_told(two_blocks):
    model = open_model(two_blocks, "dot_product", "cpu")
    assert {"plain: 2 MatMul on the CPU", "plain: 1 Softmax on the CPU"} <= {*nodes_on_cpu(model)}


def test_a_wrong_output_is_noticed():
    inputs = {name: torch.ones(1, 2, 3, 64) for name in ("query", "key", "value")}
    outputs = {"output": torch.ones(1, 2, 3, 64), "weights": torch.full((1, 2, 3, 3), 1 / 3)}
    assert max(errors("weights", inputs, outputs).values()) < 1e-6
    outputs["output"][0, 1, 2, 3] = torch.nan
    assert errors("weights", inputs, outputs)["output"] == np.inf
    assert errors("causal", inputs, outputs)["weights"] == pytest.approx(2 / 3)


def test_the_time_of_a_device_is_counted_once():
    assert busy([(5, 6), (0, 2), (1, 3), (1.5, 2), (5, 5.5)]) == 4


def test_the_report_judges(tmp_path):
    rows = Rows(tmp_path / "out.jsonl")
    rows.begin(**ABOUT)
    cells = [cell_name("output", "bfloat16", n) for n in LENGTHS[:3]]
    half = cell_name("output", "float16", LENGTHS[0])
    timed = {"dtype": "bfloat16", "graph": "cuda", "error": {"output": 0.5}, "wrong": []}
    rows.add(cells[0], **timed, ms={"heed": [1, 1.1, 1.2], "torch": [1, 1, 1]})
    rows.add(cells[1], **timed | {"wrong": ["output: error 1"]}, ms={"heed": [2, 2, 2], "torch": [1, 1, 1]})
    rows.add(cells[2], failed="out of\nmemory")
    rows.add(half, **timed, ms={"heed": [9], "torch": [1]})
    lines = report.render(rows).read_text().splitlines()
    for line in (
        f"| time against torch's | {cells[0]} | 1.1 (1 to 1.2) | ≤ 1.15 | met, of 3 |",
        f"| time against torch's | {cells[1]} | 2 (2 to 2) | ≤ 1.15 | **not met**, of 3 |",
        f"| time against torch's | {cells[2]} |  |  | not measured |",
        "| numbers in bfloat16 |  | 0 checks, 0 wrong | none wrong | "
        f"not measured in full: 0 of {len(BLOCKS)} blocks |",
        f"| {half} | cuda | 9 | 1 | 9 (9 to 9) | output 0.5 |",
        f"- {cells[1]}: output: error 1",
        f"- {cells[2]}: out of memory",
    ):
        assert line in lines
    assert [Rows(rows.file).has(cell) for cell in (cells[0], cells[2], "numbers/linear")] == [True, False, False]
