"""Blocks with learned projections, over HTTP in both APIs: what each head contributes, and matrices of a request."""

import numpy as np
import pytest

from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, draw
from tests.support.attending import assert_close, attend, post, refer
from tests.support.v2 import error, infer, tensor

OF_HEADS = ["output", "weights", "head_output", "head_share", "weights_by_norm"]
OF_LAYERS = ["output", "weights", "hidden_states", "query", "key", "weights_by_norm"]
WEIGHTS = ["output", "weights"]
X = np.random.default_rng(0).standard_normal((2, 5, 64), np.float32)
QUERY = {"query": X, "key": X, "value": X}
IDS = {"input_ids": np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])}
MASK = np.array([1, 0, 1, 1, 0.5, 1, 0, 2], np.float32)
LAYERS_MASK = np.array([[1, 0, 1, 1], [0.5, 1, 0, 1]], np.float32)
DOCUMENTS = np.array([[0, 0, 1, 1, 1]])


def with_matrices(name, *matrices):
    """The required inputs of a block, and some of its learned matrices with other numbers."""
    drawn = draw(BLOCKS[name], SIZES["distinct"], OPTIONS["learned"])
    return {key: drawn[key] for key, spec in BLOCKS[name].inputs.items() if spec.required or key in matrices}


def tensors(inputs):
    """The V2 form of ``inputs``."""
    datatypes = {"f": "FP32", "i": "INT64"}
    return [tensor(key, array, datatypes[array.dtype.kind]) for key, array in inputs.items()]


CASES = {
    "a mask of all rows": ("multi_head", QUERY | {"head_mask": MASK[None]}, OF_HEADS),
    "a mask of each row": ("multi_head", QUERY | {"head_mask": np.stack([MASK, MASK[::-1]])}, OF_HEADS),
    "a mask of layers": ("encoder", IDS | {"head_mask": LAYERS_MASK}, OF_LAYERS),
    "a layer": ("encoder", IDS | {"head_mask": LAYERS_MASK, "layers": np.array([1])}, OF_LAYERS),
    "a stack with a memory": (
        "cross_decoder",
        {"x": X[..., :32], "memory": X[:, :3, :32], "head_mask": LAYERS_MASK, "memory_head_mask": LAYERS_MASK[::-1]},
        [*WEIGHTS, "cross_weights"],
    ),
    "matrices": (
        "multi_head",
        with_matrices("multi_head", "q_proj_weight", "k_proj_bias", "v_proj_weight", "out_proj_weight"),
        WEIGHTS,
    ),
    "a matrix of grouped queries": ("grouped_query", with_matrices("grouped_query", "k_proj_weight"), WEIGHTS),
    "the only matrix": ("luong_general", with_matrices("luong_general", "q_proj_weight"), WEIGHTS),
    "positions and documents": (
        "grouped_query",
        draw(BLOCKS["grouped_query"], SIZES["distinct"], OPTIONS["sinks"])
        | {"rope_theta": np.float32(100), "query_document_ids": DOCUMENTS, "document_ids": DOCUMENTS},
        WEIGHTS,
    ),
}


@pytest.mark.parametrize(("name", "inputs", "outputs"), CASES.values(), ids=CASES)
def test_both_apis_answer_the_numbers_of_the_reference(client, name, inputs, outputs):
    shapes = {output: array.shape for output, array in refer(name, inputs, np.float64).items() if output in outputs}
    same_mask = {"head_mask": MASK} if inputs.get("head_mask", MASK).shape == (1, 8) else {}  # a vector in JSON
    by_v2 = infer(client, name, {"inputs": tensors(inputs), "outputs": [{"name": output} for output in outputs]}).json()
    for answer in (
        attend(client, name, **inputs | same_mask, outputs=outputs),
        {out["name"]: np.reshape(out["data"], out["shape"]).astype(np.float32) for out in by_v2["outputs"]},
    ):
        assert {output: array.shape for output, array in answer.items()} == shapes
        assert_close(name, answer, inputs)


@pytest.mark.parametrize(
    ("name", "inputs", "key", "array", "said"),
    [
        ("multi_head", QUERY, "q_proj_weight", np.ones((64, 63)), "expected axis 1 to be 64, got 63"),
        ("multi_head", QUERY, "q_proj_bias", np.ones((1, 64)), "expected shape [64] beside query of shape"),
        ("grouped_query", {"x": X}, "k_proj_weight", np.ones((64, 64)), "expected axis 0 to be 16, got 64"),
        ("grouped_query", {"x": X}, "alibi_slopes", np.ones(3), "expected axis 0 to be 1 or 8, got 3"),
        ("multi_head", QUERY, "head_mask", MASK[None, :7], "expected axis 1 to be 1 or 8, got 7"),
        ("multi_head", QUERY, "head_mask", np.ones((3, 8)), "axis 0 (batch) to be 1 or 2, as in query, got 3"),
        ("encoder", IDS, "head_mask", LAYERS_MASK[:1], "expected axis 0 to be 2, got 1"),
        ("encoder", IDS, "head_mask", LAYERS_MASK[0], "expected shape [2, "),
    ],
)
def test_another_shape_is_refused(client, name, inputs, key, array, said):
    body = {**inputs, key: array}
    response = post(client, name, body)
    assert (response.status_code, response.json()["field"]) == (422, key)
    assert said in response.json()["detail"]
    error(infer(client, name, {"inputs": tensors(body)}), 400, key)
