"""A model that somebody else wrote: four types in, four out, a fixed batch; served like our own blocks."""

import json

import numpy as np
import pytest

from tests.support.v2 import error, infer, infer_attached, parts, tensor

WORDS = ["one", "", "drei", "[4]"]
COUNT, WIDE = np.array([[1, 2], [3, 4], [5, 6], [-7, 2**31 - 1]], np.int32), np.arange(8.0).reshape(4, 2) / 3
FLAG = [True, False, False, True]


GIVEN = [
    tensor("count", COUNT, "INT32"),
    {"name": "words", "shape": [4], "datatype": "BYTES", "data": WORDS},
    tensor("flag", FLAG, "BOOL"),
    tensor("wide", WIDE, "FP64"),
]


def test_metadata(server):
    said = server.get("/v2/models/mixed").json()
    assert (said["name"], said["versions"], said["platform"]) == ("mixed", ["1"], "onnxruntime_onnx")
    assert said["inputs"] == [
        {"name": "count", "datatype": "INT32", "shape": [4, -1]},
        {"name": "words", "datatype": "BYTES", "shape": [4]},
        {"name": "flag", "datatype": "BOOL", "shape": [4]},
        {"name": "wide", "datatype": "FP64", "shape": [4, -1]},
    ]
    assert [of["name"] for of in said["outputs"]] == ["total", "said", "unflagged", "negative"]


def test_configuration(server):
    said = server.get("/v2/models/mixed/config").json()
    assert said["max_batch_size"] == 0
    assert said["input"][0]["dims"] == [4, -1]
    assert [of["data_type"] for of in said["input"]] == ["TYPE_INT32", "TYPE_STRING", "TYPE_BOOL", "TYPE_FP64"]
    assert said["instance_group"][0]["kind"] == "KIND_CPU"
    assert said["version_policy"] == {"all": {}}


def test_in_json(server):
    answer = infer(server, "mixed", {"inputs": GIVEN}).json()
    found = {of["name"]: of["data"] for of in answer["outputs"]}
    np.testing.assert_array_equal(np.reshape(found["total"], (4, 2)), COUNT + WIDE)
    assert found["said"] == WORDS
    assert found["unflagged"] == [not flag for flag in FLAG]
    assert found["negative"] == (-COUNT).reshape(-1).tolist()


def test_in_binary(server):
    words = b"".join(len(word).to_bytes(4, "little") + word.encode() for word in WORDS)
    contents = [COUNT.tobytes(), words, bytes(FLAG), WIDE.tobytes()]
    inputs = [
        {name: of[name] for name in ("name", "shape", "datatype")} | {"parameters": {"binary_data_size": len(content)}}
        for of, content in zip(GIVEN, contents, strict=True)
    ]
    body = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    _, found = parts(infer_attached(server, "mixed", body, b"".join(contents)))
    assert found == {
        "total": (COUNT + WIDE).tobytes(),
        "said": words,
        "unflagged": bytes(not flag for flag in FLAG),
        "negative": (-COUNT).tobytes(),
    }


@pytest.mark.parametrize("rows", [3, 5])
def test_its_batch_is_fixed(server, rows):
    body = {"inputs": [*GIVEN[:2], tensor("flag", [True] * rows, "BOOL"), GIVEN[3]]}
    error(infer(server, "mixed", body), 400, f"input 'flag' for model 'mixed'. Expected [4], got [{rows}]")


def test_a_batch_limit_of_its_own(server):
    """A load may say how many rows; then the configuration's dims leave the batch out."""
    config = json.dumps({"max_batch_size": 2, "version_policy": {"latest": {"num_versions": 1}}})
    path = "/v2/repository/models/adder"
    try:
        assert server.post(f"{path}/load", json={"parameters": {"config": config}}).status_code == 200
        said = server.get("/v2/models/adder/config").json()
        assert (said["max_batch_size"], said["input"][0]["dims"]) == (2, [3])
        assert server.get("/v2/models/adder").json()["inputs"][0]["shape"] == [-1, 3]
        rows = [tensor(name, np.zeros((3, 3))) for name in "xz"]
        error(infer(server, "adder", {"inputs": rows}), 400, "inference request batch-size must be <= 2 for 'adder'")
        assert server.post(f"{path}/load").status_code == 200  # keeps what the load before said
        assert server.get("/v2/models/adder/config").json()["max_batch_size"] == 2
    finally:
        for what in ("unload", "load"):
            assert server.post(f"{path}/{what}").status_code == 200
    assert server.get("/v2/models/adder/config").json()["max_batch_size"] == 1024


def test_it_is_no_block(server):
    assert "mixed" in server.get("/v2/models").json()["models"]
    assert "mixed" not in server.get("/v1/attention").text


def test_it_ignores_the_options_of_blocks(server):
    """Its parameters are the client's own."""
    inputs = [tensor(name, [[1, 2, 3]]) for name in ("x", "z")]
    body = {"inputs": inputs, "parameters": {"heads": "1", "weights_pool": "no number"}}
    assert infer(server, "adder", body).json() == infer(server, "adder", {"inputs": inputs}).json()


def test_our_own_blocks_describe_themselves(server):
    said = server.get("/v2/models/scaled_dot_product").json()
    assert {"name": "query", "datatype": "FP32", "shape": [-1] * 4} in said["inputs"]
    assert "is_causal" not in {of["name"] for of in said["inputs"]}
    assert {of["name"] for of in said["inputs"]} == {"query", "key", "value"}
    assert said["properties"]["query"].startswith("FP32 [batch, heads, m, d_k]. ")
    assert said["properties"]["attn_mask (optional)"].startswith("FP32 [batch, heads, m, past + n]. ")
    config = server.get("/v2/models/scaled_dot_product/config").json()
    assert config["parameters"]["is_causal"] == {"string_value": "false"}
    assert [of["dims"] for of in config["input"]] == [[-1] * 3] * 3
    learned = {of["name"]: of["shape"] for of in server.get("/v2/models/multi_head").json()["inputs"]}
    assert learned["query"][-1] == 64
