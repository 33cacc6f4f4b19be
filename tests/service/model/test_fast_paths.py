"""Which graph a request gets, what memory it is taken to need and truly needs, and its numbers over HTTP."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from service.model.calibration import warm_up
from service.model.loader import open_version
from service.ort.provider import Provider
from tests.support.attending import assert_close, attend, coded, post
from tests.support.server import serving

MB = 1 << 20
SDPA = "scaled_dot_product"


def model(repository, name=SDPA, provider="cpu"):
    return open_version(repository / name / "1", Provider(provider, "asked for"), 2)


def inputs(n, **more):
    x = np.zeros((1, 8, n, 64), np.float32)
    return {"query": x, "key": x, "value": x, **{name: np.asarray(value) for name, value in more.items()}}


def chosen(of, given, outputs=("output",)):
    spec = of.graph_for(given, outputs, of.bind(given)).spec
    return spec.fast_path if spec else "model"


MASK = {"attn_mask": np.zeros((1, 1, 1, 2048), np.float32)}


@pytest.mark.parametrize(
    ("n", "more", "outputs", "path"),
    [
        (2048, {}, ["output"], "flash"),
        (16, {}, ["output"], "plain"),
        (2048, {}, ["output", "weights"], "plain"),
        (2048, {"is_causal": False, "softcap": np.float32(0), "left_window_size": -1}, ["output"], "flash"),
        (2048, {"scale": np.float32(0.5)}, ["output"], "flash"),
        (2048, {"is_causal": True}, ["output"], "causal"),
        (16, {"is_causal": True}, ["output"], "causal"),
        (2048, {"is_causal": True}, ["output", "weights"], "weights"),
        (2048, {"is_causal": True, "left_window_size": 512}, ["output"], "blocks"),
        (16, {"is_causal": True, "left_window_size": 5}, ["output"], "weights"),
        (2048, {"softcap": np.float32(2)}, ["output"], "blocks"),
        (2048, {"nonpad_kv_seqlen": [7]}, ["output"], "padded"),
        (2048, {"nonpad_kv_seqlen": [7], "is_causal": False}, ["output"], "padded"),
        (2048, {"nonpad_kv_seqlen": [7], "is_causal": True}, ["output"], "blocks"),
        (2048, MASK, ["output"], "masked"),
        (2048, MASK | {"is_causal": False, "scale": np.float32(0.5)}, ["output"], "masked"),
        (2048, MASK | {"is_causal": True}, ["output"], "blocks"),
        (16, {"attn_mask": MASK["attn_mask"][..., :16]}, ["output"], "weights"),
        (2048, {}, ["output", "present_key"], "weights"),
        (16, {}, ["output", "lse"], "lse"),
        (2048, MASK, ["lse"], "lse"),
        (16, {"sinks": np.zeros(8, np.float32)}, ["output"], "model"),
        (2048, {"alibi_slopes": np.zeros(8, np.float32)}, ["output"], "model"),
        (2048, {"rope_theta": np.float32(0)}, ["output"], "flash"),
        (2048, {"rope_theta": np.float32(100)}, ["output"], "model"),
    ],
)
def test_the_path_a_request_gets(n, more, outputs, path, repository):
    assert chosen(model(repository), inputs(n, **more), outputs) == path


@pytest.mark.parametrize(
    ("name", "n", "more", "outputs", "path"),
    [
        ("encoder", 16, {}, ["output"], "output"),
        ("encoder", 300, {}, ["output"], "flash"),
        ("encoder", 300, {"nonpad_kv_seqlen": [250]}, ["output"], "padded"),
        ("encoder", 300, {"attn_mask": np.zeros((1, 1, 1, 300), np.float32)}, ["output"], "output"),
        ("encoder", 300, {}, ["output", "weights"], "plain"),
        ("encoder", 300, {"layers": [1]}, ["output", "weights"], "weights"),
        ("encoder", 300, {}, ["output", "hidden_states"], "model"),
        ("encoder", 300, {"head_mask": np.ones((2, 4), np.float32)}, ["output"], "model"),
        ("decoder", 16, {}, ["output"], "output"),
        ("decoder", 300, {}, ["output", "present_key", "present_value"], "causal"),
        ("decoder", 1, dict.fromkeys(("past_key", "past_value"), np.zeros((2, 1, 4, 9, 8))), ["present_key"], "output"),
    ],
)
def test_the_path_of_a_stack(name, n, more, outputs, path, repository):
    given = {"input_ids": np.ones((1, n), np.int64), **{key: np.asarray(value) for key, value in more.items()}}
    assert chosen(model(repository, name), given, outputs) == path


@pytest.mark.parametrize(
    ("more", "outputs", "path"),
    [
        ({}, ["output", "weights"], "plain"),
        ({}, ["output", "weights", "scores"], "weights"),
        ({"is_causal": True}, ["output", "weights"], "weights"),
        ({}, ["present_key"], "weights"),
        ({}, ["head_output"], "learned"),
        ({}, ["output", "weights", "weights_by_norm"], "learned"),
        ({"head_mask": np.ones((1, 8), np.float32)}, ["output"], "learned"),
        ({"sinks": np.zeros(8, np.float32)}, ["output"], "learned"),
        ({"rope_theta": np.float32(0)}, ["output", "weights"], "plain"),
        ({"q_proj_weight": np.zeros((64, 64), np.float32)}, ["output"], "model"),
    ],
)
def test_only_requests_for_rare_tensors_of_heads_run_the_graph_that_has_them(more, outputs, path, repository):
    x = np.zeros((1, 16, 64), np.float32)
    given = {"query": x, "key": x, "value": x, **{name: np.asarray(value) for name, value in more.items()}}
    assert chosen(model(repository, "multi_head"), given, outputs) == path


@pytest.mark.parametrize(
    ("name", "more", "path"),
    [
        ("linear", {}, "output"),
        ("linear", {"is_causal": False, "nonpad_kv_seqlen": [3]}, "output"),
        ("linear", {"is_causal": True, "nonpad_kv_seqlen": [3]}, "causal"),
        ("efficient", {"nonpad_kv_seqlen": [3]}, "output"),
        ("multiplicative", {"scale": np.float32(2), "is_causal": False, "nonpad_kv_seqlen": [3]}, "output"),
        ("multiplicative", {"is_causal": True}, "model"),
        ("luong_dot", {"scale": np.float32(2)}, "weights"),
        ("cosine", {"scale": np.float32(2)}, "weights"),
    ],
)
def test_the_path_of_a_block_without_weights(name, more, path, repository):
    assert chosen(model(repository, name), inputs(16, **more)) == path


def test_a_path_of_another_provider_is_left_aside(repository, monkeypatch):
    monkeypatch.setattr("service.model.loader.open_session", _on_cpu)
    on_cuda = model(repository, provider="cuda")
    assert chosen(on_cuda, inputs(2048)) == "plain"
    assert chosen(on_cuda, inputs(2048, is_causal=True)) == "weights"


def _on_cpu(file, _provider, threads, prepack=True):
    from service.ort.provider import open_session

    return open_session(file, Provider("cpu", "asked for"), threads, prepack)


@pytest.mark.parametrize(("name", "packed"), [("multi_head", "weights.onnx"), ("additive", "weights.onnx")])
def test_of_graphs_that_share_weights_the_common_one_packs_them(name, packed, repository, tmp_path, monkeypatch):
    shutil.copytree(repository / name, tmp_path / name)
    (tmp_path / name / "1" / "weights.bin").touch()
    packs = {}

    def opened(file, provider, threads, prepack=True):
        packs[file.name] = prepack
        return _on_cpu(file, provider, threads, prepack)

    monkeypatch.setattr("service.model.loader.open_session", opened)
    model(tmp_path, name)
    assert [file for file, prepack in packs.items() if prepack] == [packed]


def test_memory_of_what_the_canonical_graph_computes_is_counted(repository):
    of, given = model(repository, "encoder"), {"input_ids": np.ones((1, 300), np.int64)}
    needed = {name: of.estimate(given, [name], of.bind(given)).memory for name in ("weights", "hidden_states")}
    assert needed["hidden_states"] > 4 * 3 * 2 * 4 * 300 * 300  # weights, scores and weights by norm, in two layers
    assert needed["weights"] == 4 * 2 * 2 * 4 * 300 * 300


@pytest.mark.parametrize("more", [{}, {"is_causal": True}, {"nonpad_kv_seqlen": [9]}, {"left_window_size": 512}])
def test_memory_estimated_is_linear_without_weights(more, repository):
    of = model(repository)

    def needed(n, outputs):
        given = inputs(n, **more)
        sizes = of.bind(given)
        return of.estimate(given, outputs, sizes).memory

    assert needed(8192, ["output"]) < 300 * MB
    assert needed(8192, ["output"]) == pytest.approx(2 * needed(4096, ["output"]), rel=0.01)
    assert needed(8192, ["output", "weights"]) > 4000 * MB


PEAK = """
import json, sys
from pathlib import Path
import numpy as np
import onnx
from service.model.calibration import warm_up
from service.model.loader import open_version
from service.ort.provider import Provider

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])

folder, more, n = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
model = open_version(Path(folder), Provider("cpu", "asked for"), 2)
x = np.random.default_rng(0).standard_normal((1, 8, n, 64), np.float32)
more = {name: np.asarray(value, model.inputs[name].dtype) for name, value in more.items()}
given = {"query": x, "key": x, "value": x, **more}
sizes = model.bind(given)
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
model.run(model.estimate(given, ["output"], sizes).graph, given, ["output"])
print(status("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak as Linux tells it")
@pytest.mark.parametrize(
    ("more", "most", "growth"),
    [
        ({}, 130, 2.5),
        ({"is_causal": True}, 130, 2.5),
        ({"nonpad_kv_seqlen": [2000]}, 130, 2.5),
        ({"left_window_size": 512}, 130, 2.5),
        ({"attn_mask": [[[[0]]]]}, 200, 3.5),
    ],
)
def test_memory_is_linear_in_fact(more, most, growth, repository):
    """Scores of n = 4096 alone would be 537 MB. The block of a mask, whose rows are at most 2048, then stays."""
    peaks = []
    for n in (2048, 4096):
        command = [sys.executable, "-c", PEAK, str(repository / SDPA / "1"), json.dumps(more), str(n)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
        peaks.append(int(done.stdout) / 1000)
    assert peaks[1] < most, peaks
    assert peaks[1] < growth * peaks[0] + 10, peaks


@pytest.mark.parametrize("name", ["dot_product", SDPA, "multi_head"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"is_causal": True},
        {"is_causal": True, "left_window_size": 50},
        {"nonpad_kv_seqlen": np.array([0, 411])},
        {"attn_mask": np.where(np.arange(420) % 3, 0, -np.inf).astype(np.float32)[None, None, None]},
    ],
)
def test_numbers_over_http(name, more, client):
    rng = np.random.default_rng(0)
    shape = (2, 420, 64) if name == "multi_head" else (2, 4, 420, 8)
    tensors = {key: rng.standard_normal(shape, np.float32) for key in ("query", "key", "value")}
    given = {**tensors, **{key: np.asarray(value) for key, value in more.items()}}
    body = {key: coded(array) if array.dtype == np.float32 else array for key, array in given.items()}
    assert_close(name, attend(client, name, **body, outputs=["output"]), given)


def test_only_what_weighs_too_much_is_refused(two_blocks):
    """Weights of n = 3000 are over the limit, the output alone is not."""
    x = np.random.default_rng(0).standard_normal((3000, 4), np.float32)
    with serving(two_blocks, "--max-memory-bytes", str(64 * MB)) as client:
        for name, more in (("causal", {"is_causal": True}), ("plain", {})):
            body = {"query": coded(x), "key": coded(x), "value": coded(x), **more}
            assert post(client, SDPA, {**body, "outputs": ["output"]}).status_code == 200, name
            assert post(client, SDPA, {**body, "outputs": ["weights"]}).status_code == 413, name


@pytest.mark.parametrize(
    ("more", "outputs", "path"),
    [
        ({}, ["output"], "fused"),
        ({"is_causal": True}, ["output"], "fused_causal"),
        ({"nonpad_kv_seqlen": [7]}, ["output"], "fused_padded"),
        ({"scale": np.float32(0.5)}, ["output"], "fused_padded"),
        (MASK, ["output"], "fused_masked"),
        (MASK | {"is_causal": True}, ["output"], "weights"),
        ({}, ["output", "weights"], "plain"),
    ],
)
def test_the_path_a_request_gets_on_cuda(more, outputs, path, fused, monkeypatch):
    """Its graphs are run by the CPU here, which has their operators in float32."""
    monkeypatch.setattr("service.model.loader.open_session", _on_cpu)
    of = model(fused.parents[1], provider="cuda")
    given = inputs(2048, **more)
    assert chosen(of, given, outputs) == path
    assert {graph.spec.provider for graph in of.graphs if graph.spec} == {None, "cuda"}
    assert len(warm_up(of)) == len(of.graphs) == 8  # model, plain, lse, options, and all four


def broken(folder, path, change):
    """The version in ``folder`` with one node of a fast path changed."""
    graph = onnx.load(folder / f"{path}.onnx")
    change(graph)
    (folder / f"{path}.onnx").write_bytes(graph.SerializeToString())


def _unheard(graph):
    graph.functions[-1].node[-1].op_type = "Unheard"


def _unshaped(graph):
    """Its last node asks for a shape that nothing has."""
    o_shape = next(node for node in graph.functions[-1].node if node.output[0] == "o_shape")
    o_shape.input[:] = ["D", "D", "D"]


@pytest.mark.parametrize(("change", "said"), [(_unheard, "cannot be opened"), (_unshaped, "cannot run")])
def test_a_fast_path_that_does_not_work_is_done_without(change, said, repository, tmp_path, caplog):
    shutil.copytree(repository / SDPA, tmp_path / SDPA)
    broken(tmp_path / SDPA / "1", "flash", change)
    of = model(tmp_path)
    of = replace(of, graphs=warm_up(of))
    assert f"model {SDPA} does without flash" in caplog.text
    assert said in caplog.text
    assert chosen(of, inputs(2048)) == "padded"


def test_the_canonical_graph_has_to_work(repository, tmp_path):
    shutil.copytree(repository / SDPA, tmp_path / SDPA)
    graph = onnx.load(tmp_path / SDPA / "1" / "model.onnx")
    graph.graph.node[-1].op_type = "Unheard"
    (tmp_path / SDPA / "1" / "model.onnx").write_bytes(graph.SerializeToString())
    with pytest.raises(Exception, match="Unheard"):
        model(tmp_path)
