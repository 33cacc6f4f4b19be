"""Requests made of what a server says of itself are understood by it."""

import json

import numpy as np
import pytest

from loadtest.bodies import bodies
from loadtest.scenario import RequestSpec, ScenarioError
from loadtest.server import Server
from loadtest.signature import Input, inputs
from tests.support.attending import MODULES

SIZES = {"batch": 2, "m": 3, "n": 3}


@pytest.mark.parametrize("encoding", ["json", "binary"])
@pytest.mark.parametrize("api", ["native", "v2"])
@pytest.mark.parametrize("block", MODULES)
def test_every_block_is_asked(client, block, api, encoding):
    server = Server(str(client.base_url).rstrip("/"), {})
    known = inputs(server, block)
    symbols = {axis for of in known if of.required for axis in of.shape}
    sizes = {symbol: size for symbol, size in SIZES.items() if symbol in symbols}
    ask = RequestSpec(block, api=api, encoding=encoding, sizes=sizes, outputs=["output"])
    (body,) = bodies(ask, known, np.random.default_rng(0))
    status, content = server.call(body.path, body.content, body.headers)
    assert status == 200, content
    if (api, encoding) == ("native", "json"):
        assert len(json.loads(content)["output"]) == 2


@pytest.mark.parametrize(("api", "dtype"), [("native", "float16"), ("native", "float64"), ("v2", "")])
def test_types_masks_and_parameters(client, api, dtype):
    server = Server(str(client.base_url).rstrip("/"), {})
    for encoding in ("json", "binary"):
        ask = RequestSpec(
            api=api, encoding=encoding, dtype=dtype, parameters={"is_causal": True}, outputs=["weights"],
            sizes={"m": [2, 5], "n": 4, "heads": 2, "kv_heads": 1}, shapes={"attn_mask": [1, 1, 1, 4]},
        )  # fmt: skip
        two, five = bodies(ask, inputs(server, ask.block), np.random.default_rng(0))
        assert len(two.content) < len(five.content)
        for body in (two, five):
            status, content = server.call(body.path, body.content, body.headers)
            assert status == 200, content


def test_sizes_nobody_says():
    ask = RequestSpec("foreign", api="v2")
    with pytest.raises(ScenarioError, match="set its sizes"):
        bodies(ask, [Input("x", "float32", ["?", 3])], np.random.default_rng(0))
    (body,) = bodies(
        RequestSpec("foreign", api="v2", shapes={"x": [2, 3]}),
        [Input("x", "float32", ["?", 3])],
        np.random.default_rng(0),
    )
    assert json.loads(body.content)["inputs"][0]["shape"] == [2, 3]
    with pytest.raises(ScenarioError, match="no example of its int64"):
        bodies(ask, [Input("ids", "int64", [2])], np.random.default_rng(0))


def test_a_body_that_is_not_there(tmp_path):
    with pytest.raises(ScenarioError, match="No such file"):
        bodies(RequestSpec(path="/x", body=tmp_path / "none"), [], np.random.default_rng(0))
