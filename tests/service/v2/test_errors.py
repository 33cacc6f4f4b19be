"""Every condition of the protocol's error table, provoked; each answered in its words, as {"error": ...}."""

import json
import socket

import numpy as np
import pytest

from tests.conftest import serving
from tests.service.v2 import graphs
from tests.service.v2.calls import infer, tensor

X, Z = tensor("x", [[1, 2, 3]]), tensor("z", [[1, 2, 3]])
GOOD = {"inputs": [X, Z]}
QKV = [tensor(name, np.ones((1, 1, 2, 2))) for name in ("query", "key", "value")]
BINARY = {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}


def error(response, status, *said):
    """The text of a V2 error."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    for words in said:
        assert words in response.json()["error"]


def one(**change):
    """A request to an identity model, changed."""
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "INT64", "data": [1, 2], **change}]}


def without(field):
    body = one()
    del body["inputs"][0][field]
    return body


UNKNOWN = "Request for unknown model: 'nothing' is not found"
ON_EVERY_ROUTE = ["", "/ready", "/config", "/stats", "/trace/setting"]


@pytest.mark.parametrize("route", ON_EVERY_ROUTE)
def test_404_an_unknown_model(server, route):
    error(server.get(f"/v2/models/nothing{route}"), 404, UNKNOWN)


def test_404_an_unknown_model_or_version_elsewhere(server):
    error(infer(server, "nothing", GOOD), 404, UNKNOWN)
    error(infer(server, "nothing", b"not json"), 404, UNKNOWN)
    error(infer(server, "adder", GOOD, 9), 404, "Request for unknown model: 'adder' version 9 is not found")
    error(server.get("/v2/models/adder/versions/9/ready"), 404, "'adder' version 9 is not found")
    error(server.get("/v2/models/adder/versions/99999999999999999999999"), 404)
    error(server.post("/v2/repository/models/nothing/unload"), 404, UNKNOWN)
    error(server.post("/v2/repository/models/nothing/load"), 404, "failed to load 'nothing', failed to poll")


@pytest.mark.parametrize(
    "path", ["/v2/nothing", "/v2/models/adder/versions/1a", "/v2/models/adder/versions/-1", "/v2/models/adder/infer/x"]
)
def test_404_an_unknown_url(server, path):
    error(server.get(path), 404, "Not Found")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v2/models/adder/infer"), ("POST", "/v2"), ("DELETE", "/v2/models/adder"), ("PUT", "/v2/logging")],
)
def test_405(server, method, path):
    error(server.request(method, path), 405, "Method Not Allowed")


PROTOCOL = {
    "malformed": (b'{"inputs": [', "failed to parse the request JSON buffer"),
    "empty": (b"", "empty"),
    "a list": (b"[]", "expected a JSON object"),
    "NaN token": (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [NaN]}]}', "failed to parse"),
    "nested 101 deep": (b'{"inputs":' + b"[" * 101 + b"]" * 101 + b"}", "expected 'inputs' to be a list of tensors"),
    "nested 5000 deep": (b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}", "failed to parse"),
    "data nested 101 deep": (one(data=json.loads("[" * 101 + "1" + "]" * 101)), "nested more than 16 deep"),
    "no inputs": ({}, "expected 'inputs' to be a list of tensors, got null"),
    "inputs an object": ({"inputs": {}}, "expected 'inputs' to be a list"),
    "no name": (without("name"), "expected a 'name'"),
    "no datatype": (without("datatype"), "expected datatype to be one of BOOL"),
    "no shape": (without("shape"), "expected shape to be a list"),
    "no data": (without("data"), "exactly one of 'data' and the parameter 'binary_data_size'"),
    "both data": (one(parameters={"binary_data_size": 16}), "exactly one of 'data'"),
    "shared memory": (one(parameters={"shared_memory_region": "r"}), "shared memory is not offered"),
    "id a number": ({**one(), "id": 7}, "expected 'id' to be a string"),
    "negative dimension": (one(shape=[-1, 2]), "list of whole numbers from 0, got [-1, 2]"),
    "dimension of a fraction": (one(shape=[1.0, 2]), "got [1.0, 2]"),
    "dimension of truth": (one(shape=[True, 2]), "got [a boolean, 2]"),
    "dimension past 64 bits": (one(shape=[2**64, 2]), "failed to parse"),
    "shape overflow": (one(shape=[2**62, 2**62]), "shape does not match true shape of 'data'"),
    "much of nothing": (one(shape=[0, 2**62], data=[]), "too large, even of nothing"),
    "too many dimensions": (one(shape=[1] * 17), "more than 16 dimensions"),
    "count": (one(data=[1, 2, 3]), "shape does not match true shape of 'data': [1, 2], got 3 elements"),
    "nesting": (one(data=[[1], [2]]), "shape does not match true shape of 'data': [1, 2], got [2, 1]"),
    "empty data": (one(data=[]), "shape does not match"),
    "data for an empty shape": (one(shape=[0, 2], data=[[1]]), "shape does not match"),
    "ragged": (one(data=[[1], [2, 3]]), "different lengths"),
    "a list for a number": (one(data=[1, [2]]), "got a list at [1]"),
    "a hidden list, and brackets in a text": ({**one(data=[1, [2]]), "id": "]]"}, "got a list at [1]"),
    "data an object": (one(data={}), "expected data to be a list"),
    "1.5 for an integer": (one(data=[1, 1.5]), "expected whole numbers, got 1.5 at [1]"),
    "text for an integer": (one(data=["1", "2"]), "got text at [0]"),
    "null for an integer": (one(data=[1, None]), "got null at [1]"),
    "truth for an integer": (one(data=[True, False]), "whole numbers"),
    "past int64": (one(data=[1, 2**63]), "does not fit in int64"),
    "unknown datatype": (one(datatype="FP4"), "expected datatype to be one of"),
    "datatype mismatch": (
        one(datatype="INT32"),
        "inference input 'x' data-type is 'INT32', but model 'identity_INT64' expects 'INT64'",
    ),
    "rank": (
        one(shape=[2]),
        "unexpected shape for input 'x' for model 'identity_INT64'. Expected [-1,-1], got [2]",
    ),
    "unknown input": (
        {"inputs": [{**one()["inputs"][0], "name": "q"}]},
        "unexpected inference input 'q' for model 'identity_INT64'",
    ),
    "input twice": ({"inputs": one()["inputs"] * 2}, "input 'x' already exists in request"),
    "outputs an object": ({**one(), "outputs": {}}, "expected 'outputs' to be a list"),
    "unknown output": ({**one(), "outputs": [{"name": "q"}]}, "unexpected inference output 'q' for model 'identity"),
    "output twice": ({**one(), "outputs": [{"name": "y"}] * 2}, "output 'y' already exists in request"),
    "output in shared memory": (
        {**one(), "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
        "not offered",
    ),
    "binary_data a number": ({**one(), "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "a boolean"),
    "classification": ({**one(), "outputs": [{"name": "y", "parameters": {"classification": -1}}]}, "a whole number"),
    "parameters a list": ({**one(), "parameters": []}, "expected parameters to be an object"),
    "a parameter a list": ({**one(), "parameters": {"timeout": [1]}}, "to be text, a number or a boolean"),
    "triton's own parameter": ({**one(), "parameters": {"triton_x": 1}}, "'triton_x' is reserved"),
    "headers": ({**one(), "parameters": {"headers": "x"}}, "'headers' is reserved"),
    "unknown parameter": ({**one(), "parameters": {"is_casual": True}}, "unknown parameter 'is_casual'"),
    "timeout": ({**one(), "parameters": {"timeout": -1}}, "'timeout' to be a whole number"),
    "priority": ({**one(), "parameters": {"priority": "high"}}, "'priority' to be a whole number"),
    "sequence_id": ({**one(), "parameters": {"sequence_id": 1.5}}, "'sequence_id'"),
    "sequence_start": ({**one(), "parameters": {"sequence_start": 1}}, "'sequence_start' to be a boolean"),
}


@pytest.mark.parametrize(("body", "said"), PROTOCOL.values(), ids=PROTOCOL)
def test_400_of_the_protocol(server, body, said):
    error(infer(server, "identity_INT64", body), 400, said)


OTHERS = {
    "missing inputs": (
        "mixed",
        {"inputs": [tensor("flag", [True] * 4, "BOOL")]},
        "expected 4 inputs but got 1 inputs for model 'mixed'. Got input(s) ['flag'], but missing required input(s) "
        "['count', 'words', 'wide']. Please provide all required input(s).",
    ),
    "fixed dimension": (
        "mixed",
        {
            "inputs": [
                tensor("flag", [True] * 3, "BOOL"),
                tensor("count", [[1]] * 4, "INT32"),
                tensor("wide", [[1]] * 4, "FP64"),
                {"name": "words", "shape": [4], "datatype": "BYTES", "data": ["a"] * 4},
            ]
        },
        "unexpected shape for input 'flag' for model 'mixed'. Expected [4], got [3]",
    ),
    "batch disagrees": (
        "adder",
        {"inputs": [X, tensor("z", [[1, 2, 3]] * 2)]},
        "input 'z' batch size does not match other inputs for 'adder'",
    ),
    "batch too large": (
        "adder",
        {"inputs": [tensor("x", np.ones((1025, 3))), tensor("z", np.ones((1025, 3)))]},
        "inference request batch-size must be <= 1024 for 'adder'",
    ),
    "shapes only the runtime knows": (
        "product",
        {"inputs": [tensor("a", np.ones((2, 3))), tensor("b", np.ones((4, 2)))]},
        "model 'product' cannot be run on these inputs: a [2, 3], b [4, 2]",
    ),
    "booleans for numbers": ("identity_BOOL", one(datatype="BOOL", data=[1, 0]), "expected booleans, got numbers"),
    "past int8": ("identity_INT8", one(datatype="INT8", data=[1, 128]), "past the range of int8"),
    "below uint8": ("identity_UINT8", one(datatype="UINT8", data=[1, -1]), "does not fit in uint64"),
    "past float16": ("identity_FP16", one(datatype="FP16", data=[1, 1e6]), "past the range of float16"),
    "past float32": ("identity_FP32", one(datatype="FP32", data=[1, 1e39]), "past the range of float32"),
    "BF16 in JSON": ("identity_BF16", one(datatype="BF16"), "receiving BF16 data via JSON is not supported"),
    "a number for text": ("identity_BYTES", one(datatype="BYTES"), "expected strings, got 1"),
    "class of text": (
        "identity_BYTES",
        {**one(datatype="BYTES", data=["a", "b"]), "outputs": [{"name": "y", "parameters": {"classification": 1}}]},
        "class result not available for output 'y'",
    ),
    "our own shapes": (
        "scaled_dot_product",
        {"inputs": [QKV[0], tensor("key", np.ones((1, 1, 2, 3))), QKV[2]]},
        "key: expected last dimension 2 (d_k of query), got 3",
    ),
    "our own rank": (
        "scaled_dot_product",
        {"inputs": [tensor("query", np.ones((2, 2))), *QKV[1:]]},
        "unexpected shape for input 'query' for model 'scaled_dot_product'. Expected [-1,-1,-1,-1], got [2,2]",
    ),
    "our own parameters": (
        "scaled_dot_product",
        {"inputs": QKV, "parameters": {"softcap": -1}},
        "softcap: expected at least 0",
    ),
    "a parameter's type": (
        "scaled_dot_product",
        {"inputs": QKV, "parameters": {"is_causal": 1}},
        "is_causal: expected a boolean, got 1",
    ),
    "another block's parameter": (
        "dot_product",
        {"inputs": QKV, "parameters": {"scale": 1}},
        "unknown parameter 'scale' for model 'dot_product'",
    ),
}


@pytest.mark.parametrize(("model", "body", "said"), OTHERS.values(), ids=OTHERS)
def test_400_of_the_model(server, model, body, said):
    error(infer(server, model, body), 400, said)


@pytest.mark.parametrize(
    ("length", "body", "said"),
    [
        ("one", b"{}", "expected Inference-Header-Content-Length to be a whole number"),
        ("-1", b"{}", "expected Inference-Header-Content-Length"),
        ("4294967296", b"{}", "expected Inference-Header-Content-Length"),
        ("9" * 5000, b"{}", "expected Inference-Header-Content-Length"),
        ("3", b"{}", "more than the 2 bytes of the body"),
    ],
)
def test_400_of_the_header(server, length, body, said):
    error(infer(server, "adder", body, **{"Inference-Header-Content-Length": length}), 400, said)


def attached(given, content):
    head = json.dumps({"inputs": [{**BINARY, **given}, Z]}).encode()
    return head + content, {"Inference-Header-Content-Length": str(len(head))}


@pytest.mark.parametrize(
    ("given", "content", "said"),
    [
        ({}, bytes(13), "unexpected additional input data for model 'adder'"),
        ({}, bytes(9), "unexpected size for input 'x', expecting 3 additional bytes for model 'adder'"),
        (
            {"parameters": {"binary_data_size": 8}},
            bytes(8),
            "input byte size mismatch for input 'x' for model 'adder'. Expected 12, got 8",
        ),
        ({"shape": [2**60, 2**60]}, bytes(12), "input byte size mismatch"),
        ({"parameters": {"binary_data_size": "12"}}, bytes(12), "expected binary_data_size to be a whole number"),
        ({"parameters": {"binary_data_size": -1}}, bytes(12), "expected binary_data_size"),
    ],
)
def test_400_of_the_bytes(server, given, content, said):
    body, headers = attached(given, content)
    error(infer(server, "adder", body, **headers), 400, said)


@pytest.mark.parametrize(
    ("datatype", "size", "content", "said"),
    [
        ("BYTES", 7, b"\x02\0\0\0ab\0", "the bytes end within element 1"),
        ("BYTES", 6, b"\x09\0\0\0ab", "the bytes end within element 0"),
        ("BYTES", 6, b"\x02\0\0\0ab", "expected 2 strings for inference input 'x', got 1"),
        ("BYTES", 10, b"\x02\0\0\0\xff\xfe\0\0\0\0", "not UTF-8"),
    ],
)
def test_400_of_texts(server, datatype, size, content, said):
    given = {"name": "x", "shape": [1, 2], "datatype": datatype, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [given]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    error(infer(server, f"identity_{datatype}", head + content, **headers), 400, said)


def test_400_an_internal_path_is_never_shown(server):
    bad = {"inputs": [tensor("a", np.ones((2, 3))), tensor("b", np.ones((4, 2)))]}
    assert "/" not in infer(server, "product", bad).json()["error"]


def test_400_oversize(repository):
    with serving(repository, "--max-body-bytes", "1000", "--max-memory-bytes", "100000") as client:
        error(infer(client, "dot_product", bytes(1001)), 400, "1,001 bytes", "exceeds the maximum allowed")
        many = [tensor(name, np.ones((1, 1, 200, 1)), parameters={}) for name in ("query", "key", "value")]
        head = json.dumps(
            {"inputs": [{**of, "data": None, "parameters": {"binary_data_size": 800}} for of in many]}
        ).encode()
        with serving(repository, "--max-memory-bytes", "100000") as other:
            headers = {"Inference-Header-Content-Length": str(len(head))}
            content = head + np.ones(600, np.float32).tobytes()
            error(infer(other, "dot_product", content, **headers), 400, "exceeds the maximum allowed", "max_memory")


def test_400_oversize_is_read_to_its_end_by_the_client(repository):
    """A client that sends all before it reads must still find the error, and the connection must still serve."""
    with serving(repository, "--max-body-bytes", "1000") as client:
        size = 64 << 20
        with socket.create_connection((client.base_url.host, client.base_url.port), timeout=30) as raw:
            raw.sendall(
                f"POST /v2/models/dot_product/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
            )
            raw.sendall(bytes(size))
            assert raw.recv(12) == b"HTTP/1.1 400"


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_501_an_unknown_encoding(server, encoding):
    response = infer(server, "adder", GOOD, **{"Content-Encoding": encoding})
    error(response, 501, f"Content-Encoding '{encoding}' is not supported")
    assert response.headers["accept-encoding"] == "gzip, deflate"


def test_501_another_repository(server):
    for path in ("index", "models/adder/load", "models/adder/unload"):
        error(server.post(f"/v2/repository/other/{path}"), 501, "there is one repository")


def test_501_what_is_not_offered(server):
    error(server.post("/v2/trace/setting", json={"trace_file": "x"}), 501, "tracing is not offered")
    error(server.post("/v2/systemsharedmemory/region/r/register", json={}), 501, "shared memory is not offered")


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_503_control_that_is_not_allowed(repository, mode):
    with serving(repository, "--model-control-mode", mode) as client:
        for what in ("load", "unload"):
            response = client.post(f"/v2/repository/models/dot_product/{what}")
            error(response, 503, "explicit model load / unload is not allowed if polling is enabled")
        error(client.post("/v2/logging", json={"log_info": False}), 503, "not allowed")
        assert client.post("/v2/repository/index").status_code == 200
        assert {"model_repository", "logging"}.isdisjoint(client.get("/v2").json()["extensions"])


def test_503_while_loading(repository):
    from fastapi.testclient import TestClient

    from service.app import create_app
    from service.settings import Settings

    client = TestClient(create_app(Settings(model_repository=repository)))  # its lifespan, which loads, never runs
    error(client.get("/v2/models/dot_product"), 503, "Server not ready")
    error(client.post("/v2/models/dot_product/infer", json={}), 503, "Server not ready")
    assert client.get("/v2").status_code == 200


def test_504_past_its_deadline(server):
    rows = tensor("x", np.ones((1024, 512)))
    response = infer(server, "slow", {"inputs": [rows], "parameters": {"timeout": 1000}})
    error(response, 504, "Request timeout expired")


def test_a_version_that_failed(repository, tmp_path):
    graphs.adder(tmp_path / "adder" / "1")
    (tmp_path / "adder" / "2").mkdir()
    (tmp_path / "adder" / "2" / "model.onnx").write_bytes(b"not onnx")
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"not onnx")
    with serving(tmp_path, "--versions", "all", "--model-control-mode", "explicit") as client:
        error(client.get("/v2/models/adder/versions/2"), 503, "'adder' version 2 is not at ready state")
        error(client.get("/v2/models/broken"), 404, "'broken' has no available versions")
        assert infer(client, "adder", GOOD).json()["model_version"] == "1"
        states = {(of["name"], of.get("version")): of for of in client.post("/v2/repository/index").json()}
        assert states["adder", "1"]["state"] == "READY"
        assert states["adder", "2"]["state"] == "UNAVAILABLE"
        assert str(tmp_path) not in json.dumps(list(states.values()))
        ready = client.post("/v2/repository/index", json={"ready": True}).json()
        assert ready == [{"name": "adder", "version": "1", "state": "READY"}]
        response = client.post("/v2/repository/models/broken/load")
        error(response, 400, "failed to load 'broken'")
        assert str(tmp_path) not in response.text


CONTROL = {
    "not JSON": ("models/adder/load", b"{", "failed to parse the request JSON buffer"),
    "a list": ("index", b"[]", "failed to parse"),
    "ready a word": ("index", b'{"ready": "perhaps"}', "ready"),
    "parameter a list": ("models/adder/load", b'{"parameters": {"config": []}}', "failed to parse"),
    "unknown parameter": (
        "models/adder/load",
        b'{"parameters": {"x": 1}}',
        "failed to load 'adder', unknown parameter",
    ),
    "config not JSON": ("models/adder/load", b'{"parameters": {"config": "{"}}', "failed to load 'adder', config"),
    "another name": (
        "models/adder/load",
        b'{"parameters": {"config": "{\\"name\\": \\"b\\"}"}}',
        "'name' is the model",
    ),
    "unknown config": ("models/adder/load", b'{"parameters": {"config": "{\\"speed\\": 1}"}}', "'speed' cannot be set"),
    "no version": (
        "models/adder/load",
        b'{"parameters": {"config": "{\\"version_policy\\": {\\"specific\\": {\\"versions\\": [9]}}}"}}',
        "failed to load 'adder', has no version",
    ),
    "files alone": ("models/new/load", b'{"parameters": {"file:1/model.onnx": ""}}', "files need a config"),
    "a path out": (
        "models/new/load",
        b'{"parameters": {"config": "{}", "file:1/../model.onnx": ""}}',
        "no name of a file",
    ),
    "no version in the path": (
        "models/new/load",
        b'{"parameters": {"config": "{}", "file:../model.onnx": ""}}',
        "expected file:<version>/<name>",
    ),
    "no base64": ("models/new/load", b'{"parameters": {"config": "{}", "file:1/model.onnx": "%"}}', "is not base64"),
}


@pytest.mark.parametrize(("path", "body", "said"), CONTROL.values(), ids=CONTROL)
def test_400_of_control(server, path, body, said):
    response = server.post(f"/v2/repository/{path}", content=body)
    error(response, 404 if "has no version" in said else 400, said)
    assert infer(server, "adder", GOOD).status_code == 200


def test_after_every_error_the_next_request_is_right(server):
    for body, _ in PROTOCOL.values():
        infer(server, "identity_INT64", body)
    assert infer(server, "adder", GOOD, 1).json()["outputs"][0]["data"] == [3, 5, 7]
