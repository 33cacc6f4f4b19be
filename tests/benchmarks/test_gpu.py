"""The command for a machine with a GPU, with the CPU in its place; and the report of lines as a GPU gives them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest

from benchmarks.gpu import engine, report
from benchmarks.gpu.cells import LENGTHS, Engine, Http
from benchmarks.gpu.check_block import nodes_on_cpu
from benchmarks.gpu.clock import busy
from benchmarks.gpu.opened import open_model
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.worker import WorkerFailed, run_worker
from models.catalogue import BLOCKS

ROOT = Path(__file__).parents[2]
WITHOUT_CUDA = pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this ONNX Runtime has CUDA"
)
TRIAL = ["--provider", "cpu", "--quick"]
ABOUT = {"command": "c", "quick": False, "dtypes": ["bfloat16"], "provider": "cuda", "machine": {}, "versions": {}}


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.extended
def test_the_command_measures_and_goes_on(two_blocks, tmp_path):
    out = tmp_path / "out.jsonl"
    asked = [*TRIAL, "--blocks", "dot_product", "--repository", two_blocks, "--out", out, "--parts"]
    done = bench(*asked, "numbers", "engine", "http")
    assert done.returncode == 0, done.stderr
    run, *rows = map(json.loads, out.read_text().splitlines())
    assert run["provider"] == "cpu"
    numbers, *timed, over_http = rows
    assert numbers["cell"] == "numbers/dot_product"
    assert numbers["checks"] > 300
    assert 0 < numbers["worst"] <= 1
    assert numbers["nodes"]["model"].startswith("CPU ")
    assert [row["path"] for row in timed] == ["output", "weights", "output"]
    for row in timed:
        assert set(row["error"]) == {"output", "weights"} - ({"weights"} if row["path"] == "output" else set())
        assert all(0 < row["error"][of] <= row["allowed"][of] for of in row["error"])
        assert all(len(of) == engine.REPEATS and min(of) > 0 for of in row["wall_ms"].values())
        assert len(row["wall_ms"]) > 1
    assert over_http["provider"]["requests"] > 10
    assert over_http["ratio"]["median"] > 0
    text = out.with_suffix(".md").read_text()
    assert "**A trial: the CPU in place of a GPU, small sizes." in text
    assert "| float32 on the provider |  | " in text
    assert "| ≤ 1.15 |" in text
    assert "| ≥ 5 |" in text
    assert {plot.stem for plot in tmp_path.glob("*.png")} == {"out-gates", "out-engine", "out-http"}
    again = bench(*asked, "numbers", "engine")
    assert again.returncode == 0, again.stderr
    assert "numbers: all 1 are in the file" in again.stderr
    assert len(out.read_text().splitlines()) == 1 + len(rows) + 1


@pytest.mark.extended
def test_tf32_in_place_of_float32_is_noticed(repository, tmp_path):
    """Inputs of MatMul with ten bits of their fractions: all that TF32 keeps, and float16 too."""
    shutil.copytree(repository / "dot_product", tmp_path / "models" / "dot_product")
    for file in (tmp_path / "models").rglob("*.onnx"):
        if file.stem != "model":
            file.unlink()
    (file,) = (tmp_path / "models").rglob("*.onnx")
    model = onnx.load(file)
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
    onnx.save(model, file)
    out = tmp_path / "out.jsonl"
    asked = ["--parts", "numbers", "--blocks", "dot_product", "--repository", tmp_path / "models", "--out", out]
    done = bench(*TRIAL, *asked)
    assert done.returncode == 1, done.stderr
    assert "| float32 on the provider |" in (text := out.with_suffix(".md").read_text())
    assert "**not met**" in text
    (row,) = Rows(out).part("numbers").values()
    assert row["where"].startswith("model full precision scores: error 0.000244, allowed 0")
    assert row["wrong_count"] > 1


@pytest.mark.extended
@WITHOUT_CUDA
def test_without_a_gpu_it_says_so(tmp_path):
    done = bench("--out", tmp_path / "out.jsonl")
    assert done.returncode == 2
    assert "this ONNX Runtime is built without CUDA" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.extended
def test_what_cannot_be_measured_is_told(tmp_path):
    asked = {"block": "linear", "dtype": "float32", "short": True, "repository": str(tmp_path), "provider": "cpu"}
    with pytest.raises(WorkerFailed, match="linear is not in the repository"):
        list(run_worker("benchmarks.gpu.check_block", asked, 60))


def test_what_is_left_to_the_cpu_is_told(repository):
    model = open_model(repository, "dot_product", "cpu")
    assert nodes_on_cpu(model, ["plain"]) == ["plain: 2 MatMul on the CPU", "plain: 1 Softmax on the CPU"]


def test_the_time_of_a_device_is_counted_once():
    assert busy([(5, 6), (0, 2), (1, 3), (1.5, 2), (5, 5.5)]) == 4


def timed(heed, flash, cudnn, **change):
    return {
        "device_ms": {"heed": heed, "flash": flash, "cudnn": cudnn}, "kernels": {"heed": ["a"], "cudnn": ["b"]},
        "wall_ms": {"heed": heed, "flash": flash, "cudnn": cudnn}, "memory_mib": {"heed": 3, "cudnn": 2},
        "graph": "cuda", "error": {"output": 1e-3}, "allowed": {"output": 2e-3}, "no_device_clock": "",
        "cannot": {"efficient": "no"}, "wrong": [], **change,
    }  # fmt: skip


def test_the_report_judges(tmp_path):
    rows = Rows(tmp_path / "out.jsonl")
    rows.begin(**ABOUT)
    cells = [Engine("output", "bfloat16", False, 8, 16, n, 64) for n in LENGTHS[:3]]
    half = Engine("output", "float16", False, 8, 16, LENGTHS[0], 64)
    rows.add(cells[0], **vars(cells[0]), **timed([1, 1.1, 1.2], [3, 3, 3], [1, 1, 1]))
    rows.add(cells[1], **vars(cells[1]), **timed([2, 2, 2], [1, 1, 1], [9, 9, 9], wrong=["output: error 1"]))
    rows.add(cells[2], failed="out of memory")
    rows.add(half, **vars(half), **timed([9, 9, 9], [1, 1, 1], [1, 1, 1]))
    at = Http("binary", "output", 1, 16, 2048, 8, 4.0, 2)
    told = {"rate": 50.0, "p50": 1.0, "p99": 2.0, "requests": 9, "notes": [], "server_side": None}
    ratio = {"median": 6.0, "low": 5.5, "high": 6.5}
    rows.add(at, **vars(at), provider=told, cpu=told, ratio=ratio)
    text = report.render(rows.file).read_text()
    for line in (
        f"| time against torch's cudnn | {cells[0]} | 1.1 (1 to 1.2) | ≤ 1.15 | met, of 3 |",
        f"| time against torch's flash | {cells[1]} | 2 (2 to 2) | ≤ 1.15 | **not met**, of 3 |",
        f"|  | {cells[2]} |  |  | not measured: it failed |",
        f"| rate against the CPU's | {at} | 6 (5.5 to 6.5) | ≥ 5 | met, of 2 |",
        f"| bfloat16 on the provider |  |  | none wrong | not measured in full: 0 of {len(BLOCKS)} blocks |",
        f"- {cells[1]}: output: error 1",
        f"- {cells[2]}: out of memory",
        "- efficient: no (output/bfloat16/8x16x512x64, output/bfloat16/8x16x1024x64, output/float16/8x16x512x64)",
    ):
        assert line in text.splitlines() or line in text, line
    assert str(half) not in text.partition("![gates]")[0]  # it has no gate
    assert "A trial" not in text


def test_what_another_code_measured_is_measured_again(tmp_path):
    rows = Rows(tmp_path / "out.jsonl")
    rows.begin(**ABOUT)
    rows.add("engine/a", found=1)
    rows.add("engine/b", failed="why")
    assert [Rows(rows.file).has(f"engine/{of}") for of in "abc"] == [True, False, False]
    other = rows.file.read_text().replace(rows.runs[0]["code"], "another")
    rows.file.write_text(other)
    renewed = Rows(rows.file)
    renewed.begin(**ABOUT)
    assert not renewed.has("engine/a")
    with pytest.raises(ValueError, match="runs with quick False; choose another --out"):
        renewed.begin(**ABOUT | {"quick": True})
