"""Bodies that mean harm: deep, huge, inconsistent, or packed to a thousandth."""

import gzip
import json
import zlib

import pytest

from tests.support.hostile import GROWTH
from tests.support.http_client import ADD
from tests.support.server import MIB

SDPA = "/v1/attention/scaled_dot_product"


def of_shape(shape, data):
    return {"inputs": [{"name": name, "shape": shape, "datatype": "FP32", "data": data} for name in ("x", "z")]}


MANY = [{"name": f"x{number}", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]} for number in range(20_000)]


BODIES = {
    "deep lists": b"[" * MIB,
    "deep data": b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": ' + b"[" * MIB,
    "deep objects": b'{"a":' * 200_000,
    "thousands of tensors": json.dumps({"inputs": MANY}).encode(),
    "one tensor thousands of times": json.dumps({"inputs": [MANY[0] | {"name": "x"}] * 20_000}).encode(),
    "thousands of outputs": json.dumps(
        {"inputs": MANY[:1], "outputs": [{"name": f"{n}"} for n in range(50_000)]}
    ).encode(),
    "thousands of parameters": json.dumps(
        {**json.loads(ADD), "parameters": {f"p{n}": n for n in range(50_000)}}
    ).encode(),
    "a parameter of a million": json.dumps({**json.loads(ADD), "parameters": {"p": [1] * 500_000}}).encode(),
    "a number of a million digits": ADD.replace("[1, 2, 3]", "[1, 2, " + "3" * MIB + "]").encode(),
    "a shape of a million": json.dumps(of_shape([1] * 500_000, [1])).encode(),
    "a product past 64 bits": json.dumps(of_shape([2**32, 2**32], [1, 2, 3])).encode(),
    "a product that is zero past 64 bits": json.dumps(of_shape([2**62, 4], [])).encode(),
    "a dimension past 64 bits": json.dumps(of_shape([2**64, 3], [1, 2, 3])).encode(),
    "a negative dimension": json.dumps(of_shape([-1, 3], [1, 2, 3])).encode(),
    "two negative dimensions": json.dumps(of_shape([-1, -3], [1, 2, 3])).encode(),
    "a dimension of words": json.dumps(of_shape(["1", 3], [1, 2, 3])).encode(),
    "too few numbers": json.dumps(of_shape([2, 3], [1, 2, 3])).encode(),
    "too many numbers": json.dumps(of_shape([1, 3], [1.0] * 100_000)).encode(),
    "surrogates": b'{"id": "\\ud800", "inputs": []}',
    "a null byte": b'{"inputs\0": []}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_400_of_bodies(client, body):
    response = client.post("/v2/models/adder/infer", content=body)
    assert (response.status_code, set(response.json())) == (400, {"error"})
    assert len(response.content) < 10_000


NATIVE = {
    "a product past 64 bits": {"shape": [2**32, 2**32], "data": [1]},
    "a base64 product past 64 bits": {"shape": [2**32, 2**32], "dtype": "float32", "base64": "AACAPw=="},
    "a dimension past 63 bits": {"shape": [2**63, 1], "data": [1]},
    "a negative dimension": {"shape": [-1, 1], "data": [1]},
    "objects": [[{}] * 100_000],
    "rows of nothing": [[]] * 200_000,
}


@pytest.mark.parametrize("query", NATIVE.values(), ids=NATIVE)
def test_422_of_tensors(client, query):
    response = client.post(SDPA, json={"query": query, "key": [[1]], "value": [[1]]})
    assert (response.status_code, response.json()["field"]) == (422, "query")


def test_thousands_of_fields(client):
    response = client.post(SDPA, json={f"field{n}": [[1]] for n in range(100_000)})
    assert response.status_code == 400
    assert len(response.content) < 10_000


@pytest.mark.parametrize("outputs", [["weights"], ["scores", "weights"]])
def test_more_pairs_than_fit_are_refused_before_the_work(service, client, outputs):
    """100,000 queries and keys: 40 GB of weights, of a body of 600 KB."""
    rows = {"shape": [100_000, 1], "data": [1] * 100_000}
    before = service.resident("VmHWM")
    response = client.post(SDPA, json={"query": rows, "key": rows, "value": rows, "outputs": outputs})
    assert (response.status_code, "max_memory_bytes" in response.json()["detail"]) == (413, True)
    tensor = {"shape": [1, 1, 100_000, 1], "datatype": "FP32", "data": [1] * 100_000}
    inputs = [{"name": name, **tensor} for name in ("query", "key", "value")]
    response = client.post(
        "/v2/models/scaled_dot_product/infer",
        json={"inputs": inputs, "outputs": [{"name": name} for name in outputs]},
    )
    assert (response.status_code, "max_memory_bytes" in response.json()["error"]) == (400, True)
    assert service.resident("VmHWM") - before < 4 * GROWTH


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_decompression_bomb_does_not_go_off(service, client, encoding):
    """A gigabyte in a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, {"gzip": 31, "deflate": 15}[encoding])
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(1024)) + packer.flush()
    assert len(bomb) < 2 * MIB
    before = service.resident("VmHWM")
    response = client.post("/v2/models/adder/infer", content=bomb, headers={"Content-Encoding": encoding})
    assert (response.status_code, "max_body_bytes" in response.json()["error"]) == (400, True)
    assert service.resident("VmHWM") - before < GROWTH
    twice = client.post(
        "/v2/models/adder/infer", content=gzip.compress(bomb), headers={"Content-Encoding": "gzip, gzip"}
    )
    assert twice.status_code == 501
