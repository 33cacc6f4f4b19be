"""Bodies that mean harm: deep, huge, inconsistent, or packed to a thousandth."""

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
DOCUMENTS = {
    "thousands of tensors": {"inputs": MANY},
    "one tensor thousands of times": {"inputs": [MANY[0] | {"name": "x"}] * 20_000},
    "thousands of outputs": {"inputs": MANY[:1], "outputs": [{"name": f"{n}"} for n in range(50_000)]},
    "a parameter of a million": {**json.loads(ADD), "parameters": {"p": [1] * 500_000}},
    "a shape of a million": of_shape([1] * 500_000, [1]),
    "a product that is zero past 64 bits": of_shape([2**62, 4], []),
    "two negative dimensions": of_shape([-1, -3], [1, 2, 3]),
    "a dimension of words": of_shape(["1", 3], [1, 2, 3]),
    "too many numbers": of_shape([1, 3], [1.0] * 100_000),
}
BODIES = {name: json.dumps(document).encode() for name, document in DOCUMENTS.items()} | {
    "deep lists": b"[" * MIB,
    "deep data": b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": ' + b"[" * MIB,
    "deep objects": b'{"a":' * 200_000,
    "a number of a million digits": ADD.replace("[1, 2, 3]", "[1, 2, " + "3" * MIB + "]").encode(),
    "surrogates": b'{"id": "\\ud800", "inputs": []}',
    "a null byte": b'{"inputs\0": []}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_400_of_bodies(client, body):
    response = client.post("/v2/models/adder/infer", content=body)
    assert (response.status_code, set(response.json())) == (400, {"error"})
    assert len(response.content) < 10_000


NATIVE = {
    "a base64 product past 64 bits": {"shape": [2**32, 2**32], "dtype": "float32", "base64": "AACAPw=="},
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
    body = {"inputs": inputs, "outputs": [{"name": name} for name in outputs]}
    response = client.post("/v2/models/scaled_dot_product/infer", json=body)
    assert (response.status_code, "max_memory_bytes" in response.json()["error"]) == (400, True)
    assert service.resident("VmHWM") - before < 4 * GROWTH


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), pytest.param("deflate", 15, marks=pytest.mark.extended)])
def test_a_decompression_bomb_does_not_go_off(service, client, encoding, wbits):
    """A quarter of a gigabyte in a quarter of a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(256)) + packer.flush()
    assert len(bomb) < MIB // 2
    before = service.resident("VmHWM")
    response = client.post("/v2/models/adder/infer", content=bomb, headers={"Content-Encoding": encoding})
    assert (response.status_code, "max_body_bytes" in response.json()["error"]) == (400, True)
    assert service.resident("VmHWM") - before < GROWTH
