"""Blocks with learned projections, over HTTP in both APIs: what each head contributes, and matrices of a request."""

import shutil

import numpy as np
import pytest

from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, draw
from tests.support.attending import assert_close, attend, post
from tests.support.server import serving
from tests.support.v2 import error, infer, tensor

OF_HEADS = ["output", "weights", "head_output", "head_share", "weights_by_norm"]
OF_LAYERS = ["output", "weights", "hidden_states", "query", "key", "weights_by_norm"]
X = np.random.default_rng(0).standard_normal((2, 5, 64), np.float32)
QUERY = {"query": X, "key": X, "value": X}
IDS = {"input_ids": np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])}
MASK = np.array([1, 0, 1, 1, 0.5, 1, 0, 2], np.float32)
LAYERS_MASK = np.array([[1, 0, 1, 1], [0.5, 1, 0, 1]], np.float32)


@pytest.fixture(scope="module")
def client(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    for name in ("multi_head", "grouped_query", "luong_general", "encoder", "cross_decoder"):
        shutil.copytree(repository / name, folder / name)
    with serving(folder) as client:
        yield client


def by_v2(client, name, inputs, outputs):
    datatypes = {"f": "FP32", "i": "INT64"}
    described = [tensor(key, array, datatypes[array.dtype.kind]) for key, array in inputs.items()]
    answer = infer(client, name, {"inputs": described, "outputs": [{"name": output} for output in outputs]}).json()
    return {got["name"]: np.reshape(got["data"], got["shape"]).astype(np.float32) for got in answer["outputs"]}


@pytest.mark.parametrize("mask", [MASK, np.stack([MASK, MASK[::-1]])], ids=["of all rows", "of each row"])
@pytest.mark.parametrize("api", ["native", "v2"])
def test_a_mask_and_outputs_of_heads(api, mask, client):
    inputs = QUERY | {"head_mask": np.atleast_2d(mask)}
    if api == "native":
        found = attend(client, "multi_head", **QUERY, head_mask=mask, outputs=OF_HEADS)
    else:
        found = by_v2(client, "multi_head", inputs, OF_HEADS)
    assert_close("multi_head", found, inputs)
    bias = BLOCKS["multi_head"].build().out_proj.bias.detach().numpy()
    np.testing.assert_allclose(found["head_share"].sum(1) + bias, found["output"], atol=1e-5)


@pytest.mark.parametrize("api", ["native", "v2"])
@pytest.mark.parametrize("layers", [None, [1]])
def test_a_mask_and_outputs_of_layers(layers, api, client):
    inputs = IDS | {"head_mask": LAYERS_MASK} | ({} if layers is None else {"layers": np.array(layers)})
    if api == "native":
        found = attend(client, "encoder", **inputs, outputs=OF_LAYERS)
    else:
        found = by_v2(client, "encoder", inputs, OF_LAYERS)
    assert_close("encoder", found, inputs)
    assert found["hidden_states"].shape == (3, 2, 5, 32)
    assert len(found["query"]) == len(layers or [0, 1])


def test_masks_of_a_stack_with_a_memory(client):
    x = np.random.default_rng(0).standard_normal((2, 5, 32), np.float32)
    inputs = {"x": x, "memory": x[:, :3], "head_mask": LAYERS_MASK, "memory_head_mask": LAYERS_MASK[::-1]}
    found = attend(client, "cross_decoder", **inputs, outputs=["output", "weights", "cross_weights"])
    assert_close("cross_decoder", found, inputs)
    assert not found["weights"][0, :, 1].any()
    assert not found["cross_weights"][1, :, 1].any()


MATRICES = {
    "multi_head": ["q_proj_weight", "k_proj_bias", "v_proj_weight", "out_proj_weight"],
    "grouped_query": ["k_proj_weight"],
    "luong_general": ["q_proj_weight"],
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("api", ["native", "v2"])
def test_matrices_of_the_request(api, name, client):
    drawn = draw(BLOCKS[name], SIZES["distinct"], OPTIONS["learned"])
    required = {key for key, spec in BLOCKS[name].inputs.items() if spec.required}
    inputs = {key: drawn[key] for key in (*required, *MATRICES[name])}
    outputs = ["output", "weights"]
    found = attend(client, name, **inputs) if api == "native" else by_v2(client, name, inputs, outputs)
    assert_close(name, found, inputs)
    learned = BLOCKS[name].reference(BLOCKS[name].build(), {key: inputs[key] for key in required}, np.float64)
    assert np.abs(found["weights"] - learned["weights"]).max() > 0.01


def test_positions_of_a_block_with_projections(client):
    drawn = draw(BLOCKS["grouped_query"], SIZES["distinct"], OPTIONS["sinks_masked"])
    ids = np.array([[0, 0, 1, 1, 1]])
    inputs = drawn | {"rope_theta": np.float32(100), "query_document_ids": ids, "document_ids": ids}
    assert_close("grouped_query", attend(client, "grouped_query", **inputs), inputs)


@pytest.mark.parametrize(
    ("name", "key", "array", "said"),
    [
        ("multi_head", "q_proj_weight", np.ones((64, 63)), "expected axis 1 to be 64, got 63"),
        ("multi_head", "q_proj_bias", np.ones((1, 64)), "expected shape [64] beside query of shape"),
        ("grouped_query", "k_proj_weight", np.ones((64, 64)), "expected axis 0 to be 16, got 64"),
        ("grouped_query", "alibi_slopes", np.ones(3), "expected axis 0 to be 1 or 8, got 3"),
    ],
)
def test_a_matrix_of_another_shape_is_refused(name, key, array, said, client):
    inputs = QUERY if name == "multi_head" else {"x": X}
    response = post(client, name, {**inputs, key: array})
    assert (response.status_code, response.json()["field"]) == (422, key)
    assert said in response.json()["detail"]


@pytest.mark.parametrize(
    ("name", "inputs", "mask", "said"),
    [
        ("multi_head", QUERY, MASK[None, :7], "expected axis 1 to be 1 or 8, got 7"),
        ("multi_head", QUERY, np.ones((3, 8), np.float32), "axis 0 (batch) to be 1 or 2, as in query, got 3"),
        ("encoder", IDS, LAYERS_MASK[:1], "expected axis 0 to be 2, got 1"),
        ("encoder", IDS, LAYERS_MASK[0], "expected shape [2, "),
    ],
)
def test_a_mask_of_another_shape_is_refused(name, inputs, mask, said, client):
    response = post(client, name, {**inputs, "head_mask": mask})
    assert response.status_code == 422
    assert response.json()["field"] == "head_mask"
    assert said in response.json()["detail"]
    datatypes = {"f": "FP32", "i": "INT64"}
    described = [tensor(key, x, datatypes[x.dtype.kind]) for key, x in {**inputs, "head_mask": mask}.items()]
    error(infer(client, name, {"inputs": described}), 400, "head_mask")
