"""A long text in a large body is cut out of it: no response shows the placeholder, whose secret no client may know."""

import pytest

from service.codec.json_parser import NONCE
from service.codec.json_slices import LARGE_BODY_BYTES
from service.v2.infer.request import MAX_ID_CHARACTERS
from tests.support.application import running
from tests.support.v2 import QKV

LONG = "x" * (LARGE_BODY_BYTES + 1)
NATIVE, V2, MEMORIES = "/v1/attention/scaled_dot_product", "/v2/models/scaled_dot_product/infer", "/v1/memories"
ROWS = {name: [[1, 0]] for name in ("query", "key", "value")}
BINARY = {name: QKV[0][name] for name in ("name", "shape", "datatype")}


def tensor(**fields):
    return {"inputs": [QKV[0] | fields, *QKV[1:]]}


def output(**parameters):
    return {"inputs": QKV, "outputs": [{"name": "output", "parameters": parameters}]}


BODIES = {
    "native dtype": (NATIVE, ROWS | {"query": {"shape": [1, 2], "dtype": LONG, "base64": "AAAA"}}),
    "memory block": (MEMORIES, ROWS | {"block": LONG}),
    "memory dtype": (MEMORIES, ROWS | {"dtype": LONG}),
    "tensor dtype": (MEMORIES, {"key": {"shape": [1, 2], "dtype": LONG, "binary_data_size": 8}}),
    "tensor size": (MEMORIES, {"key": {"shape": [1, 2], "dtype": "float32", "binary_data_size": LONG}}),
    "ttl_seconds": (MEMORIES, {"key": [[1]], "value": [[1]], "ttl_seconds": LONG}),
    "id": (V2, {"inputs": QKV, "id": LONG}),
    "parameters": (V2, {"inputs": QKV, "parameters": LONG}),
    "input": (V2, tensor(name=LONG)),
    "datatype": (V2, tensor(datatype=LONG)),
    "an input's parameters": (V2, tensor(parameters=LONG)),
    "binary_data_size": (V2, {"inputs": [BINARY | {"parameters": {"binary_data_size": LONG}}]}),
    "output": (V2, {"inputs": QKV, "outputs": [{"name": LONG}]}),
    "an output's parameters": (V2, {"inputs": QKV, "outputs": [{"name": "output", "parameters": LONG}]}),
    "binary_data": (V2, output(binary_data=LONG)),
    "classification": (V2, output(classification=LONG)),
}


@pytest.fixture(scope="module")
def client(two_blocks):
    with running(two_blocks) as client:
        yield client


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
def test_no_placeholder_is_shown(path, body, client):
    response = client.post(path, json=body)
    assert 400 <= response.status_code < 500, response.text
    assert NONCE not in response.text


def test_an_id_has_a_limited_length(client):
    longest = "x" * MAX_ID_CHARACTERS
    assert client.post(V2, json={"inputs": QKV, "id": longest}).json()["id"] == longest
    response = client.post(V2, json={"inputs": QKV, "id": longest + "x"})
    assert response.json()["error"] == f"expected 'id' to have at most {MAX_ID_CHARACTERS} characters"
