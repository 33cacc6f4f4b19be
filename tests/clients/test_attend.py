"""Every block, option, rank and dtype through the client, as JSON and as bytes: the same numbers, and the true ones."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import torch

from heed_client import AsyncClient, BadRequest, Client, TopK
from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, draw
from tests.support.attending import assert_close
from tests.support.client_calls import SDPA, V1, both, drawn, sdpa
from tests.support.halves import HALVES
from tests.support.server import serving


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_and_option(heed, name):
    block = BLOCKS[name]
    options = {
        option: given for option, given in OPTIONS.items() if {*given.tensors, *given.parameters} <= block.inputs.keys()
    }
    assert "plain" in options
    for given in options.values():
        inputs = draw(block, SIZES["distinct"], given)
        found = both(heed, name, **inputs, outputs=list(block.outputs))
        assert_close(name, found, inputs)


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_every_rank(heed, leading):
    inputs = sdpa(*leading)
    found = both(heed, SDPA, **inputs)
    assert found["output"].shape == (*leading, 5, 3)
    assert found["weights"].shape == (*leading, 5, 7)
    lifted = {name: array.reshape((*leading, 1, 1)[:2] + array.shape[-2:]) for name, array in inputs.items()}
    exact = heed.attend(SDPA, **lifted)
    np.testing.assert_array_equal(found["weights"], exact.weights.reshape(found["weights"].shape))


@pytest.mark.parametrize("mask", [drawn(5, 7) > 0, np.where(drawn(5, 7) > 0, 0, -np.inf).astype(np.float32)])
def test_a_mask_broadcasts(heed, mask):
    mask[:, 0] = True if mask.dtype == bool else 0
    weights = both(heed, SDPA, **sdpa(2, 3), attn_mask=mask)["weights"]
    allowed = mask if mask.dtype == bool else mask == 0
    assert ((weights > 0) == allowed).all()


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", ">f4", "longdouble", "int8", "int16", "int32", "int64", "uint8", "uint64"],
)
def test_every_dtype(heed, dtype):
    """Computed in the block's float32, as the same numbers in float32 are."""
    inputs = {name: np.abs(3 * array).astype(dtype) for name, array in sdpa().items()}
    found = both(heed, SDPA, **inputs)
    expected = heed.attend(SDPA, **{name: array.astype(np.float32) for name, array in inputs.items()})
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], strict=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_of_torch(heed, dtype):
    """They may need a gradient, and lie transposed."""
    tensors = {
        name: torch.from_numpy(array.T.copy()).to(dtype).requires_grad_().transpose(0, 1)
        for name, array in sdpa().items()
    }
    found = both(heed, SDPA, **tensors, is_causal=torch.tensor(True))
    floats = {name: tensor.detach().float().numpy() for name, tensor in tensors.items()}
    np.testing.assert_array_equal(found["weights"], heed.attend(SDPA, **floats, is_causal=True).weights)


def test_bfloat16_of_numpy_and_lists(heed):
    rounded = {name: array.astype(ml_dtypes.bfloat16) for name, array in sdpa().items()}
    lists = {name: array.astype(np.float32).tolist() for name, array in rounded.items()}
    np.testing.assert_array_equal(both(heed, SDPA, **rounded)["output"], both(heed, SDPA, **lists)["output"])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_token_ids(heed, dtype):
    ids = np.arange(12).reshape(2, 6)
    found = both(heed, "encoder", input_ids=ids.astype(dtype))
    assert found["weights"].shape == (2, 2, 4, 6, 6)
    assert_close("encoder", found, {"input_ids": ids})


def test_averages_and_the_largest(heed):
    inputs = sdpa(2, 3)
    weights = heed.attend(SDPA, **inputs).weights
    averaged = heed.attend(SDPA, **inputs, average_attn_weights=True, binary=True).weights
    np.testing.assert_allclose(averaged, weights.mean(axis=1), rtol=1e-6)
    largest = heed.attend(SDPA, **inputs, weights_top_k=2, outputs=["weights"]).weights
    assert isinstance(largest, TopK)
    np.testing.assert_array_equal(largest.values, -np.sort(-weights, axis=-1)[..., :2])
    np.testing.assert_array_equal(np.take_along_axis(weights, largest.indices, -1), largest.values)


def test_numbers_for_tensors(heed):
    found = heed.attend(SDPA, **sdpa(), nonpad_kv_seqlen=3, scale=np.float32(0.5), softcap=None, binary=True)
    assert (found.weights[:, :3] > 0).all()
    assert (found.weights[:, 3:] == 0).all()


def test_the_size_decides(heed):
    heed.attend(SDPA, **sdpa())
    assert heed.asked == [f"GET {V1}/{SDPA}", f"POST {V1}/{SDPA}"]
    heed.asked.clear()
    heed.attend(SDPA, **sdpa(8, m=300, n=300))
    assert heed.asked == [f"POST /v2/models/{SDPA}/infer"]


def test_what_the_binary_way_refuses_is_asked_natively(heed):
    """V2 takes 1024 rows at most."""
    inputs = sdpa(1500, 1, m=1, n=2)
    found = heed.attend(SDPA, **inputs, binary=True)
    asked = [f"GET {V1}/{SDPA}", f"POST /v2/models/{SDPA}/infer", f"POST {V1}/{SDPA}", f"GET {V1}/{SDPA}"]
    assert heed.asked == asked
    assert_close(SDPA, dict(found), inputs)


def test_many_at_once(client):
    """Each gets its own answer, over threads of one client and tasks of another."""
    url = str(client.base_url)
    inputs = [sdpa(2, 2, m=m) | {"scale": m / 10} for m in range(1, 30)]

    async def together():
        async with AsyncClient(url) as heed:
            return await asyncio.gather(*(heed.attend(SDPA, **one) for one in inputs))

    with Client(url) as heed, ThreadPoolExecutor(8) as threads:
        threaded = list(threads.map(lambda one: heed.attend(SDPA, **one), inputs))
        alone = [heed.attend(SDPA, **one) for one in inputs]
    for found in (threaded, asyncio.run(together())):
        for one, expected in zip(found, alone, strict=True):
            np.testing.assert_allclose(one.weights, expected.weights, rtol=1e-5, atol=1e-6)


def test_answers(heed):
    found = heed.attend(SDPA, **sdpa(), outputs=["weights"])
    assert list(found) == ["weights"]
    assert found["weights"] is found.weights
    assert len(found.request_id) > 8
    assert set(found.server_timing) == {"decode", "queue", "compute", "encode"}
    assert found.server_timing["compute"] > 0
    with pytest.raises(AttributeError, match="weights"):
        found.output  # noqa: B018


def test_blocks_and_descriptions(heed, client):
    assert {line.block for line in heed.blocks()} == set(BLOCKS)
    for name, block in BLOCKS.items():
        said = heed.describe(name)
        assert said.formula == block.formula
        assert {one.name for one in said.inputs.values() if one.required} == {
            name for name, of in block.inputs.items() if of.required
        }
        assert said.inputs.keys() | said.parameters.keys() == block.inputs.keys()
        assert list(said.outputs) == list(block.outputs)
        assert json.dumps(said.example) == json.dumps(client.get(f"/v1/attention/{name}").json()["example"])
        heed.attend(name, **said.example)


@pytest.mark.parametrize("name", HALVES)
def test_blocks_in_half_precision(name, halves):
    """float16 as bytes, too; bfloat16, which numpy does not have, as JSON and float32."""
    tensors = sdpa()
    with serving(halves) as server, Client(str(server.base_url)) as heed:
        found = heed.attend(name, **tensors)
        again = heed.attend(name, **tensors, binary=HALVES[name].dtype == "float16")
    assert found.output.dtype == ("float16" if name == "attention_float16" else "float32")
    np.testing.assert_array_equal(again.weights, found.weights)
    np.testing.assert_allclose(found.weights.astype(np.float32).sum(-1), 1, atol=0.01)


@pytest.mark.parametrize("head", [(), (1,)])
def test_one_head_without_a_batch(heed, head):
    """Its axis is left out with that of the batch; a mask and a past may have it."""
    given = {"x": drawn(5, 32), "attn_mask": drawn(*head, 5, 9)}
    given |= {"past_key": drawn(*head, 4, 16), "past_value": drawn(*head, 4, 32)}
    found = both(heed, "self_attention", **given, outputs=["output", "weights", "present_key"])
    assert [array.shape for array in found.values()] == [(5, 32), (5, 9), (9, 16)]


@pytest.mark.parametrize("binary", [False, True, None])
@pytest.mark.parametrize("outputs", [None, ["output"], ["scores"]])
def test_what_overflows_is_an_error_either_way(heed, binary, outputs):
    """V2 answers NaN in bytes; the native API says why."""
    inputs = {name: 1e30 * array for name, array in sdpa(2, 3).items()}
    with pytest.raises(BadRequest, match="not finite: the numbers given overflow float32") as caught:
        heed.attend(SDPA, **inputs, binary=binary, outputs=outputs)
    assert caught.value.status == 422
    forbidden = heed.attend(SDPA, **sdpa(2, 3), is_causal=True, binary=binary, outputs=["scores"])
    assert np.isneginf(forbidden["scores"]).any()
