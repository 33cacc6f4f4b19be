"""What each head contributes, over HTTP in both APIs: masks of heads, shares, hidden states; and wrong masks."""

import shutil

import numpy as np
import pytest

from models.catalogue import BLOCKS
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
    for name in ("multi_head", "encoder"):
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


@pytest.mark.parametrize(
    ("name", "inputs", "mask", "said"),
    [
        ("multi_head", QUERY, MASK[None, :7], "expected last dimension 1 or 8, got 7"),
        ("multi_head", QUERY, np.ones((3, 8), np.float32), "(batch of query), got 3"),
        ("encoder", IDS, LAYERS_MASK[:1], "expected second-last dimension 2, got 1"),
        ("encoder", IDS, LAYERS_MASK[0], "expected 2 dimensions"),
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
