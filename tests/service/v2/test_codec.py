"""Tensors on the wire: every datatype in both forms, exact bytes, numbers that JSON cannot say, compression."""

import gzip
import json
import zlib
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.ort.provider import Provider, open_session
from tests.support import graphs
from tests.support.server import serving
from tests.support.v2 import ADD, NUMBERS, binary, infer, parts, tensor


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("nested", [True, False])
def test_json_there_and_back(server, datatype, nested):
    values = NUMBERS[datatype]
    given = {"name": "x", "shape": [2, 1], "datatype": datatype, "data": [[v] for v in values] if nested else values}
    answer = infer(server, f"identity_{datatype}", {"inputs": [given], "id": "[[", "unknown": [1, [2]]}).json()
    assert answer == {
        "model_name": f"identity_{datatype}",
        "model_version": "1",
        "id": "[[",
        "outputs": [
            {
                "name": "y",
                "datatype": datatype,
                "shape": [2, 1],
                "data": pytest.approx(values) if datatype == "FP32" else values,
            }
        ],
    }


@pytest.mark.parametrize("datatype", sorted(set(graphs.ONNX) - {"BYTES", "BOOL"}))
def test_binary_bytes_are_not_touched(server, datatype):
    """Any bits at all, NaN payloads among them, come back as they went."""
    sizes = {"8": 1, "16": 2, "32": 4, "64": 8}
    size = next(size for bits, size in sizes.items() if datatype.endswith(bits))
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


def special(client, **fields):
    """NaN and both infinities in binary to an identity, whose answer is JSON."""
    given = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    head = json.dumps({"inputs": [given], **fields}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return infer(client, "identity_FP32", head + SPECIAL.tobytes(), **headers)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Two models, for servers with settings of their own, which start sooner than with one of each sort."""
    folder = tmp_path_factory.mktemp("small")
    graphs.adder(folder / "adder" / "1")
    graphs.identity(folder / "identity_FP32" / "1", "FP32")
    return folder


def test_nan_and_infinity(server, small):
    _, found = parts(binary(server, "identity_FP32", {"x": SPECIAL}, {"x": "FP32"}))
    assert found["y"] == SPECIAL.tobytes()
    named = {"outputs": [{"name": "y"}]}
    response = special(server, **named)
    assert response.status_code == 400
    assert "output 'y' holds NaN or infinity" in response.json()["error"]
    assert "'binary_data'" in response.json()["error"]
    for choice, shown in (("nulls", "[null,null,null,1.0]"), ("tokens", "[NaN, Infinity, -Infinity, 1.0]")):
        with serving(small, "--json-non-finite", choice) as other:
            assert shown in special(other, **named).text
            assert shown in special(other).text


def test_what_nobody_named_does_not_fail_a_request(server):
    """Without a list of outputs all are answered, and what JSON has no words for is null."""
    assert special(server).json()["outputs"][0]["data"] == [None, None, None, 1]
    given = [tensor(name, np.ones((1, 1, 2, 2))) for name in ("query", "key", "value")]
    for _ in range(3):  # the first is read as a whole, the others by the plan of the first
        answer = infer(server, "scaled_dot_product", {"inputs": given, "parameters": {"is_causal": True}})
        assert answer.status_code == 200, answer.text
        found = {of["name"]: of["data"] for of in answer.json()["outputs"]}
        assert found["weights"] == [1, 0, 0.5, 0.5]
        assert [score is None for score in found["scores"]] == [False, True, False, False]


def test_minus_infinity_in_scores_that_are_named_is_never_null(server):
    given = [tensor(name, np.ones((1, 1, 2, 2))) for name in ("query", "key", "value")]
    body = {"inputs": given, "parameters": {"is_causal": True}, "outputs": [{"name": "scores"}]}
    assert infer(server, "scaled_dot_product", body).status_code == 400
    body["outputs"] = [{"name": "scores", "parameters": {"binary_data": True}}, {"name": "weights"}]
    answer, found = parts(infer(server, "scaled_dot_product", body))
    assert np.isneginf(np.frombuffer(found["scores"], np.float32)[1])
    assert answer["outputs"][1]["data"] == [1, 0, 0.5, 0.5]


def test_mixed_forms_in_one_request(server):
    x = np.arange(3, dtype=np.float32)[None]
    inputs = [
        {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}},
        tensor("z", [[10, 20, 30]]),
    ]
    head = json.dumps({"inputs": inputs}).encode()
    for padding in range(4):  # whatever the length of the JSON, the numbers lie as they must
        padded = head + b" " * padding
        headers = {"Inference-Header-Content-Length": str(len(padded))}
        answer = infer(server, "adder", padded + x.tobytes(), 1, **headers).json()
        assert answer["outputs"][0]["data"] == [11, 22, 33]


def test_an_output_s_flag_overrides_the_request_s(server):
    given = [tensor("x", [[1, 2, 3]]), tensor("z", [[1, 2, 3]])]
    for general, own in ((True, False), (False, True)):
        body = {
            "inputs": given,
            "parameters": {"binary_data_output": general},
            "outputs": [{"name": "y", "parameters": {"binary_data": own}}],
        }
        response = infer(server, "adder", body)
        assert ("inference-header-content-length" in response.headers) == own
        assert response.headers["content-type"] == ("application/octet-stream" if own else "application/json")


def test_an_output_that_is_listed_is_json_unless_it_says_otherwise(server):
    """As Triton has it: the request's binary_data_output is about the outputs of a request that lists none."""
    body = {**ADD, "parameters": {"binary_data_output": True}}
    assert "inference-header-content-length" in infer(server, "adder", body).headers
    for _ in range(3):
        response = infer(server, "adder", {**body, "outputs": [{"name": "y"}]}, 1)
        assert "inference-header-content-length" not in response.headers
        assert response.json()["outputs"][0]["data"] == [3, 5, 7]


def test_the_header_may_span_pure_json(server):
    body = json.dumps({"inputs": [tensor("x", [[1, 2, 3]]), tensor("z", [[1, 2, 3]])]}).encode()
    response = infer(server, "adder", body, **{"Inference-Header-Content-Length": str(len(body))})
    assert response.headers["content-type"] == "application/json"


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
    x = tensor("x", [1, 2])
    forms = [
        {"inputs": [x], "parameters": {"by": 3}},
        {"inputs": [x, tensor("by", 3.0)]},
        {"inputs": [x, tensor("by", [3.0])]},
    ]
    for body in forms:
        assert infer(server, "scalar", body).json()["outputs"][0]["data"] == [3, 6]
    assert "missing required input(s) ['by']" in infer(server, "scalar", {"inputs": [x]}).json()["error"]
    twice = {"inputs": [x, tensor("by", 3.0)], "parameters": {"by": 3}}
    assert "as input and as parameter" in infer(server, "scalar", twice).json()["error"]
    metadata = server.get("/v2/models/scalar").json()["inputs"]
    assert {"name": "by", "datatype": "FP32", "shape": []} in metadata


def zipped(body, encoding):
    return gzip.compress(body) if encoding == "gzip" else zlib.compress(body)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_requests_are_inflated_within_bounds(small, encoding):
    body = json.dumps({"inputs": [tensor("x", [[1, 2, 3]]), tensor("z", [[1, 2, 3]])]}).encode()
    with serving(small, "--max-body-bytes", "1000") as client:
        coded = {"Content-Encoding": encoding}
        assert infer(client, "adder", zipped(body, encoding), **coded).status_code == 200
        bomb = infer(client, "adder", zipped(body + b" " * 100_000, encoding), **coded)
        assert bomb.status_code == 400
        assert "exceeds the maximum allowed" in bomb.json()["error"]
        for broken in (body, zipped(body, encoding)[:-6], zipped(body, encoding) + b"more"):
            response = infer(client, "adder", broken, **coded)
            assert response.status_code == 400
            assert f"is not {encoding}" in response.json()["error"]


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
def test_answers_are_packed_only_when_asked(server, accept, expected):
    given = {"inputs": [tensor("x", np.ones((400, 3))), tensor("z", np.ones((400, 3)))]}
    with server.stream("POST", "/v2/models/adder/infer", json=given, headers={"Accept-Encoding": accept}) as response:
        content = b"".join(response.iter_raw())
    assert response.headers.get("content-encoding") == expected
    wbits = {"gzip": 31, "deflate": 15}
    assert json.loads(zlib.decompress(content, wbits[expected]) if expected else content)["model_name"] == "adder"
    small = {"inputs": [tensor("x", np.ones((1, 3))), tensor("z", np.ones((1, 3)))]}
    headers = {"Accept-Encoding": "gzip"}
    assert "content-encoding" not in server.post("/v2/models/adder/infer", json=small, headers=headers).headers
    assert "content-encoding" not in server.get("/v2/models/mixed", headers=headers).headers


def test_packing_is_a_setting(small):
    given = {"inputs": [tensor("x", np.ones((400, 3))), tensor("z", np.ones((400, 3)))]}
    for choice, packed in (("never", None), ("offered", "deflate")):
        with serving(small, "--compress-responses", choice) as client:
            headers = {"Accept-Encoding": "gzip;q=0.1, deflate, br" if packed else "gzip"}
            response = client.post("/v2/models/adder/infer", json=given, headers=headers)
            assert response.headers.get("content-encoding") == packed


def test_httpx_is_answered_plainly(server):
    given = {"inputs": [tensor("x", np.ones((400, 3))), tensor("z", np.ones((400, 3)))]}
    assert (
        "content-encoding"
        not in httpx.post(f"{str(server.base_url).rstrip(chr(47))}/v2/models/adder/infer", json=given).headers
    )
