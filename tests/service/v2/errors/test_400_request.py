"""400: the request is not the protocol, its JSON is wrong, or it is not what the model takes."""

import json

import numpy as np
import pytest

from tests.support.v2 import ADD, QKV, error, infer, one, tensor

BLOCK = "scaled_dot_product"


def without(field):
    body = one()
    del body["inputs"][0][field]
    return body


def request(**parameters):
    return one() | {"parameters": parameters}


def output(**parameters):
    return one() | {"outputs": [{"name": "y", "parameters": parameters}]}


def block(**parameters):
    return {"inputs": QKV, "parameters": parameters}


PROTOCOL = {
    "malformed": (b'{"inputs": [', "failed to parse the request JSON buffer"),
    "empty": (b"", "empty"),
    "a list": (b"[]", "expected a JSON object"),
    "NaN token": (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [NaN]}]}', "failed to parse"),
    "nested 101 deep": (b'{"inputs":' + b"[" * 101 + b"]" * 101 + b"}", "expected 'inputs' to be a list of tensors"),
    "nested 5000 deep": (b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}", "failed to parse"),
    "data nested 101 deep": (one(data=json.loads("[" * 101 + "1" + "]" * 101)), "nested more than 16 levels deep"),
    "no inputs": ({}, "expected 'inputs' to be a list of tensors, got null"),
    "inputs an object": ({"inputs": {}}, "expected 'inputs' to be a list"),
    "no name": (without("name"), "expected a 'name'"),
    "no datatype": (without("datatype"), "expected datatype to be one of BOOL"),
    "no shape": (without("shape"), "expected shape to be a list"),
    "no data": (without("data"), "exactly one of 'data' and the parameter 'binary_data_size'"),
    "both data": (one(parameters={"binary_data_size": 16}), "exactly one of 'data'"),
    "shared memory": (one(parameters={"shared_memory_region": "r"}), "shared memory is not supported"),
    "id a number": ({**one(), "id": 7}, "expected 'id' to be a string"),
    "negative dimension": (one(shape=[-1, 2]), "list of whole numbers from 0, got [-1, 2]"),
    "dimension of a fraction": (one(shape=[1.0, 2]), "got [1.0, 2]"),
    "dimension of truth": (one(shape=[True, 2]), "got [a boolean, 2]"),
    "dimension past 64 bits": (one(shape=[2**64, 2]), "failed to parse"),
    "shape overflow": (one(shape=[2**62, 2**62]), "shape does not match true shape of 'data'"),
    "much of nothing": (one(shape=[0, 2**62], data=[]), "is too large"),
    "too many dimensions": (one(shape=[1] * 17), "more than 16 dimensions"),
    "count": (one(data=[1, 2, 3]), "shape does not match true shape of 'data': [1, 2], got 3 elements"),
    "nesting": (one(data=[[1], [2]]), "shape does not match true shape of 'data': [1, 2], got [2, 1]"),
    "empty data": (one(data=[]), "shape does not match"),
    "data for an empty shape": (one(shape=[0, 2], data=[[1]]), "shape does not match"),
    "ragged": (one(data=[[1], [2, 3]]), "different lengths"),
    "a list for a number": (one(data=[1, [2]]), "got a list at [1]"),
    "a hidden list, and brackets in a text": ({**one(data=[1, [2]]), "id": "]]"}, "got a list at [1]"),
    "data an object": (one(data={}), "expected data to be a list"),
    "1.5 for an integer": (one(data=[1, 1.5]), "expected whole numbers, got 1.5 at [1]"),
    "text for an integer": (one(data=["1", "2"]), "at [0]"),
    "null for an integer": (one(data=[1, None]), "got null at [1]"),
    "truth for an integer": (one(data=[True, False]), "whole numbers"),
    "past int64": (one(data=[1, 2**63]), "is out of range for int64"),
    "unknown datatype": (one(datatype="FP4"), "expected datatype to be one of"),
    "datatype mismatch": (
        one(datatype="INT32"),
        "inference input 'x' data-type is 'INT32', but model 'identity_INT64' expects 'INT64'",
    ),
    "rank": (one(shape=[2]), "unexpected shape for input 'x' for model 'identity_INT64'. Expected [-1,-1], got [2]"),
    "unknown input": (
        {"inputs": [{**one()["inputs"][0], "name": "q"}]},
        "unexpected inference input 'q' for model 'identity_INT64'",
    ),
    "input twice": ({"inputs": one()["inputs"] * 2}, "input 'x' already exists in request"),
    "outputs an object": ({**one(), "outputs": {}}, "expected 'outputs' to be a list"),
    "unknown output": ({**one(), "outputs": [{"name": "q"}]}, "unexpected inference output 'q' for model 'identity"),
    "output twice": ({**one(), "outputs": [{"name": "y"}] * 2}, "output 'y' already exists in request"),
    "output in shared memory": (output(shared_memory_region="r"), "not supported"),
    "binary_data a number": (output(binary_data=1), "a boolean"),
    "classification": (output(classification=-1), "a whole number"),
    "parameters a list": ({**one(), "parameters": []}, "expected parameters to be an object"),
    "a parameter a list": (request(timeout=[1]), "'timeout' to be a string, a number or a boolean, got a list"),
    "a client's parameter an object": (
        request(content_type={}),
        "'content_type' to be a string, a number or a boolean, got an object",
    ),
    "many parameters": (request(**{f"p{n}": n for n in range(257)}), "expected at most 256 parameters, got 257"),
    "a parameter's long name": (request(**{"p" * 1025: 1}), "at most 1024 characters, got one of 1025"),
    "binary_data_size a list": (one(parameters={"binary_data_size": [1]}), "exactly one of 'data'"),
    "binary_data an object": (output(binary_data={"a": 1}), "binary_data to be a boolean, got an object"),
    "triton's own parameter": (request(triton_x=1), "'triton_x' is reserved"),
    "headers": (request(headers="x"), "'headers' is reserved"),
    "timeout": (request(timeout=-1), "'timeout' to be a whole number"),
    "priority": (request(priority="high"), "'priority' to be a whole number"),
    "sequence_id": (request(sequence_id=1.5), "'sequence_id'"),
    "sequence_start": (request(sequence_start=1), "'sequence_start' to be a boolean"),
}
MODELS = {
    "missing inputs": (
        "mixed",
        {"inputs": [tensor("flag", [True] * 4, "BOOL")]},
        "expected 4 inputs but got 1 inputs for model 'mixed'. Got input(s) ['flag'], but missing required input(s) "
        "['count', 'words', 'wide']. Please provide all required input(s).",
    ),
    "batch disagrees": (
        "adder",
        {"inputs": [ADD["inputs"][0], tensor("z", [[1, 2, 3]] * 2)]},
        "input 'z' batch size does not match other inputs for 'adder'",
    ),
    "batch too large": (
        "adder",
        {"inputs": [tensor(name, np.ones((1025, 3))) for name in ("x", "z")]},
        "inference request batch-size must be <= 1024 for 'adder'",
    ),
    "shapes only the runtime knows": (
        "product",
        {"inputs": [tensor("a", np.ones((2, 3))), tensor("b", np.ones((4, 2)))]},
        "model 'product' cannot run on these inputs: a [2, 3], b [4, 2]",
    ),
    "booleans for numbers": ("identity_BOOL", one(datatype="BOOL", data=[1, 0]), "expected booleans, got numbers"),
    "past int8": ("identity_INT8", one(datatype="INT8", data=[1, 128]), "out of range for int8"),
    "below uint8": ("identity_UINT8", one(datatype="UINT8", data=[1, -1]), "is out of range for uint64"),
    "past float16": ("identity_FP16", one(datatype="FP16", data=[1, 1e6]), "out of range for float16"),
    "past float32": ("identity_FP32", one(datatype="FP32", data=[1, 1e39]), "out of range for float32"),
    "past bfloat16": ("identity_BF16", one(datatype="BF16", data=[1, 3.4e38]), "out of range for bfloat16"),
    "a number for text": ("identity_BYTES", one(datatype="BYTES"), "expected strings, got 1"),
    "class of text": (
        "identity_BYTES",
        one(datatype="BYTES", data=["a", "b"]) | {"outputs": [{"name": "y", "parameters": {"classification": 1}}]},
        "class result not available for output 'y'",
    ),
    "our own shapes": (
        BLOCK,
        {"inputs": [QKV[0], tensor("key", np.ones((1, 1, 2, 3))), QKV[2]]},
        "key: expected axis 3 (d_k) to be 2, as in query, got 3 (shape [1, 1, 2, 3])",
    ),
    "our own rank": (
        BLOCK,
        {"inputs": [tensor("query", np.ones((2, 2))), *QKV[1:]]},
        f"unexpected shape for input 'query' for model '{BLOCK}'. Expected [-1,-1,-1,-1], got [2,2]",
    ),
    "our own parameters": (BLOCK, block(softcap=-1), "softcap: expected at least 0"),
    "a parameter's type": (BLOCK, block(is_causal=1), "is_causal: expected a boolean, got 1"),
    "a parameter that is null": (BLOCK, block(is_causal=None), "is_causal: expected a boolean, got null"),
    "a parameter misspelt": (
        BLOCK,
        block(is_casual=True),
        f"unknown parameter 'is_casual' for model '{BLOCK}'; did you mean 'is_causal'? Its parameters:",
    ),
    "a parameter in another case": ("linear", block(**{"IS-CAUSAL": True}), "did you mean 'is_causal'?"),
    "a misspelt parameter that this block lacks": (
        "efficient",
        block(is_casual=True),
        "unknown parameter 'is_casual' for model 'efficient'; its parameters: none",
    ),
    "a misspelt option of the weights": (BLOCK, block(weights_topk=1), "; did you mean 'weights_top_k'?"),
    "a tensor as parameter": (BLOCK, block(attn_mask=True), "is a tensor: send it in the inputs"),
    "a tensor of a model as parameter": (
        "adder",
        ADD | {"parameters": {"z": 1}},
        "'z' of model 'adder' is a tensor",
    ),
    "another block's parameter": ("cosine", block(softcap=1), "unknown parameter 'softcap' for model 'cosine'"),
}
CASES = {name: ("identity_INT64", *case) for name, case in PROTOCOL.items()} | MODELS


@pytest.mark.parametrize(("model", "body", "said"), CASES.values(), ids=CASES)
def test_400_of_a_request(server, model, body, said):
    """No path of this machine is shown, and the next request is answered as ever."""
    response = infer(server, model, body)
    error(response, 400, said)
    assert "/" not in response.json()["error"]
    assert infer(server, "adder", ADD, 1).json()["outputs"][0]["data"] == [3, 5, 7]
