"""CUDA where there is none: what is said, what falls back, and what a failure in the midst of serving does."""

import json
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from service.errors import DeviceLost, OutOfMemory
from service.ort import cuda, provider
from service.ort.cuda import PROBE, NoCuda, health_check
from service.ort.failures import FailureKind, classify, short_message
from service.ort.placement import CPU, CUDA
from service.ort.provider import Provider, ProviderUnavailable, choose, open_session
from tests.support import graphs
from tests.support.http_client import ADD, Connection
from tests.support.server import launched
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
RAN = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running MatMul node. Name:'m' "
WHERE = "GPU=0 ; hostname=secret ; file=/onnxruntime_src/cuda_call.cc ; line=1 ; expr=cudaMalloc((void**)&p, size); "
ILLEGAL = f"{RAN}CUDA failure 700: an illegal memory access was encountered ; {WHERE}"


def test_the_graph_that_is_tried_is_a_product_and_a_softmax():
    a, b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in "aby")
    nodes = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Softmax", ["c"], ["y"])]
    graph = helper.make_graph(nodes, "probe", [a, b], [y])
    assert onnx.load_from_string(PROBE) == helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )


def test_numbers_and_nodes_are_held_to_what_they_should_be():
    session = open_session(PROBE, Provider("cpu", "asked for"), 1)
    health_check(session, CPU)
    with pytest.raises(NoCuda, match="run elsewhere"):
        health_check(session, CUDA)
    wrong = open_session(PROBE.replace(b"Softmax", b"Sigmoid"), Provider("cpu", "asked for"), 1)
    with pytest.raises(NoCuda, match="is off by"):
        health_check(wrong, CPU)


def test_an_onnx_runtime_without_cuda(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    assert choose("cpu").reason == "asked for"
    chosen = choose("auto")
    assert chosen.name == "cpu"
    assert "built without CUDA" in chosen.reason
    with pytest.raises(ProviderUnavailable, match="built without CUDA"):
        choose("cuda")


def test_cuda_that_falls_back_is_no_cuda(monkeypatch):
    """ONNX Runtime falls back to the CPU with no more than a log line; the session is asked what it runs on."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(provider, "_open_device_arena", lambda *_: None)
    monkeypatch.setattr(cuda, "missing_library", lambda: None)
    real, asked = onnxruntime.InferenceSession, []

    def fallen(model, options, providers, enable_fallback):
        asked.append((providers, enable_fallback))
        return real(model, options, providers=[CPU])

    monkeypatch.setattr(onnxruntime, "InferenceSession", fallen)
    with pytest.raises(ProviderUnavailable, match=r"provider cuda: CUDA was tried and failed: .*fell back to"):
        choose("cuda", device=1, memory=1 << 30)
    options = {"device_id": "1", "use_tf32": "0", "gpu_mem_limit": str(1 << 30)}
    assert asked == [([(CUDA, options), CPU], 0)]
    assert choose("auto").name == "cpu"


@pytest.mark.skipif(CUDA in onnxruntime.get_available_providers(), reason="this ONNX Runtime knows CUDA")
def test_what_this_build_says_when_it_is_asked_for_cuda(monkeypatch):
    """The whole way, but for the question that would end it at once."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    chosen = choose("auto")
    assert chosen.name == "cpu"
    assert chosen.reason.startswith("CUDA was tried and failed: ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"{RAN}bfc_arena.cc:360 Available memory of 61865728 is smaller than requested bytes of 134217728", "memory"),
        (f"{RAN}bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 134217728", "memory"),
        (f"{RAN}CUDA failure 2: out of memory ; {WHERE}", "memory"),
        (f"{RAN}CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; {WHERE}", "memory"),
        (f"{RAN}CUDNN failure 4002: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ; {WHERE}", "memory"),
        ("Error in execution: std::bad_alloc", "memory"),
        (ILLEGAL, "device"),
        (f"{RAN}CUDA failure 719: unspecified launch failure ; {WHERE}", "device"),
        (f"{RAN}CUDA failure 46: CUDA-capable device(s) is/are busy or unavailable ; {WHERE}", "device"),
        (f"{RAN}CUDA failure 100: no CUDA-capable device is detected ; {WHERE}", "device"),
        (f"{RAN}CUBLAS failure 13: the GPU program failed to execute ; {WHERE}", "device"),
        (f"{RAN}CUDA failure 9: invalid configuration argument ; {WHERE}", "device"),
        (f"{RAN}The input tensor cannot be reshaped to the requested shape", "other"),
        ("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input", "other"),
    ],
)
def test_kinds_of_failure(words, expected):
    assert classify(words) is FailureKind(expected)
    assert "secret" not in short_message(words)


def test_a_run_that_asks_too_much_of_cuda_is_not_the_end_of_it():
    still = Provider("cuda", "asked for", health_check=lambda: None)
    assert still.translate(RuntimeError(ILLEGAL)) is None
    assert not still.lost_reason


def test_a_device_that_cannot_be_used_again_is_lost():
    calls = []

    def gone():
        raise RuntimeError(f"CUDA failure 700: an illegal memory access was encountered ; {WHERE}")

    lost = Provider("cuda", "asked for", health_check=gone, on_lost=lambda: calls.append(True))
    assert isinstance(
        lost.translate(RuntimeError(f"{RAN}Available memory of 1 is smaller than requested bytes of 2")), OutOfMemory
    )
    assert not lost.lost_reason
    for _ in range(2):
        assert isinstance(lost.translate(RuntimeError(ILLEGAL)), DeviceLost)
    assert calls == [True]
    assert "700" in lost.lost_reason
    assert "secret" not in lost.lost_reason


SMALL = """
import sys
import onnxruntime
from service.ort import provider

memory = onnxruntime.OrtMemoryInfo("Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0,
                                   onnxruntime.OrtMemType.DEFAULT)
onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg({"max_mem": 24 << 20}))
provider._open_arena = lambda _limit: None
translate = provider.Provider.translate

def as_on_a_gpu(self, error):
    name, self.name = self.name, "cuda"
    try:
        return translate(self, error)
    finally:
        self.name = name

provider.Provider.translate = as_on_a_gpu
"""  # an arena that is full as a GPU's would be

SERVES = """
from service.cli.serve import main
sys.exit(main(sys.argv[1:]))
"""

SHARES = """
from pathlib import Path
import numpy as np
from service.errors import OutOfMemory
from service.ort.provider import Provider
from service.engine.run import Run, run_alone
from service.model.loader import load_version
from service.engine.task import InferenceTask

model = load_version(Path(sys.argv[1]), Provider("cpu", "asked for"), 1, 64)

def work(seed, n=700):
    x = np.random.default_rng(seed).standard_normal((1, 1, n, 2), np.float32)
    inputs = {"query": x, "key": x, "value": x}
    return InferenceTask(model, model.estimate(inputs, ["weights"], model.bind(inputs)), inputs, ["weights"])

works = [work(seed) for seed in range(8)]
expected = [run_alone(one)["weights"].tobytes() for one in works]
shared = Run(works[0])
shared.tasks = works
for answered, answer in shared.execute():
    assert not isinstance(answer, Exception), answer
    assert answered.run_rows == 1, "it was answered by the shared run, which had room"
    assert answer["weights"].tobytes() == expected[works.index(answered)]
large = work(0, 3000)
((_, answer),) = Run(large).execute()
assert isinstance(answer, OutOfMemory), answer
"""

LOSES = f"""
import sys
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from service.repository import repository
from service.model import loader
from service.ort.session import Session
from service.cli.serve import main
from service.ort.provider import Provider, choose

is_lost = False
run = Session.run

def fails_once_700_is_given(session, given, wanted, options=None):
    global is_lost
    is_lost = is_lost or any((array == 700).any() for array in given.values())
    if is_lost and on_gpu:
        raise Fail({ILLEGAL!r})
    return run(session, given, wanted, options)

def prove():
    if is_lost:
        raise Fail({ILLEGAL!r})

def choosing(wanted, *more):
    global on_gpu
    on_gpu = not is_lost
    return Provider("cuda" if on_gpu else "cpu", "CUDA works" if on_gpu else "CUDA does not work", health_check=prove)

def on_cpu(file, _provider, *more, **named):
    return opened(file, Provider("cpu", "asked for"), *more, **named)

on_gpu = True
opened, loader.open_session = loader.open_session, on_cpu
Session.run = fails_once_700_is_given
repository.choose = choosing
sys.exit(main(sys.argv[1:]))
"""  # a GPU of which nothing is real but the words of its end

LOST = ADD.replace("[1, 2, 3]", "[700, 2, 3]")


@contextmanager
def running(script, folder, log, *flags):
    arguments = [sys.executable, "-c", script, "--port", "0", "--model-repository", str(folder), *flags]
    with launched(arguments, log, environment={"HEED_PROVIDER": "auto"}) as service:
        until(service.is_ready)
        yield service


def post(service, path, body):
    with closing(Connection(service.port)) as connection:
        connection.request("POST", path, body)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()


@pytest.fixture(scope="module")
def adder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    graphs.adder(folder / "adder" / "1")
    return folder


def test_a_run_without_room_is_refused_and_nothing_else(repository, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "scaled_dot_product").symlink_to(repository / "scaled_dot_product")

    def request(n):
        rows = np.ones((n, 1)).tolist()
        return json.dumps({"query": rows, "key": rows, "value": rows, "outputs": ["weights"], "weights_top_k": 1})

    with running(SMALL + SERVES, tmp_path / "models", tmp_path / "log") as service:
        status, headers, said = post(service, "/v1/attention/scaled_dot_product", request(2048))
        assert (status, headers["Retry-After"]) == (507, "1")
        assert json.loads(said)["title"] == "Insufficient Storage"
        assert "too little memory left" in json.loads(said)["detail"]
        tensor = {"shape": [1, 1, 2048, 1], "datatype": "FP32", "data": [1] * 2048}
        inputs = [{"name": name, **tensor} for name in ("query", "key", "value")]
        status, headers, said = post(service, "/v2/models/scaled_dot_product/infer", json.dumps({"inputs": inputs}))
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "too little memory left" in json.loads(said)["error"]
        assert post(service, "/v1/attention/scaled_dot_product", request(64))[0] == 200
        assert service.is_ready()
        with closing(Connection(service.port)) as connection:
            assert 'heed_requests_rejected_total{reason="device_memory"} 2.0' in connection.ask("/metrics").decode()


def test_requests_that_have_no_room_together_are_run_alone(repository):
    command = [sys.executable, "-c", SMALL + SHARES, str(repository / "scaled_dot_product" / "1")]
    subprocess.run(command, check=True, cwd=ROOT)


def test_a_lost_device_ends_the_process(adder, tmp_path):
    with running(LOSES, adder, tmp_path / "log", "--drain-seconds", "1") as service:
        assert post(service, "/v2/models/adder/infer", ADD)[0] == 200
        status, _, said = post(service, "/v2/models/adder/infer", LOST)
        assert (status, json.loads(said)) == (503, {"error": "the device that models run on is lost"})
        assert not service.is_ready()
        status, _, said = post(service, "/v2/models/adder/infer", ADD)
        assert (status, json.loads(said)) == (503, {"error": "Server not ready: its device is lost"})
        assert service.ended() == 70
    assert "provider cuda is lost: CUDA failure 700: an illegal memory access" in (tmp_path / "log").read_text()


def test_a_worker_that_lost_its_device_is_replaced(adder, tmp_path):
    with running(LOSES, adder, tmp_path / "log", "--workers", "2") as service:
        before = service.workers()
        assert post(service, "/v2/models/adder/infer", LOST)[0] == 503
        until(lambda: len(service.workers()) == 2 and service.workers() != before)
        until(lambda: (tmp_path / "log").read_text().count("ready: adder") == 3)
        assert len(service.workers() & before) == 1
        assert all(post(service, "/v2/models/adder/infer", ADD)[0] == 200 for _ in range(4))
        service.process.terminate()
        assert service.ended() == 0
