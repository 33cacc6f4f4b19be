"""Tensors on the wire: every datatype in both forms, exact bytes, numbers that JSON cannot say, compression."""

import gzip
import json
import threading
import zlib
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.base.steps import drain
from service.http.compression import MIN_BYTES, choose_encoding
from service.ort.provider import Provider, open_session
from service.v2.infer.classes import class_texts, largest
from tests.support import graphs
from tests.support.application import running
from tests.support.in_process import serving_in_process
from tests.support.v2 import ADD, NUMBERS, QKV, binary, binary_input, error, infer, infer_bytes, packed, parts, tensor


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("nested", [True, False])
def test_json_there_and_back(server, datatype, nested):
    values = NUMBERS[datatype]
    given = {"name": "x", "shape": [2, 1], "datatype": datatype, "data": [[v] for v in values] if nested else values}
    answer = infer(server, f"identity_{datatype}", {"inputs": [given], "id": "[[", "unknown": [1, [2]]}).json()
    kind = {"BOOL": bool, "BYTES": str}.get(datatype, int if "INT" in datatype else float)
    assert {type(value) for value in answer["outputs"][0]["data"]} == {kind}
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


@pytest.mark.parametrize("is_causal", [True, False])
def test_binary_answers_are_the_engine_s_bytes(server, zoo, is_causal):
    rng = np.random.default_rng(1)
    inputs = {name: rng.standard_normal((2, 2, 7, 16), np.float32) for name in ("query", "key", "value")}
    inputs["is_causal"] = np.asarray(is_causal)
    datatypes = dict.fromkeys(inputs, "FP32") | {"is_causal": "BOOL"}
    names = ["output", "weights", "scores"]
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in names]
    _, found = parts(binary(server, "scaled_dot_product", inputs, datatypes, outputs=outputs))
    session = open_session(zoo / "scaled_dot_product" / "1" / "model.onnx", Provider("cpu", "test"), 2)
    exact = session.run(names, inputs)
    assert found == {name: array.tobytes() for name, array in zip(names, exact, strict=True)}


def test_any_byte_but_zero_is_true(server):
    """As perf_analyzer sends them."""
    _, found = parts(binary(server, "identity_BOOL", {"x": np.array([[0, 1, 2, 255]], "u1")}, {"x": "BOOL"}))
    assert found["y"] == b"\0\1\1\1"


SPECIAL = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)
SPECIAL_INPUT = binary_input("x", [1, 4], 16)
Y = {"outputs": [{"name": "y"}]}


def special(client, **fields):
    """NaN and both infinities in binary to an identity, whose answer is JSON."""
    return infer_bytes(client, "identity_FP32", {"inputs": [SPECIAL_INPUT], **fields}, SPECIAL.tobytes())


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Two models, for applications with settings of their own."""
    folder = tmp_path_factory.mktemp("small")
    graphs.adder(folder / "adder" / "1")
    graphs.identity(folder / "identity_FP32" / "1", "FP32")
    return folder


def test_nan_and_infinity_of_an_output_that_is_named_are_refused_in_json(server):
    error(special(server, **Y), 400, "output 'y' contains NaN or infinity", "'binary_data'")


def test_what_nobody_named_does_not_fail_a_request(server):
    """Without a list of outputs all are answered, and what JSON has no words for is null."""
    assert special(server).json()["outputs"][0]["data"] == [None, None, None, 1]
    for _ in range(3):  # the first is read as a whole, the others by the plan of the first
        answer, _ = parts(infer(server, "scaled_dot_product", {"inputs": QKV, "parameters": {"is_causal": True}}))
        found = {of["name"]: of["data"] for of in answer["outputs"]}
        assert found["weights"] == [1, 0, 0.5, 0.5]
        assert [score is None for score in found["scores"]] == [False, True, False, False]


def test_minus_infinity_in_scores_that_are_named_is_sent_in_binary(server):
    scores = {"name": "scores", "parameters": {"binary_data": True}}
    body = {"inputs": QKV, "parameters": {"is_causal": True}, "outputs": [scores, {"name": "weights"}]}
    answer, found = parts(infer(server, "scaled_dot_product", body))
    assert np.isneginf(np.frombuffer(found["scores"], np.float32)[1])
    assert answer["outputs"][1]["data"] == [1, 0, 0.5, 0.5]


def test_mixed_forms_in_one_request(server):
    x = binary_input("x", [1, 3], 12)
    content = np.arange(3, dtype=np.float32).tobytes()
    for padding in range(4):  # at any length of the JSON, so that the numbers are not aligned
        body = {"inputs": [x, tensor("z", [[10, 20, 30]])], "id": "a" * padding}
        answer = infer_bytes(server, "adder", body, content, 1).json()
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
    response = infer_bytes(server, "adder", ADD, b"")
    assert response.headers["content-type"] == "application/json"
    assert response.json()["outputs"][0]["data"] == [4, 6, 8]


@pytest.mark.parametrize("datatype", ["FP32", "BOOL"])
@pytest.mark.parametrize("shape", [[0, 3], [2, 0]])
def test_nothing_is_something(server, shape, datatype):
    for data in ([], [[]] * shape[0]):
        nothing = {"name": "x", "shape": shape, "datatype": datatype, "data": data}
        answer = infer(server, f"identity_{datatype}", {"inputs": [nothing]}).json()
        assert answer["outputs"] == [{"name": "y", "datatype": datatype, "shape": shape, "data": []}]
    empty = np.empty(shape, np.float32 if datatype == "FP32" else np.uint8)
    response = binary(server, f"identity_{datatype}", {"x": empty}, {"x": datatype})
    assert "inference-header-content-length" not in response.headers
    assert response.headers["content-type"] == "application/json"
    assert response.json()["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_raw_requests(server):
    raw = {"Inference-Header-Content-Length": "0"}
    numbers = np.arange(5, dtype=np.float64)
    answer, found = parts(infer(server, "identity_FP64", numbers.tobytes(), **raw))
    assert answer["outputs"][0]["shape"] == [1, 5]
    assert found["y"] == numbers.tobytes()
    _, found = parts(infer(server, "identity_BYTES", b"text", **raw))
    assert found["y"] == packed(["text"])
    error(infer(server, "adder", b"", **raw), 400, "a raw request needs a model with one input")
    error(infer(server, "identity_FP64", b"123", **raw), 400, "mismatch")


def test_single_numbers(server):
    """As a parameter, as a tensor without axes, as a tensor of one."""
    x, parameter = tensor("x", [1, 2]), {"parameters": {"by": 3}}
    for body in ({"inputs": [x], **parameter}, *({"inputs": [x, tensor("by", by)]} for by in (3.0, [3.0]))):
        assert infer(server, "scalar", body).json()["outputs"][0]["data"] == [3, 6]
    error(infer(server, "scalar", {"inputs": [x]}), 400, "missing required input(s) ['by']")
    error(
        infer(server, "scalar", {"inputs": [x, tensor("by", 3.0)], **parameter}),
        400,
        "both as an input and as a parameter",
    )
    metadata = server.get("/v2/models/scalar").json()["inputs"]
    assert {"name": "by", "datatype": "FP32", "shape": []} in metadata


@pytest.mark.parametrize(
    ("k", "batched", "expected"),
    [
        (2, True, [["9.000000:1", "9.000000:2"], ["8.500000:2", "7.000000:0"]]),
        (9, True, [["9.000000:1", "9.000000:2", "3.000000:0"], ["8.500000:2", "7.000000:0", "-2.000000:1"]]),
        (1, False, ["9.000000:1"]),
    ],
)
def test_classes(k, batched, expected):
    """Of values that are equal the first comes first."""
    array = np.array([[3, 9, 9], [7, -2, 8.5]], np.float32)
    assert drain(class_texts(*largest("y", array, k, batched))).tolist() == expected


def test_classes_are_the_first_of_a_stable_sort():
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float16, np.int64, np.uint8):
        for _ in range(100):
            array = rng.integers(0, 5, rng.integers(1, 8, rng.integers(1, 4))).astype(dtype)
            if array.dtype.kind == "f":
                array[rng.random(array.shape) < 0.2] = np.nan
            k = int(rng.integers(1, 9))
            rows = array.reshape(len(array), -1)
            order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :k]
            values, indices = largest("y", array, k, batched=True)
            np.testing.assert_array_equal(indices, order)
            np.testing.assert_array_equal(values, np.take_along_axis(rows, order, axis=1))


def test_classes_of_many_numbers_are_found_in_a_thread(zoo, monkeypatch):
    """Also where requests of as many numbers, which are only written, have taught that they take little time."""
    threads = []

    def recorded(*arguments):
        threads.append(threading.current_thread())
        return largest(*arguments)

    monkeypatch.setattr("service.v2.infer.endpoint.largest", recorded)
    x = np.zeros((1, 1, 500, 1), np.float32)
    inputs = [tensor(name, x) for name in ("query", "key", "value")]
    classes = {"name": "weights", "parameters": {"classification": 1}}
    with serving_in_process(zoo, inline_ns=2_000_000) as service:
        url = f"http://127.0.0.1:{service.port}/v2/models/scaled_dot_product/infer"
        for _ in range(20):
            httpx.post(url, json={"inputs": inputs}).raise_for_status()
        answer = httpx.post(url, json={"inputs": inputs, "outputs": [classes]}).raise_for_status().json()
        assert answer["outputs"][0]["data"] == ["0.002000:0"]
    assert [thread.name.startswith("heed-offload") for thread in threads] == [True]


COMPRESS = {"gzip": gzip.compress, "deflate": zlib.compress}
LARGE = {"inputs": [tensor("x", np.ones((400, 50)))]}  # more numbers than are written at once


@pytest.mark.parametrize("encoding", COMPRESS)
def test_requests_are_inflated_within_bounds(small, encoding):
    body, compress, coded = json.dumps(ADD).encode(), COMPRESS[encoding], {"Content-Encoding": encoding}
    with running(small, max_body_bytes=1000) as client:
        assert infer(client, "adder", compress(body), **coded).status_code == 200
        bomb = compress(body + b" " * 100_000)
        error(infer(client, "adder", bomb, **coded), 400, "exceeds the maximum allowed")
        error(infer(client, "adder", body, **coded), 400, f"invalid {encoding} data")
        for broken in (compress(body)[:-6], compress(body) + b"more"):
            error(infer(client, "adder", broken, **coded), 400, f"end of the {encoding} body")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        *(("gzip", "gzip"), ("deflate", "deflate"), ("GZIP", "gzip"), ("gzip;q=0.5, identity", "gzip")),
        *((accept, None) for accept in ("gzip;q=0", "gzip, deflate", "gzip, deflate, br", "br", "*", "identity", "")),
        ("gzip;q=1.2.3;;,", "gzip"),
    ],
)
def test_responses_are_compressed_only_when_one_encoding_is_named(accept, expected):
    assert choose_encoding(accept, "requested", MIN_BYTES) == expected
    assert choose_encoding(accept, "requested", MIN_BYTES - 1) is None


@pytest.mark.parametrize(
    ("choice", "accept", "expected"),
    [
        ("requested", "gzip", "gzip"),
        ("requested", "gzip, deflate", None),
        ("never", "gzip", None),
        ("offered", "gzip;q=0.1, deflate, br", "deflate"),
    ],
)
def test_compression_is_a_setting(small, choice, accept, expected):
    with running(small, compress_responses=choice) as client:
        response = infer(client, "identity_FP32", LARGE, **{"Accept-Encoding": accept})
    assert response.headers.get("content-encoding") == expected
    assert response.json()["outputs"][0]["data"] == [1] * 20_000  # which httpx has decompressed
