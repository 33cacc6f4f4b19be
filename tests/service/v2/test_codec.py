"""Tensors on the wire: every datatype in both forms, exact bytes, numbers that JSON cannot say, compression."""

import gzip
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from service.ort.provider import Provider, open_session
from tests.support import graphs
from tests.support.application import running
from tests.support.v2 import ADD, NUMBERS, binary, error, infer, infer_attached, parts, tensor

QKV = [tensor(name, np.ones((1, 1, 2, 2))) for name in ("query", "key", "value")]


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("nested", [True, False])
def test_json_there_and_back(server, datatype, nested):
    values = NUMBERS[datatype]
    given = {"name": "x", "shape": [2, 1], "datatype": datatype, "data": [[v] for v in values] if nested else values}
    answer = infer(server, f"identity_{datatype}", {"inputs": [given], "id": "[[", "unknown": [1, [2]]}).json()
    expected = pytest.approx(values) if datatype == "FP32" else values
    assert answer == {
        "model_name": f"identity_{datatype}",
        "model_version": "1",
        "id": "[[",
        "outputs": [{"name": "y", "datatype": datatype, "shape": [2, 1], "data": expected}],
    }


@pytest.mark.parametrize("datatype", sorted(set(graphs.ONNX) - {"BYTES", "BOOL"}))
def test_binary_bytes_are_not_touched(server, datatype):
    """Any bits at all, NaN payloads among them, come back as they went."""
    size = int(datatype.lstrip("BFINTUP")) // 8
    content = np.random.default_rng(0).integers(0, 256, 6 * size, np.uint8)
    array = content.view(f"u{size}").reshape(2, 3)
    answer, found = parts(binary(server, f"identity_{datatype}", {"x": array}, {"x": datatype}))
    assert found["y"] == content.tobytes()
    assert answer["outputs"][0]["datatype"] == datatype


def test_binary_answers_are_the_engine_s_bytes(server, zoo):
    rng = np.random.default_rng(1)
    inputs = {name: rng.standard_normal((2, 2, 7, 16), np.float32) for name in ("query", "key", "value")}
    outputs = ["output", "weights", "scores"]
    response = binary(
        server,
        "scaled_dot_product",
        inputs,
        dict.fromkeys(inputs, "FP32"),
        parameters={"is_causal": True},
        outputs=[{"name": name, "parameters": {"binary_data": True}} for name in outputs],
    )
    _, found = parts(response)
    session = open_session(zoo / "scaled_dot_product" / "1" / "model.onnx", Provider("cpu", "test"), 2)
    exact = session.run(outputs, {**inputs, "is_causal": np.asarray(True)})
    for name, array in zip(outputs, exact, strict=True):
        assert found[name] == array.tobytes()


def test_any_byte_but_zero_is_true(server):
    """As perf_analyzer sends them."""
    _, found = parts(binary(server, "identity_BOOL", {"x": np.array([[0, 1, 2, 255]], "u1")}, {"x": "BOOL"}))
    assert found["y"] == b"\0\1\1\1"


def test_a_flag_in_binary(server):
    tensors = {name: np.ones((1, 1, 2, 2), np.float32) for name in ("query", "key", "value")}
    datatypes = {**dict.fromkeys(tensors, "FP32"), "is_causal": "BOOL"}
    wanted = [{"name": "weights", "parameters": {"binary_data": True}}]
    for flag, first in ((True, [1, 0]), (False, [0.5, 0.5])):
        arrays = {**tensors, "is_causal": np.array(flag)}
        _, found = parts(binary(server, "scaled_dot_product", arrays, datatypes, outputs=wanted))
        assert np.frombuffer(found["weights"], np.float32)[:2].tolist() == first


SPECIAL = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)
SPECIAL_INPUT = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
Y = {"outputs": [{"name": "y"}]}


def special(client, **fields):
    """NaN and both infinities in binary to an identity, whose answer is JSON."""
    return infer_attached(client, "identity_FP32", {"inputs": [SPECIAL_INPUT], **fields}, SPECIAL.tobytes())


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Two models, for applications with settings of their own."""
    folder = tmp_path_factory.mktemp("small")
    graphs.adder(folder / "adder" / "1")
    graphs.identity(folder / "identity_FP32" / "1", "FP32")
    return folder


def test_nan_and_infinity_of_an_output_that_is_named_are_refused_in_json(server):
    _, found = parts(binary(server, "identity_FP32", {"x": SPECIAL}, {"x": "FP32"}))
    assert found["y"] == SPECIAL.tobytes()
    error(special(server, **Y), 400, "output 'y' holds NaN or infinity", "'binary_data'")


@pytest.mark.parametrize(
    ("choice", "shown"), [("nulls", "[null,null,null,1.0]"), ("tokens", "[NaN, Infinity, -Infinity, 1.0]")]
)
def test_nan_and_infinity_are_nulls_or_tokens_by_setting(small, choice, shown):
    with running(small, json_non_finite=choice) as client:
        assert shown in special(client, **Y).text
        assert shown in special(client).text


def test_what_nobody_named_does_not_fail_a_request(server):
    """Without a list of outputs all are answered, and what JSON has no words for is null."""
    assert special(server).json()["outputs"][0]["data"] == [None, None, None, 1]
    for _ in range(3):  # the first is read as a whole, the others by the plan of the first
        answer, _ = parts(infer(server, "scaled_dot_product", {"inputs": QKV, "parameters": {"is_causal": True}}))
        found = {of["name"]: of["data"] for of in answer["outputs"]}
        assert found["weights"] == [1, 0, 0.5, 0.5]
        assert [score is None for score in found["scores"]] == [False, True, False, False]


def test_minus_infinity_in_scores_that_are_named_is_never_null(server):
    body = {"inputs": QKV, "parameters": {"is_causal": True}, "outputs": [{"name": "scores"}]}
    assert infer(server, "scaled_dot_product", body).status_code == 400
    body["outputs"] = [{"name": "scores", "parameters": {"binary_data": True}}, {"name": "weights"}]
    answer, found = parts(infer(server, "scaled_dot_product", body))
    assert np.isneginf(np.frombuffer(found["scores"], np.float32)[1])
    assert answer["outputs"][1]["data"] == [1, 0, 0.5, 0.5]


def test_mixed_forms_in_one_request(server):
    x = {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}
    content = np.arange(3, dtype=np.float32).tobytes()
    for padding in range(4):  # at any length of the JSON, so that the numbers are not aligned
        body = {"inputs": [x, tensor("z", [[10, 20, 30]])], "id": "a" * padding}
        answer = infer_attached(server, "adder", body, content, 1).json()
        assert answer["outputs"][0]["data"] == [11, 22, 33]


@pytest.mark.parametrize(
    ("general", "own", "is_binary"), [(True, False, False), (False, True, True), (True, None, False)]
)
def test_an_output_that_is_listed_is_json_unless_it_says_otherwise(server, general, own, is_binary):
    """As Triton has it: the request's binary_data_output is about the outputs of a request that lists none."""
    body = {**ADD, "parameters": {"binary_data_output": general}}
    assert ("inference-header-content-length" in infer(server, "adder", body, 1).headers) == general
    for _ in range(3):
        output = {"name": "y"} if own is None else {"name": "y", "parameters": {"binary_data": own}}
        response = infer(server, "adder", {**body, "outputs": [output]}, 1)
        assert ("inference-header-content-length" in response.headers) == is_binary
        assert response.headers["content-type"] == f"application/{'octet-stream' if is_binary else 'json'}"
        answer, found = parts(response)
        numbers = np.frombuffer(found["y"], np.float32).tolist() if is_binary else answer["outputs"][0]["data"]
        assert numbers == [3, 5, 7]


def test_the_header_may_span_pure_json(server):
    response = infer_attached(server, "adder", ADD, b"")
    assert response.headers["content-type"] == "application/json"
    assert response.json()["outputs"][0]["data"] == [4, 6, 8]


@pytest.mark.parametrize("shape", [[0, 3], [2, 0]])
def test_nothing_is_something(server, shape):
    nothing = {"name": "x", "shape": shape, "datatype": "FP32"}
    nested = [[] for _ in range(shape[0])]
    for data in ([], nested):
        answer = infer(server, "identity_FP32", {"inputs": [{**nothing, "data": data}]}).json()
        assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": shape, "data": []}]
    response = binary(server, "identity_FP32", {"x": np.empty(shape, np.float32)}, {"x": "FP32"})
    assert "inference-header-content-length" not in response.headers
    assert response.headers["content-type"] == "application/json"
    assert response.json()["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_raw_requests(server):
    raw = {"Inference-Header-Content-Length": "0"}
    numbers = np.arange(5, dtype=np.float64)
    answer, found = parts(infer(server, "identity_FP64", numbers.tobytes(), **raw))
    assert answer["outputs"][0]["shape"] == [1, 5]
    assert found["y"] == numbers.tobytes()
    assert infer(server, "adder", b"", **raw).json()["error"].startswith("a raw request needs a model with one input")
    assert "mismatch" in infer(server, "identity_FP64", b"123", **raw).json()["error"]
    answer, found = parts(infer(server, "identity_BYTES", b"text", **raw))
    assert found["y"] == b"\x04\0\0\0text"


def test_single_numbers(server):
    """As a parameter, as a tensor without axes, as a tensor of one."""
    x, parameter = tensor("x", [1, 2]), {"parameters": {"by": 3}}
    for body in (
        {"inputs": [x], **parameter},
        {"inputs": [x, tensor("by", 3.0)]},
        {"inputs": [x, tensor("by", [3.0])]},
    ):
        assert infer(server, "scalar", body).json()["outputs"][0]["data"] == [3, 6]
    error(infer(server, "scalar", {"inputs": [x]}), 400, "missing required input(s) ['by']")
    error(infer(server, "scalar", {"inputs": [x, tensor("by", 3.0)], **parameter}), 400, "as input and as parameter")
    metadata = server.get("/v2/models/scalar").json()["inputs"]
    assert {"name": "by", "datatype": "FP32", "shape": []} in metadata


COMPRESS = {"gzip": gzip.compress, "deflate": zlib.compress}
LARGE = {"inputs": [tensor(name, np.ones((400, 3))) for name in ("x", "z")]}


@pytest.mark.parametrize("encoding", COMPRESS)
def test_requests_are_inflated_within_bounds(small, encoding):
    body, compress, coded = json.dumps(ADD).encode(), COMPRESS[encoding], {"Content-Encoding": encoding}
    with running(small, max_body_bytes=1000) as client:
        assert infer(client, "adder", compress(body), **coded).status_code == 200
        bomb = compress(body + b" " * 100_000)
        error(infer(client, "adder", bomb, **coded), 400, "exceeds the maximum allowed")
        for broken in (body, compress(body)[:-6], compress(body) + b"more"):
            error(infer(client, "adder", broken, **coded), 400, f"is not {encoding}")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0.5, identity", "gzip"),
        ("gzip;q=0", None),
        ("gzip, deflate", None),
        ("gzip, deflate, br", None),
        ("br", None),
        ("*", None),
        ("identity", None),
        ("gzip;q=1.2.3;;,", "gzip"),
        ("", None),
    ],
)
def test_answers_are_compressed_only_when_one_encoding_is_named(server, accept, expected):
    with server.stream("POST", "/v2/models/adder/infer", json=LARGE, headers={"Accept-Encoding": accept}) as response:
        content = b"".join(response.iter_raw())
    assert response.headers.get("content-encoding") == expected
    wbits = {"gzip": 31, "deflate": 15}
    assert json.loads(zlib.decompress(content, wbits[expected]) if expected else content)["model_name"] == "adder"


def test_short_answers_are_plain(server):
    headers = {"Accept-Encoding": "gzip"}
    assert "content-encoding" not in infer(server, "adder", ADD, **headers).headers
    assert "content-encoding" not in server.get("/v2/models/mixed", headers=headers).headers


@pytest.mark.parametrize(
    ("choice", "accept", "expected"),
    [("never", "gzip", None), ("offered", "gzip;q=0.1, deflate, br", "deflate")],
)
def test_compression_is_a_setting(small, choice, accept, expected):
    with running(small, compress_responses=choice) as client:
        response = infer(client, "adder", LARGE, **{"Accept-Encoding": accept})
        assert response.headers.get("content-encoding") == expected
