"""400: the request is the protocol, but not what this model takes."""

import numpy as np
import pytest

from tests.support.v2 import ADD, error, infer, one, tensor

BLOCK = "scaled_dot_product"
QKV = [tensor(name, np.ones((1, 1, 2, 2))) for name in ("query", "key", "value")]


def query_key_value(**parameters):
    return {"inputs": QKV, "parameters": parameters}


OTHERS = {
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
        "model 'product' cannot be run on these inputs: a [2, 3], b [4, 2]",
    ),
    "booleans for numbers": ("identity_BOOL", one(datatype="BOOL", data=[1, 0]), "expected booleans, got numbers"),
    "past int8": ("identity_INT8", one(datatype="INT8", data=[1, 128]), "past the range of int8"),
    "below uint8": ("identity_UINT8", one(datatype="UINT8", data=[1, -1]), "does not fit in uint64"),
    "past float16": ("identity_FP16", one(datatype="FP16", data=[1, 1e6]), "past the range of float16"),
    "past float32": ("identity_FP32", one(datatype="FP32", data=[1, 1e39]), "past the range of float32"),
    "past bfloat16": ("identity_BF16", one(datatype="BF16", data=[1, 3.4e38]), "past the range of bfloat16"),
    "a number for text": ("identity_BYTES", one(datatype="BYTES"), "expected strings, got 1"),
    "class of text": (
        "identity_BYTES",
        {**one(datatype="BYTES", data=["a", "b"]), "outputs": [{"name": "y", "parameters": {"classification": 1}}]},
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
    "our own parameters": (BLOCK, query_key_value(softcap=-1), "softcap: expected at least 0"),
    "a parameter's type": (BLOCK, query_key_value(is_causal=1), "is_causal: expected a boolean, got 1"),
    "a parameter that is null": (BLOCK, query_key_value(is_causal=None), "is_causal: expected a boolean, got null"),
    "a parameter misspelt": (
        BLOCK,
        query_key_value(is_casual=True),
        f"unknown parameter 'is_casual' for model '{BLOCK}'; did you mean 'is_causal'? Its parameters:",
    ),
    "a parameter in another case": ("linear", query_key_value(**{"IS-CAUSAL": True}), "did you mean 'is_causal'?"),
    "a misspelt parameter that this block lacks": (
        "efficient",
        query_key_value(is_casual=True),
        "unknown parameter 'is_casual' for model 'efficient'; its parameters: none",
    ),
    "a misspelt option of the weights": (
        BLOCK,
        query_key_value(weights_topk=1),
        f"unknown parameter 'weights_topk' for model '{BLOCK}'; did you mean 'weights_top_k'?",
    ),
    "a tensor as parameter": (
        BLOCK,
        query_key_value(attn_mask=True),
        f"'attn_mask' of model '{BLOCK}' is a tensor: give it among the inputs",
    ),
    "another model's tensor as parameter": (
        "adder",
        {**ADD, "parameters": {"z": 1}},
        "'z' of model 'adder' is a tensor",
    ),
    "another block's parameter": (
        "cosine",
        query_key_value(softcap=1),
        "unknown parameter 'softcap' for model 'cosine'",
    ),
}


@pytest.mark.parametrize(("model", "body", "said"), OTHERS.values(), ids=OTHERS)
def test_400_of_the_model(server, model, body, said):
    error(infer(server, model, body), 400, said)


def test_400_an_internal_path_is_never_shown(server):
    _, body, _ = OTHERS["shapes only the runtime knows"]
    assert "/" not in infer(server, "product", body).json()["error"]
