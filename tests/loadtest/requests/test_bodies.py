"""Requests made of what a server says of itself are understood by it."""

import json
from pathlib import Path

import numpy as np
import pytest

from loadtest.requests.bodies import bodies
from loadtest.requests.scenario import RequestSpec, ScenarioError
from loadtest.requests.server import Server
from loadtest.requests.signature import Input, inputs

SIZES = {"batch": 2, "m": 3, "n": 3}
UNKNOWN = [Input("x", "float32", ["?", 3])]


def make(spec, known):
    return bodies(spec, known, np.random.default_rng(0))


@pytest.fixture
def ask(client):
    """Sends the bodies of a request, which the server understands; answers them with the server's answers."""
    server = Server(str(client.base_url).rstrip("/"), {})

    def send(spec, sizes=()):
        known = inputs(server, spec.block)
        symbols = {axis for one in known if one.required for axis in one.shape}
        spec.sizes.update({symbol: size for symbol, size in dict(sizes).items() if symbol in symbols})
        for body in make(spec, known):
            status, content = server.call(body.path, body.content, body.headers)
            assert status == 200, content
            yield body.content, content

    return send


@pytest.mark.parametrize("block", ["multi_head", "encoder"])
@pytest.mark.parametrize("encoding", ["json", "binary"])
@pytest.mark.parametrize("api", ["native", "v2"])
def test_a_block_is_asked(ask, block, api, encoding):
    ((_, content),) = ask(RequestSpec(block, api=api, encoding=encoding, outputs=["output"]), SIZES)
    if (api, encoding) == ("native", "json"):
        assert len(json.loads(content)["output"]) == 2


@pytest.mark.parametrize(("api", "dtype"), [("native", "float16"), ("native", "float64"), ("v2", "")])
@pytest.mark.parametrize("encoding", ["json", "binary"])
def test_types_masks_and_parameters(ask, api, dtype, encoding):
    spec = RequestSpec(
        api=api, encoding=encoding, dtype=dtype, parameters={"is_causal": True}, outputs=["weights"],
        sizes={"m": [2, 5], "n": 4, "heads": 2, "kv_heads": 1}, shapes={"attn_mask": [1, 1, 1, 4]},
    )  # fmt: skip
    (two, _), (five, _) = ask(spec)
    assert len(two) < len(five)


@pytest.mark.parametrize("status", [404, 400])
def test_a_server_with_only_the_v2_api(monkeypatch, status):
    def call(_, path):
        metadata = {"inputs": [{"name": "x", "datatype": "FP32", "shape": ["-1", 3]}]}
        return (200, json.dumps(metadata).encode()) if path == "/v2/models/foreign" else (status, b"{}")

    monkeypatch.setattr(Server, "call", call)
    assert inputs(Server("http://127.0.0.1", {}), "foreign") == UNKNOWN


def test_a_size_that_only_the_request_knows():
    (body,) = make(RequestSpec("foreign", api="v2", shapes={"x": [2, 3]}), UNKNOWN)
    assert json.loads(body.content)["inputs"][0]["shape"] == [2, 3]


@pytest.mark.parametrize(
    ("spec", "known", "message"),
    [
        (RequestSpec("foreign", api="v2"), UNKNOWN, "set its sizes"),
        (
            RequestSpec("foreign", api="v2"),
            [Input("ids", "int64", [2])],
            "the model has no example of this int64 input",
        ),
        (RequestSpec(path="/x", body=Path("no such file")), [], "No such file"),
    ],
)
def test_what_cannot_be_made(spec, known, message):
    with pytest.raises(ScenarioError, match=message):
        make(spec, known)
