"""NVIDIA's tritonclient.http, unmodified: every method that an advertised extension covers."""

import json

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.support import graphs
from tests.support.attending import assert_close
from tests.support.triton_inputs import K, Q, V, qkv, tensors, xz


@pytest.fixture
def client(address):
    with triton.InferenceServerClient(address, concurrency=4) as client:
        yield client


def assert_right(result, **parameters):
    found = {name: result.as_numpy(name) for name in ("output", "weights")}
    assert_close("scaled_dot_product", found, {"query": Q, "key": K, "value": V, **parameters})


def test_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("adder")
    assert client.is_model_ready("adder", "2")
    assert not client.is_model_ready("adder", "3")
    assert not client.is_model_ready("nothing")
    said = client.get_server_metadata(query_params={"any": "thing"})
    assert said["name"] == "heed"
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(said["extensions"])
    said = client.get_model_metadata("adder")
    assert said["versions"] == ["1", "2"]
    assert said["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    assert client.get_model_metadata("adder", "1")["name"] == "adder"
    assert client.get_model_config("adder", "1")["max_batch_size"] == 1024


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer(client, binary_in, binary_out):
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("weights", "output")]
    result = client.infer("scaled_dot_product", qkv(binary_in), outputs=outputs, request_id="[seven]")
    assert result.get_response()["id"] == "[seven]"
    assert_right(result)


def test_infer_without_outputs_answers_all_in_binary(client):
    result = client.infer("scaled_dot_product", qkv(), parameters={"is_causal": True, "scale": 0.5})
    names = [output["name"] for output in result.get_response()["outputs"]]
    assert names == ["output", "weights", "scores", "present_key", "present_value"]
    assert_right(result, is_causal=np.asarray(True), scale=np.float32(0.5))
    assert np.isneginf(result.as_numpy("scores")[0, 0, 0, 1:]).all()


def test_a_boolean_mask(client):
    mask = np.tri(4, 5, dtype=bool)[None, None].copy()
    outputs = [triton.InferRequestedOutput("weights")]
    for binary in (True, False):
        result = client.infer("scaled_dot_product", qkv(binary, attn_mask=(mask, "BOOL")), outputs=outputs)
        assert ((result.as_numpy("weights")[0, 0] > 0) == mask[0, 0]).all()


def test_priority_timeout_and_headers(client):
    """A timeout is a deadline for a model whose queue policy says so, as in Triton, and ignored for others."""
    said = {"priority": 1, "sequence_id": 3, "headers": {"X-Request-ID": "mine"}}
    result = client.infer("scaled_dot_product", qkv(), timeout=1, **said)
    assert result.as_numpy("output").shape == (2, 3, 4, 6)
    policy = {"dynamic_batching": {"default_queue_policy": {"allow_timeout_override": True}}}
    client.load_model("scaled_dot_product", config=json.dumps(policy))
    try:
        assert client.get_model_config("scaled_dot_product")["dynamic_batching"] == policy["dynamic_batching"]
        client.infer("scaled_dot_product", qkv(), timeout=60_000_000, **said)
        with pytest.raises(InferenceServerException, match="Request timeout expired"):
            client.infer("scaled_dot_product", qkv(), timeout=1, **said)
    finally:
        client.unload_model("scaled_dot_product")
        client.load_model("scaled_dot_product")
    assert "dynamic_batching" not in client.get_model_config("scaled_dot_product")
    client.infer("scaled_dot_product", qkv(), timeout=1)


def test_async_infer(client):
    handles = [client.async_infer("adder", xz(i), model_version="2") for i in range(8)]
    for i, handle in enumerate(handles):
        np.testing.assert_array_equal(handle.get_result().as_numpy("y"), np.full((1, 3), 2 * i + 2, np.float32))


@pytest.mark.parametrize(("sent", "answered"), [(None, None), ("gzip", "deflate"), ("deflate", "gzip")])
def test_compression(client, sent, answered):
    result = client.infer(
        "scaled_dot_product",
        qkv(),
        request_compression_algorithm=sent,
        response_compression_algorithm=answered,
        outputs=[triton.InferRequestedOutput("output"), triton.InferRequestedOutput("weights")],
    )
    assert_right(result)


def test_request_bodies_made_apart(client):
    """For clients that send the bytes themselves."""
    body, length = triton.InferenceServerClient.generate_request_body(xz(3))
    response = client._post("v2/models/adder/infer", body, {"Inference-Header-Content-Length": length}, None)
    header = response.get("Inference-Header-Content-Length")
    result = triton.InferenceServerClient.parse_response_body(response.read(), header_length=int(header))
    assert result.as_numpy("y").tolist() == [[8, 8, 8]]


def test_bytes(client):
    words = np.array([["", "ä"], ["a\0b", "long" * 100]], np.object_)
    for binary in (True, False):
        made = tensors(binary, x=(words, "BYTES"))
        result = client.infer("identity_BYTES", made, outputs=[triton.InferRequestedOutput("y", binary_data=binary)])
        found = result.as_numpy("y").reshape(-1)
        assert [item if isinstance(item, str) else item.decode() for item in found] == words.reshape(-1).tolist()


def test_bfloat16(client):
    numbers = np.array([[1, -2.5, np.inf]], np.float32)
    made = triton.InferInput("x", [1, 3], "BF16")
    made.set_data_from_numpy(numbers)
    result = client.infer("identity_BF16", [made])
    np.testing.assert_array_equal(result.as_numpy("y"), numbers)


def test_classification(client):
    made = tensors(x=(np.array([[3, 9, 1], [7, 2, 8]], np.float32), "FP32"), z=(np.zeros((2, 3), np.float32), "FP32"))
    result = client.infer("adder", made, "1", outputs=[triton.InferRequestedOutput("y", class_count=2)])
    assert result.as_numpy("y").tolist() == [
        [b"10.000000:1", b"4.000000:0"],
        [b"9.000000:2", b"8.000000:0"],
    ]
    result = client.infer(
        "adder", made, "1", outputs=[triton.InferRequestedOutput("y", binary_data=False, class_count=9)]
    )
    assert result.as_numpy("y").shape == (2, 3)


def test_statistics(client):
    client.infer("adder", xz(1), "1")
    before = client.get_inference_statistics("adder", "1")["model_stats"][0]
    client.infer("adder", tensors(**{n: (np.zeros((5, 3), np.float32), "FP32") for n in "xz"}), "1")
    with pytest.raises(InferenceServerException):
        client.infer("adder", xz(1)[:1], "1")
    after = client.get_inference_statistics("adder", "1")["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 5
    assert after["execution_count"] - before["execution_count"] == 1
    assert after["last_inference"] >= before["last_inference"] > 1_700_000_000_000
    assert set(after["inference_stats"]) == {
        *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    }
    spent = after["inference_stats"]
    assert spent["fail"]["count"] == before["inference_stats"]["fail"]["count"] + 1
    parts = sum(spent[name]["ns"] for name in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert 0 < spent["compute_infer"]["ns"] < parts <= spent["success"]["ns"]
    five = next(line for line in after["batch_stats"] if line["batch_size"] == 5)
    assert five["compute_infer"]["count"] >= 1
    assert {line["version"] for line in client.get_inference_statistics("adder")["model_stats"]} == {"1", "2"}
    assert len(client.get_inference_statistics()["model_stats"]) > 10


def test_repository(client, tmp_path):
    assert {"name": "adder", "version": "2", "state": "READY"} in client.get_model_repository_index()
    client.unload_model("product")
    assert not client.is_model_ready("product")
    assert {"name": "product"} in client.get_model_repository_index()
    with pytest.raises(InferenceServerException, match="Request for unknown model"):
        client.get_model_metadata("product")
    client.load_model("product")
    assert client.is_model_ready("product")
    with pytest.raises(InferenceServerException, match="failed to load 'nothing'"):
        client.load_model("nothing")
    graphs.adder(tmp_path, 10.0)
    content = (tmp_path / "model.onnx").read_bytes()
    client.load_model("sent", config="{}", files={"file:7/model.onnx": content})
    assert client.infer("sent", xz(0), "7").as_numpy("y").tolist() == [[10, 10, 10]]
    client.unload_model("sent", unload_dependents=True)
    with pytest.raises(InferenceServerException, match="failed to load 'adder'"):
        client.load_model("adder", config="{}", files={"file:1/model.onnx": b"not onnx"})
    assert client.infer("adder", xz(0), "1").as_numpy("y").tolist() == [[1, 1, 1]]


def test_logging(client):
    before = client.get_log_settings()
    flags = dict.fromkeys(("log_info", "log_warning", "log_error"), True)
    assert before == {"log_file": "", **flags, "log_verbose_level": 0, "log_format": "default"}
    for change in ({"log_verbose_level": 3}, {"log_verbose_level": 0, "log_info": False}, before):
        expected = client.get_log_settings() | change
        assert client.update_log_settings(change) == client.get_log_settings() == expected
    with pytest.raises(InferenceServerException, match="neither can be changed"):
        client.update_log_settings({"log_file": "elsewhere"})


def test_what_is_not_offered_says_so(client):
    assert not {"trace", "system_shared_memory", "cuda_shared_memory"} & set(client.get_server_metadata()["extensions"])
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    assert client.get_trace_settings("adder")["trace_level"] == ["OFF"]
    assert client.update_trace_settings(settings={"trace_level": ["OFF"]})["trace_level"] == ["OFF"]
    with pytest.raises(InferenceServerException, match="tracing is not offered"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    assert client.get_system_shared_memory_status() == []
    assert client.get_cuda_shared_memory_status() == []
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException, match="shared memory is not offered"):
        client.register_system_shared_memory("r", "/r", 64)
    with pytest.raises(InferenceServerException, match="shared memory is not offered"):
        client.register_cuda_shared_memory("r", b"handle", 0, 64)
