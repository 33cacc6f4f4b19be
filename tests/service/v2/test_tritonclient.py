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


def test_health_metadata_and_statistics(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("adder")
    assert client.is_model_ready("adder", "2")
    assert not client.is_model_ready("adder", "3")
    assert not client.is_model_ready("nothing")
    assert client.get_server_metadata(query_params={"any": "thing"})["name"] == "heed"
    said = client.get_model_metadata("adder")
    assert said["versions"] == ["1", "2"]
    assert said["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    assert client.get_model_metadata("adder", "1")["name"] == "adder"
    assert client.get_model_config("adder", "1")["max_batch_size"] == 1024
    (of_version,) = client.get_inference_statistics("adder", "1")["model_stats"]
    assert (of_version["name"], of_version["version"]) == ("adder", "1")
    assert len(client.get_inference_statistics()["model_stats"]) > 10


@pytest.mark.parametrize(
    ("binary_in", "binary_out", "sent", "answered"),
    [
        (True, True, None, None),
        (True, False, "gzip", "deflate"),
        (False, True, "deflate", "gzip"),
        (False, False, None, None),
    ],
)
def test_infer(client, binary_in, binary_out, sent, answered):
    result = client.infer(
        "scaled_dot_product",
        qkv(binary_in),
        outputs=[triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("weights", "output")],
        request_id="[seven]",
        request_compression_algorithm=sent,
        response_compression_algorithm=answered,
    )
    assert result.get_response()["id"] == "[seven]"
    assert_right(result)


def test_infer_without_outputs_answers_all_in_binary(client):
    result = client.infer("scaled_dot_product", qkv(), parameters={"is_causal": True, "scale": 0.5})
    names = [output["name"] for output in result.get_response()["outputs"]]
    assert names == ["output", "weights", "scores", "present_key", "present_value"]
    assert_right(result, is_causal=np.asarray(True), scale=np.float32(0.5))
    assert np.isneginf(result.as_numpy("scores")[0, 0, 0, 1:]).all()


@pytest.mark.parametrize("binary", [True, False])
def test_booleans_and_texts(client, binary):
    mask = np.tri(4, 5, dtype=bool)[None, None].copy()
    outputs = [triton.InferRequestedOutput("weights")]
    result = client.infer("scaled_dot_product", qkv(binary, attn_mask=(mask, "BOOL")), outputs=outputs)
    assert ((result.as_numpy("weights")[0, 0] > 0) == mask[0, 0]).all()
    words = np.array([["", "ä"], ["a\0b", "long" * 100]], np.object_)
    outputs = [triton.InferRequestedOutput("y", binary_data=binary)]
    found = client.infer("identity_BYTES", tensors(binary, x=(words, "BYTES")), outputs=outputs).as_numpy("y")
    assert [item if isinstance(item, str) else item.decode() for item in found.flat] == words.reshape(-1).tolist()


def test_priority_timeout_and_headers(client):
    """A timeout is a deadline for a model whose queue policy says so, as in Triton, and ignored for others."""
    said = {"priority": 1, "sequence_id": 3, "headers": {"X-Request-ID": "mine"}}
    client.infer("scaled_dot_product", qkv(), timeout=1, **said)
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


def test_async_infer(client):
    handles = [client.async_infer("adder", xz(i), model_version="2") for i in range(8)]
    for i, handle in enumerate(handles):
        np.testing.assert_array_equal(handle.get_result().as_numpy("y"), np.full((1, 3), 2 * i + 2, np.float32))


@pytest.mark.parametrize(("model", "datatype"), [("simple", "INT32"), ("simple_string", "BYTES")])
def test_triton_s_own_models(client, model, datatype):
    a, b = np.arange(48, dtype=np.int32).reshape(3, 16), np.ones((3, 16), np.int32)
    given = (array if datatype == "INT32" else array.astype(str).astype(object) for array in (a, b))
    result = client.infer(model, tensors(**{f"INPUT{i}": (array, datatype) for i, array in enumerate(given)}))
    for output, expected in (("OUTPUT0", a + b), ("OUTPUT1", a - b)):
        np.testing.assert_array_equal(result.as_numpy(output).astype(np.int32), expected)


def test_the_calls_of_simple_http_model_control(client):
    """Those of Triton's example of that name, in its order, of its model."""
    assert {"name": "simple", "version": "1", "state": "READY"} in client.get_model_repository_index()
    client.load_model("simple")
    assert client.is_model_ready("simple")
    with pytest.raises(InferenceServerException, match="failed to load"):
        client.load_model("simple", config='"parameters": {"config": {{"max_batch_size": "16"}}}')
    client.load_model("simple", config='{"max_batch_size":"16"}')
    assert client.get_model_config("simple")["max_batch_size"] == 16
    client.unload_model("simple")
    assert not client.is_model_ready("simple")
    assert {"name": "simple"} in client.get_model_repository_index()
    with pytest.raises(InferenceServerException, match="failed to load"):
        client.load_model("wrong_model_name")
    client.load_model("simple")


def test_files_in_a_load(client, tmp_path):
    graphs.adder(tmp_path, 10.0)
    content = (tmp_path / "model.onnx").read_bytes()
    client.load_model("sent", config="{}", files={"file:7/model.onnx": content})
    assert client.infer("sent", xz(0), "7").as_numpy("y").tolist() == [[10, 10, 10]]
    client.unload_model("sent", unload_dependents=True)
    with pytest.raises(InferenceServerException, match="Request for unknown model"):
        client.get_model_metadata("sent")
    with pytest.raises(InferenceServerException, match="failed to load 'adder'"):
        client.load_model("adder", config="{}", files={"file:1/model.onnx": b"not onnx"})
    assert client.infer("adder", xz(0), "1").as_numpy("y").tolist() == [[1, 1, 1]]


def test_what_is_not_offered_says_so(client):
    for setting in (
        client.get_trace_settings(),
        client.get_trace_settings("adder"),
        client.update_trace_settings(settings={"trace_level": ["OFF"]}),
    ):
        assert setting["trace_level"] == ["OFF"]
    with pytest.raises(InferenceServerException, match="tracing is not supported"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    assert client.get_system_shared_memory_status() == client.get_cuda_shared_memory_status() == []
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException, match="shared memory is not supported"):
        client.register_system_shared_memory("r", "/r", 64)
