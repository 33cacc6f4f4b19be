"""A long text in a large body is cut out of it: no response shows the placeholder, whose secret no client may know."""

import json

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


OF_NUMBERS = ("next_tokens", "seed", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")
FIELDS = {
    "/v1/attention/gpt": ("additive_mask", "reduce_heads", "decimals", "outputs", "memory", "heads"),
    "/v1/text/gpt": ("truncation", "next_tokens", "reduce_heads", "outputs", "heads"),
    "/v1/tokenize/gpt": ("truncation", "add_special_tokens"),
    "/v1/generate/gpt": (*OF_NUMBERS, "ignore_eos", "stream", "max_new_tokens", "lens_top_k", "truncation", "stop"),
    "/v2/models/gpt/generate": (*OF_NUMBERS, "ignore_eos", "truncation", "max_tokens", "id", "stop"),
}
OWN = {"/v1/attention/gpt": {"input_ids": [[1, 2]]}, "/v2/models/gpt/generate": {"text_input": "a"}}


@pytest.fixture(scope="module")
def generator(generating):
    with running(generating / "models") as client:
        yield client


def padded(**fields):
    """A body that is large enough for its long parts to be cut out."""
    return json.dumps(fields)[:-1] + " " * LARGE_BODY_BYTES + "}"


@pytest.mark.parametrize("value", [[1] * 3000, "x" * 5000], ids=["list", "text"])
@pytest.mark.parametrize("path", FIELDS)
def test_no_field_shows_one_or_takes_it_for_its_value(path, value, generator):
    for field in FIELDS[path]:
        body = padded(**OWN.get(path, {"text": "a"}), **{field: value})
        response = generator.post(path, content=body, headers={"Content-Type": "application/json"})
        assert NONCE not in response.text, field
        assert 400 <= response.status_code < 500, (field, response.text)


@pytest.mark.parametrize("index", ["99", "abc", "-1", ""])
def test_a_text_like_one_is_a_text(index, generator):
    body = padded(text=f"{NONCE}:{index}", text_pair="x" * 5000)
    response = generator.post("/v1/tokenize/gpt", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code < 500, response.text


def test_a_long_text_of_indices_is_read_in_a_large_body(generator):
    body = {"input_ids": [[1, 2, 3]], "outputs": ["weights"], "queries": "0" + " " * 5000}
    plain = generator.post("/v1/attention/gpt", json=body)
    large = generator.post("/v1/attention/gpt", content=padded(**body), headers={"Content-Type": "application/json"})
    assert plain.status_code == large.status_code == 200, large.text
    assert plain.json() == large.json()


def test_an_id_has_a_limited_length(client):
    longest = "x" * MAX_ID_CHARACTERS
    assert client.post(V2, json={"inputs": QKV, "id": longest}).json()["id"] == longest
    response = client.post(V2, json={"inputs": QKV, "id": longest + "x"})
    assert response.json()["error"] == f"expected 'id' to have at most {MAX_ID_CHARACTERS} characters"
