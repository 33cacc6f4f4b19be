"""Which graph a request gets, what memory it is taken to need and truly needs, and its numbers."""

import json
import shutil
from dataclasses import replace
from functools import cache, partial

import numpy as np
import onnx
import pytest

from models import linear
from service.base.errors import TooMuchMemory
from service.model import estimate
from service.model.calibration import calibrate
from service.model.loader import open_version
from service.ort.placement import CUDA
from service.ort.provider import Provider
from tests.support.scripts import run_script
from tests.support.tasks import open_on_cpu

MB = 1 << 20
SDPA = "scaled_dot_product"


def model(repository, name=SDPA, provider="cpu"):
    return open_version(repository / name / "1", Provider(provider, "requested"), 2)


@pytest.fixture(scope="module")
def opened(repository):
    """A block by its name, opened once."""
    return cache(partial(model, repository))


def inputs(n, shape="bhnd", **more):
    """Zeros for attention of n tokens, or token ids, beside the arguments in ``more``."""
    arguments = {name: np.asarray(value) for name, value in more.items()}
    if shape == "ids":
        return {"input_ids": np.ones((1, n), np.int64), **arguments}
    x = np.zeros((1, 8, n, 64) if shape == "bhnd" else (1, n, 64), np.float32)
    return {"query": x, "key": x, "value": x, **arguments}


def chosen(of, given, outputs=("output",)):
    spec = of.graph_for(given, outputs, of.bind(given)).spec
    return spec.fast_path if spec else "model"


SHAPES = {"encoder": "ids", "decoder": "ids", "multi_head": "bnd"}
MASK = {"attn_mask": np.zeros((1, 1, 1, 2048), np.float32)}
PAST = dict.fromkeys(("past_key", "past_value"), np.zeros((2, 1, 4, 9, 8)))
CAUSAL, NOT_CAUSAL, PADDED = {"is_causal": True}, {"is_causal": False}, {"nonpad_kv_seqlen": [7]}
ZERO, HALF, TWO = map(np.float32, (0, 0.5, 2))
HEADS = {name: np.zeros(8, np.float32) for name in ("sinks", "alibi_slopes")}
UNSET = NOT_CAUSAL | {"softcap": ZERO, "left_window_size": -1, "rope_theta": ZERO}
PATHS = [  # block, number of tokens, outputs, path, and requests that get it
    (SDPA, 2048, "output", "flash", [{}, UNSET, {"scale": HALF}]),
    (SDPA, 2048, "output weights", "plain", [{}]),
    (SDPA, 2048, "output", "causal", [CAUSAL]),
    (SDPA, 2048, "output weights", "weights", [CAUSAL]),
    (SDPA, 2048, "output", "blocks", [CAUSAL | {"left_window_size": 512}, {"softcap": TWO}, CAUSAL | PADDED]),
    (SDPA, 2048, "output", "blocks", [CAUSAL | MASK]),
    (SDPA, 2048, "output", "padded", [PADDED, NOT_CAUSAL | PADDED]),
    (SDPA, 2048, "output", "masked", [MASK, MASK | NOT_CAUSAL | {"scale": HALF}]),
    (SDPA, 2048, "lse", "lse", [MASK]),
    (SDPA, 2048, "output present_key", "weights", [{}]),
    (SDPA, 2048, "output", "model", [{"alibi_slopes": HEADS["alibi_slopes"]}, {"rope_theta": np.float32(100)}]),
    (SDPA, 16, "output", "plain", [{}]),
    (SDPA, 64, "output", "plain", [{}]),  # the kernel for lengths is slower without them
    (SDPA, 64, "output", "padded", [PADDED]),
    (SDPA, 16, "output", "causal", [CAUSAL]),
    (SDPA, 16, "output", "weights", [CAUSAL | {"left_window_size": 5}, {"attn_mask": MASK["attn_mask"][..., :16]}]),
    (SDPA, 16, "output lse", "lse", [{}]),
    (SDPA, 16, "output", "model", [{"sinks": HEADS["sinks"]}]),
    ("encoder", 16, "output", "output", [{}]),
    ("encoder", 300, "output", "flash", [{}]),
    ("encoder", 300, "output", "padded", [PADDED]),
    ("encoder", 300, "output", "output", [{"attn_mask": MASK["attn_mask"][..., :300]}]),
    ("encoder", 300, "output weights", "plain", [{}]),
    ("encoder", 300, "output weights", "weights", [{"layers": [1]}]),
    ("encoder", 300, "output hidden_states", "model", [{}]),
    ("encoder", 300, "output", "model", [{"head_mask": np.ones((2, 4), np.float32)}]),
    ("decoder", 16, "output", "output", [{}]),
    ("decoder", 300, "output present_key present_value", "causal", [{}]),
    ("decoder", 1, "present_key", "output", [PAST]),
    ("multi_head", 16, "output weights", "plain", [{}, {"rope_theta": ZERO}]),
    ("multi_head", 16, "output weights scores", "weights", [{}]),
    ("multi_head", 16, "output weights", "weights", [CAUSAL]),
    ("multi_head", 16, "present_key", "weights", [{}]),
    ("multi_head", 16, "head_output", "learned", [{}]),  # only requests for rare tensors of heads run this graph
    ("multi_head", 16, "output weights weights_by_norm", "learned", [{}]),
    ("multi_head", 16, "output", "learned", [{"head_mask": np.ones((1, 8), np.float32)}, {"sinks": HEADS["sinks"]}]),
    ("multi_head", 16, "output", "model", [{"q_proj_weight": np.zeros((64, 64), np.float32)}]),
    ("linear", 16, "output", "output", [{}, NOT_CAUSAL | PADDED]),
    ("linear", 16, "output", "causal", [CAUSAL | PADDED]),
    ("efficient", 16, "output", "output", [PADDED]),
    ("multiplicative", 16, "output", "output", [NOT_CAUSAL | PADDED | {"scale": TWO}]),
    ("multiplicative", 16, "output", "model", [CAUSAL]),
    ("luong_dot", 16, "output", "weights", [{"scale": TWO}]),
    ("cosine", 16, "output", "weights", [{"scale": TWO}]),
]


@pytest.mark.parametrize(("name", "n", "outputs", "path", "requests"), PATHS)
def test_the_path_of_a_request(name, n, outputs, path, requests, opened):
    for more in requests:
        assert chosen(opened(name), inputs(n, SHAPES.get(name, "bhnd"), **more), outputs.split()) == path, more


KEYS = 1 << 16
FEW_QUERIES = [  # number of queries, path, and requests with KEYS keys that get it
    (1, "plain", [{}]),
    (31, "plain", [{}]),
    (32, "flash", [{}, {"scale": HALF}]),
    (3, "weights", [PADDED, {"attn_mask": np.zeros((1, 1, 1, KEYS), np.float32)}, {"left_window_size": 5}]),
    (4, "blocks", [PADDED, {"attn_mask": np.zeros((1, 1, 1, KEYS), np.float32)}, {"left_window_size": 5}]),
    (16, "padded", [PADDED]),
    (64, "masked", [{"attn_mask": np.zeros((1, 1, 1, KEYS), np.float32)}]),
    (1, "causal", [CAUSAL]),
]


@pytest.mark.parametrize(("m", "path", "requests"), FEW_QUERIES)
def test_the_path_of_a_request_with_few_queries(m, path, requests, opened):
    for more in requests:
        given = inputs(KEYS, **more)
        assert chosen(opened(SDPA), given | {"query": given["query"][:, :, :m]}) == path, more


def test_a_path_of_another_provider_is_left_aside(repository, monkeypatch):
    monkeypatch.setattr("service.model.loader.open_session", open_on_cpu)
    on_cuda = model(repository, provider="cuda")
    assert chosen(on_cuda, inputs(2048)) == "plain"
    assert chosen(on_cuda, inputs(2048, is_causal=True)) == "weights"


@pytest.mark.parametrize("name", ["multi_head", "additive"])
def test_of_graphs_that_share_weights_the_common_one_packs_them(name, repository, tmp_path, monkeypatch):
    shutil.copytree(repository / name, tmp_path / name)
    (tmp_path / name / "1" / "weights.bin").touch()
    packs = {}

    def opened(file, provider, threads, prepack=True):
        packs[file.name] = prepack
        return open_on_cpu(file, provider, threads, prepack)

    monkeypatch.setattr("service.model.loader.open_session", opened)
    model(tmp_path, name)
    assert [file for file, prepack in packs.items() if prepack] == ["weights.onnx"]


def test_memory_of_what_the_canonical_graph_computes_is_counted(opened):
    of, given = opened("encoder"), inputs(300, "ids")
    needed = {name: of.estimate(given, [name], of.bind(given)).memory for name in ("weights", "hidden_states")}
    assert needed["hidden_states"] > 4 * 3 * 2 * 4 * 300 * 300  # weights, scores and weights by norm, in two layers
    weights = 4 * (2 * 2 + 2) * 4 * 300 * 300  # of each layer, of both joined, and two copies
    assert weights < needed["weights"] < 1.3 * weights


def test_the_chunks_of_causal_linear_attention_are_those_of_its_graph():
    assert estimate.CHUNK == linear.CHUNK


@pytest.mark.parametrize("more", [{}, {"is_causal": True}, {"nonpad_kv_seqlen": [9]}, {"left_window_size": 512}])
def test_memory_estimated_is_linear_without_weights(more, opened):
    of = opened(SDPA)

    def needed(n, outputs):
        given = inputs(n, **more)
        sizes = of.bind(given)
        return of.estimate(given, outputs, sizes).memory

    assert needed(8192, ["output"]) < 300 * MB
    assert needed(8192, ["output"]) == pytest.approx(2 * needed(4096, ["output"]), rel=0.01)
    assert needed(8192, ["output", "weights"]) > 4000 * MB


PEAK = """
import json, resource, sys
from pathlib import Path
import numpy as np
from service.model.loader import open_version
from service.ort.provider import Provider

model = open_version(Path(sys.argv[1]), Provider("cpu", "requested"), 2)
x = np.random.default_rng(0).standard_normal((1, 8, 4096, 64), np.float32)
more = {name: np.asarray(value, model.inputs[name].dtype) for name, value in json.loads(sys.argv[2]).items()}
given = {"query": x, "key": x, "value": x, **more}
graph = model.estimate(given, ["output"], model.bind(given)).graph
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model.run(graph, given, ["output"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("more", "most"),
    [
        ({}, 130),
        ({"is_causal": True}, 130),
        ({"nonpad_kv_seqlen": [2000]}, 130),
        ({"left_window_size": 512}, 130),
        ({"attn_mask": [[[[0]]]]}, 200),  # of its block, whose rows are at most 2048
    ],
)
def test_memory_is_linear_in_fact(more, most, repository):
    """Scores of 4096 queries and keys alone would be 537 MB."""
    assert int(run_script(PEAK, repository / SDPA / "1", json.dumps(more))) / 1000 < most


def test_a_gpu_computes_no_tensor_that_its_kernels_cannot_index(fused, monkeypatch):
    monkeypatch.setattr("service.model.loader.open_session", open_on_cpu)
    on_cpu = model(fused.parents[1], provider="cuda")
    of = replace(on_cpu, providers=[CUDA])
    long = {name: np.broadcast_to(np.float32(0), (8, 16, 8192, 64)) for name in ("query", "key", "value")}
    sizes = of.bind(long)
    of.estimate(long, ["output"], sizes, max_memory=1 << 50)
    with pytest.raises(TooMuchMemory, match="has 8,589,934,592 pairs of query and key"):
        of.estimate(long, ["output", "weights"], sizes, max_memory=1 << 50)
    on_cpu.estimate(long, ["output", "weights"], sizes, max_memory=1 << 50)


@pytest.mark.extended
def test_the_path_of_a_request_on_cuda(fused, monkeypatch):
    """Its graphs are run by the CPU here, which has their operators in float32."""
    monkeypatch.setattr("service.model.loader.open_session", open_on_cpu)
    of = model(fused.parents[1], provider="cuda")
    for outputs, path, requests in (
        ("output", "fused", [{}]),
        ("output", "fused_causal", [CAUSAL]),
        ("output", "fused_padded", [PADDED, {"scale": HALF}]),
        ("output", "fused_masked", [MASK]),
        ("output", "weights", [MASK | CAUSAL]),
        ("output weights", "plain", [{}]),
    ):
        assert {chosen(of, inputs(2048, **more), outputs.split()) for more in requests} == {path}
    assert {graph.spec.provider for graph in of.graphs if graph.spec} == {None, "cuda"}
    assert len(calibrate(of)) == len(of.graphs) == 8  # model, plain, lse, options, and all four


def _unheard(graph):
    (graph.functions[-1] if graph.functions else graph.graph).node[-1].op_type = "Unheard"


def _unshaped(graph):
    """Its last node asks for a shape that nothing has."""
    o_shape = next(node for node in graph.functions[-1].node if node.output[0] == "o_shape")
    o_shape.input[:] = ["D", "D", "D"]


def with_broken(path, change, repository, folder):
    """A repository in ``folder`` whose only block has a changed node in a graph."""
    shutil.copytree(repository / SDPA, folder / SDPA)
    file = folder / SDPA / "1" / f"{path}.onnx"
    graph = onnx.load(file)
    change(graph)
    file.write_bytes(graph.SerializeToString())
    return folder


@pytest.mark.parametrize(("change", "said"), [(_unheard, "cannot be opened"), (_unshaped, "cannot run")])
def test_a_fast_path_that_does_not_work_is_done_without(change, said, repository, tmp_path, caplog):
    of = model(with_broken("flash", change, repository, tmp_path))
    of = replace(of, graphs=list(calibrate(of)))
    assert f"model {SDPA}: flash" in caplog.text
    assert said in caplog.text
    assert chosen(of, inputs(2048)) == "plain"


@pytest.mark.parametrize("outputs", [["output"], ["output", "weights"]])
def test_the_time_of_a_longer_run_is_known_after_calibration(outputs, repository):
    of = model(repository)
    calibrate(of)
    longer = inputs(512)
    estimate = of.estimate(longer, outputs, of.bind(longer))
    assert estimate.graph.cost.knows(estimate.size)


def test_every_graph_with_a_number_for_each_pair_knows_that_a_huge_run_takes_hours(repository):
    pairwise = [graph for graph in calibrate(model(repository)) if graph.spec is None or graph.spec.rows is None]
    assert [graph.cost.least(1 << 55) > 1e12 for graph in pairwise] == [True] * 4


def test_the_canonical_graph_has_to_work(repository, tmp_path):
    with pytest.raises(Exception, match="Unheard"):
        model(with_broken("model", _unheard, repository, tmp_path))
