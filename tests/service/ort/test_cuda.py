"""CUDA where there is none: what is said, what falls back, and what a failure in the midst of serving does."""

import json
import os
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser, printer
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

from service.base.errors import DeviceLost, NotReady, OutOfMemory
from service.ort import cuda, provider
from service.ort.cuda import PROBE, NoCuda, health_check
from service.ort.failures import FailureKind, classify, short_message
from service.ort.placement import CPU, CUDA
from service.ort.provider import Provider, ProviderUnavailable, choose, open_session
from service.ort.session import Session
from service.repository.repository import Repository
from service.settings import Settings
from tests.support.application import running
from tests.support.http_requests import add, http
from tests.support.in_process import Client, serving_in_process
from tests.support.v2 import tensor
from tests.support.waiting import until

RAN = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running MatMul node. Name:'m' "
WHERE = "GPU=0 ; hostname=secret ; file=/onnxruntime_src/cuda_call.cc ; line=1 ; expr=cudaMalloc((void**)&p, size); "
ILLEGAL = f"{RAN}CUDA failure 700: an illegal memory access was encountered ; {WHERE}"


def test_the_graph_that_is_tried_is_a_product_and_a_softmax():
    graph = "probe (float[64, 64] a, float[64, 64] b) => (float[64, 64] y) { c = MatMul(a, b) y = Softmax(c) }"
    expected = parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]> {graph}')
    assert printer.to_text(onnx.load_from_string(PROBE)) == printer.to_text(expected)


def test_numbers_and_nodes_are_held_to_what_they_should_be():
    session = open_session(PROBE, Provider("cpu", "requested"), 1)
    health_check(session, CPU)
    with pytest.raises(NoCuda, match="run elsewhere"):
        health_check(session, CUDA)
    wrong = open_session(PROBE.replace(b"Softmax", b"Sigmoid"), Provider("cpu", "requested"), 1)
    with pytest.raises(NoCuda, match="is off by"):
        health_check(wrong, CPU)


def test_an_onnx_runtime_without_cuda(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    assert choose("cpu").reason == "requested"
    chosen = choose("auto")
    assert chosen.name == "cpu"
    assert "built without CUDA" in chosen.reason
    with pytest.raises(ProviderUnavailable, match="built without CUDA"):
        choose("cuda")


def test_cuda_that_falls_back_is_no_cuda(monkeypatch):
    """ONNX Runtime falls back to the CPU with no more than a log line; the session is asked what it runs on."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    open_arena = provider._open_arena
    monkeypatch.setattr(provider, "_open_arena", lambda name, *limit: name == "Cuda" or open_arena(name, *limit))
    monkeypatch.setattr(cuda, "missing_library", lambda: None)
    real, asked = onnxruntime.InferenceSession, []

    def fallen(model, options, providers, enable_fallback, **_):
        asked.append((providers, enable_fallback))
        return real(model, options, providers=[CPU])

    monkeypatch.setattr(onnxruntime, "InferenceSession", fallen)
    with pytest.raises(ProviderUnavailable, match=r"provider cuda: CUDA was tried and failed: .*fell back to"):
        choose("cuda", memory=1 << 30)
    options = {"device_id": "0", "use_tf32": "0", "gpu_mem_limit": str(1 << 30)}
    assert asked == [([(CUDA, options), CPU], 0)]
    assert choose("auto").name == "cpu"


@pytest.mark.extended
@pytest.mark.skipif(
    CUDA in onnxruntime.get_available_providers(), reason="pip install onnxruntime in place of onnxruntime-gpu"
)
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


def test_a_device_that_cannot_be_used_again_is_lost(adder):
    repository = Repository(Settings(model_repository=adder).sized())
    lost = repository.open()
    lost.name, lost.health_check = "cuda", lambda: None
    repository.load()
    assert lost.translate(RuntimeError(ILLEGAL)) is None  # of one run, and no end of CUDA
    full = RuntimeError(f"{RAN}Available memory of 1 is smaller than requested bytes of 2")
    assert isinstance(lost.translate(full), OutOfMemory)
    repository.must_be_ready()
    lost.health_check = Mock(side_effect=RuntimeError(ILLEGAL))
    for _ in range(2):
        assert isinstance(lost.translate(RuntimeError(ILLEGAL)), DeviceLost)
        with pytest.raises(NotReady, match="its device is lost"):
            repository.must_be_ready()
    assert repository.unrecoverable
    assert "700" in lost.lost_reason
    assert "secret" not in lost.lost_reason


def test_a_run_without_room_is_refused_and_nothing_else(two_blocks, monkeypatch):
    run, translate = Session.run, Provider.translate

    def in_a_full_arena(session, given, *more):
        if any(array.size > 1000 for array in given.values()):
            raise RuntimeException(f"{RAN}bfc_arena.cc:360 Available memory of 6 is smaller than requested bytes of 7")
        return run(session, given, *more)

    paths = {"/v1/attention/dot_product": (native, 507), "/v2/models/dot_product/infer": (of_v2, 503)}
    with running(two_blocks) as client:
        monkeypatch.setattr(Session, "run", in_a_full_arena)
        monkeypatch.setattr(Provider, "translate", lambda self, error: translate(replace(self, name="cuda"), error))
        for path, (body, status) in paths.items():
            refused = client.post(path, json=body(2048))
            assert (refused.status_code, refused.headers["Retry-After"]) == (status, "1")
            assert "too little free memory" in refused.text
            assert client.post(path, json=body(64)).status_code == 200
        assert client.get("/v2/health/ready").status_code == 200
        assert 'heed_requests_rejected_total{reason="device_memory"} 2.0' in client.get("/metrics").text


def native(n):
    return dict.fromkeys(("query", "key", "value"), [[1]] * n)


def of_v2(n):
    return {"inputs": [tensor(name, np.ones((1, 1, n, 1))) for name in ("query", "key", "value")]}


def test_a_lost_device_ends_the_process(adder, monkeypatch, caplog):
    """Not before the time to drain is over, with the status after which a worker is replaced."""
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    with serving_in_process(adder, drain_seconds=1) as service, Client(service) as client:
        assert client.ask(http(add(1))).status == 200
        lost = service.server._repository.provider
        lost.name, lost.health_check = "cuda", Mock(side_effect=Fail(ILLEGAL))
        monkeypatch.setattr(Session, "run", lost.health_check)
        answers = [client.ask(http(add(2))) for _ in range(2)]
        assert [answer.status for answer in answers] == [503, 503]
        assert json.loads(answers[0].body) == {"error": "the device that models run on is lost"}
        assert json.loads(answers[1].body) == {"error": "Server not ready: its device is lost"}
        until(lambda: statuses == [70])
    assert "provider cuda is lost: CUDA failure 700: an illegal memory access" in caplog.text
