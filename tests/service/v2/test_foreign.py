"""A model that somebody else wrote: four types in, four out, a fixed batch; served like our own blocks."""

import numpy as np
import pytest

from tests.support.v2 import ADD, binary_input, error, infer, infer_bytes, packed, parts, tensor

WORDS = ["ä\0b", "", "drei", "[4]"]
COUNT, WIDE = np.array([[1, 2], [3, 4], [5, 6], [-7, 2**31 - 1]], np.int32), np.arange(8.0).reshape(4, 2) / 3
FLAG = [True, False, False, True]
GIVEN = [
    tensor("count", COUNT, "INT32"),
    {"name": "words", "shape": [4], "datatype": "BYTES", "data": WORDS},
    tensor("flag", FLAG, "BOOL"),
    tensor("wide", WIDE, "FP64"),
]


def test_metadata_and_configuration(server):
    said = server.get("/v2/models/mixed").json()
    assert (said["name"], said["versions"], said["platform"]) == ("mixed", ["1"], "onnxruntime_onnx")
    assert [tuple(of.values()) for of in said["inputs"]] == [
        ("count", "INT32", [4, -1]),
        ("words", "BYTES", [4]),
        ("flag", "BOOL", [4]),
        ("wide", "FP64", [4, -1]),
    ]
    assert [tuple(of.values()) for of in said["outputs"]] == [
        ("total", "FP64", [4, -1]),
        ("said", "BYTES", [4]),
        ("unflagged", "BOOL", [4]),
        ("negative", "INT32", [4, -1]),
    ]
    config = server.get("/v2/models/mixed/config").json()
    assert config["max_batch_size"] == 0
    assert config["input"][0]["dims"] == [4, -1]
    assert [of["data_type"] for of in config["input"]] == ["TYPE_INT32", "TYPE_STRING", "TYPE_BOOL", "TYPE_FP64"]
    assert config["instance_group"][0]["kind"] == "KIND_CPU"
    assert config["version_policy"] == {"all": {}}


def test_in_json(server):
    answer = infer(server, "mixed", {"inputs": GIVEN}).json()
    found = {of["name"]: of["data"] for of in answer["outputs"]}
    np.testing.assert_array_equal(np.reshape(found["total"], (4, 2)), COUNT + WIDE)
    assert found["said"] == WORDS
    assert found["unflagged"] == [not flag for flag in FLAG]
    assert found["negative"] == (-COUNT).reshape(-1).tolist()


def test_in_binary(server):
    contents = [COUNT.tobytes(), packed(WORDS), bytes(FLAG), WIDE.tobytes()]
    inputs = [
        binary_input(of["name"], of["shape"], len(content), of["datatype"])
        for of, content in zip(GIVEN, contents, strict=True)
    ]
    body = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    _, found = parts(infer_bytes(server, "mixed", body, b"".join(contents)))
    assert found == {
        "total": (COUNT + WIDE).tobytes(),
        "said": packed(WORDS),
        "unflagged": bytes(not flag for flag in FLAG),
        "negative": (-COUNT).tobytes(),
    }


@pytest.mark.parametrize("rows", [3, 5])
def test_its_batch_is_fixed(server, rows):
    body = {"inputs": [*GIVEN[:2], tensor("flag", [True] * rows, "BOOL"), GIVEN[3]]}
    error(infer(server, "mixed", body), 400, f"input 'flag' for model 'mixed'. Expected [4], got [{rows}]")


def test_it_ignores_the_options_of_blocks(server):
    """Its parameters are the client's own."""
    body = ADD | {"parameters": {"heads": "1", "weights_pool": "no number"}}
    assert infer(server, "adder", body).json() == infer(server, "adder", ADD).json()


def test_our_own_blocks_describe_themselves(server):
    said = server.get("/v2/models/scaled_dot_product").json()
    names = ("query", "key", "value")
    assert said["inputs"] == [{"name": name, "datatype": "FP32", "shape": [-1] * 4} for name in names]
    assert said["properties"]["query"].startswith("FP32 [batch, heads, m, d_k]. ")
    assert said["properties"]["attn_mask (optional)"].startswith("FP32 [batch, heads, m, past + n]. ")
    config = server.get("/v2/models/scaled_dot_product/config").json()
    assert config["parameters"]["is_causal"] == {"string_value": "false"}
    assert [of["dims"] for of in config["input"]] == [[-1] * 3] * 3
    learned = {of["name"]: of["shape"] for of in server.get("/v2/models/multi_head").json()["inputs"]}
    assert learned["query"][-1] == 64
