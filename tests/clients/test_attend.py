"""Every option, rank, dtype and mask, as JSON and as bytes: the same numbers, and the true ones."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import torch

from heed_client import AsyncClient, BadRequest, Client
from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, draw
from tests.support.attending import assert_close
from tests.support.client_calls import SDPA, V1, both, sdpa
from tests.support.halves import HALVES

TWO = (SDPA, "encoder")
DTYPES = ["float16", "float32", "float64", ">f4", "longdouble", "int8", "int16", "int32", "int64", "uint8", "uint64"]
BITS = np.indices((5, 7)).sum(axis=0) % 2
INTEGERS = {"numpy": BITS, "torch": torch.from_numpy(BITS), "uint8": BITS.astype(np.uint8), "zeros": 0 * BITS}
FLOATS = {"float": BITS.astype(np.float32), "torch double": torch.from_numpy(BITS).double(), "list": BITS.tolist()}
REFUSED = {
    **{(name, meant): (mask, r"expected .* got (uint8|int64)") for name, mask in INTEGERS.items() for meant in (0, 1)},
    **{(name, 0): (mask, r"contains only 0 and 1.*additive_mask") for name, mask in FLOATS.items()},
}


@pytest.mark.parametrize("name", TWO)
def test_every_option(sync_heed, name):
    block = BLOCKS[name]
    options = {
        option: given for option, given in OPTIONS.items() if {*given.tensors, *given.parameters} <= block.inputs.keys()
    }
    assert "plain" in options
    for given in options.values():
        inputs = draw(block, SIZES["distinct"], given)
        outputs = both(sync_heed, name, **inputs, outputs=list(block.outputs))
        assert_close(name, outputs, inputs)


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_every_rank(heed, leading):
    inputs = sdpa(*leading)
    outputs = both(heed, SDPA, **inputs)
    assert outputs["output"].shape == (*leading, 5, 3)
    assert outputs["weights"].shape == (*leading, 5, 7)
    lifted = {name: array.reshape((*leading, 1, 1)[:2] + array.shape[-2:]) for name, array in inputs.items()}
    exact = heed.attend(SDPA, **lifted)
    np.testing.assert_array_equal(outputs["weights"], exact.weights.reshape(outputs["weights"].shape))


@pytest.mark.parametrize("dtype", [*DTYPES, ml_dtypes.bfloat16], ids=str)
def test_every_dtype(sync_heed, dtype):
    """Computed in the block's float32, as lists of the same numbers are."""
    inputs = {name: np.abs(3 * array).astype(dtype) for name, array in sdpa().items()}
    expected = both(sync_heed, SDPA, **{name: array.astype(np.float32).tolist() for name, array in inputs.items()})
    for name, array in both(sync_heed, SDPA, **inputs).items():
        np.testing.assert_array_equal(array, expected[name], strict=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_of_torch(sync_heed, dtype):
    """They may need a gradient, and lie transposed."""
    columns = {name: torch.from_numpy(array.T.copy()).to(dtype).requires_grad_() for name, array in sdpa().items()}
    tensors = {name: tensor.transpose(0, 1) for name, tensor in columns.items()}
    outputs = both(sync_heed, SDPA, **tensors, is_causal=torch.tensor(True))
    floats = {name: tensor.detach().float().numpy() for name, tensor in tensors.items()}
    np.testing.assert_array_equal(outputs["weights"], sync_heed.attend(SDPA, **floats, is_causal=True).weights)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_token_ids(sync_heed, dtype):
    ids = np.arange(12).reshape(2, 6)
    assert_close("encoder", both(sync_heed, "encoder", input_ids=ids.astype(dtype)), {"input_ids": ids})


@pytest.mark.parametrize("binary", [None, False, True])
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_ambiguous_masks_are_refused(sync_heed, case, binary):
    mask, message = REFUSED[case]
    with pytest.raises(BadRequest, match=message) as refused:
        sync_heed.attend(SDPA, **sdpa(), attn_mask=mask, binary=binary, additive_mask=bool(case[1]))
    assert (refused.value.status, refused.value.field) == (422, "attn_mask")


def test_zeros_and_ones_that_are_meant(heed):
    meant = both(heed, SDPA, **sdpa(), attn_mask=FLOATS["float"], additive_mask=True, outputs=["scores"])["scores"]
    plain = heed.attend(SDPA, **sdpa(), outputs=["scores"]).scores
    np.testing.assert_allclose(meant - plain, BITS, atol=1e-5)


MASKS = {
    "booleans": BITS == 0,
    "floats": np.where(BITS, -np.inf, 0),
    **{f"lists of {added}": [[added if bit else 0 for bit in row] for row in BITS] for added in (None, -1e9, -10000)},
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_broadcast(sync_heed, mask):
    """Lists are what JSON has, where None is -infinity."""
    weights = both(sync_heed, SDPA, **sdpa(2, 3), attn_mask=mask)["weights"]
    assert ((weights > 0) == (BITS == 0)).all()
    np.testing.assert_array_equal(weights, sync_heed.attend(SDPA, **sdpa(2, 3), attn_mask=BITS == 0).weights)


def test_numbers_for_tensors(sync_heed):
    answer = sync_heed.attend(SDPA, **sdpa(), nonpad_kv_seqlen=3, scale=np.float32(0.5), softcap=None, binary=True)
    assert (answer.weights[:, :3] > 0).all()
    assert (answer.weights[:, 3:] == 0).all()


def test_the_size_decides(heed):
    heed.attend(SDPA, **sdpa())
    heed.attend(SDPA, **sdpa(8, m=300, n=300))
    assert heed.asked == [f"GET {V1}/{SDPA}", f"POST {V1}/{SDPA}", f"POST /v2/models/{SDPA}/infer"]


def test_what_the_binary_way_refuses_is_asked_natively(heed):
    """V2 takes 1024 rows at most."""
    inputs = sdpa(1500, 1, m=1, n=2)
    answer = heed.attend(SDPA, **inputs, binary=True)
    asked = [f"GET {V1}/{SDPA}", f"POST /v2/models/{SDPA}/infer", f"POST {V1}/{SDPA}", f"GET {V1}/{SDPA}"]
    assert heed.asked == asked
    assert_close(SDPA, dict(answer), inputs)


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
    for answers in (threaded, asyncio.run(together())):
        for answer, expected in zip(answers, alone, strict=True):
            np.testing.assert_allclose(answer.weights, expected.weights, rtol=1e-5, atol=1e-6)


def test_answers(heed):
    answer = heed.attend(SDPA, **sdpa(), outputs=["weights"])
    assert list(answer) == ["weights"]
    assert answer["weights"] is answer.weights
    assert len(answer.request_id) > 8
    assert set(answer.server_timing) == {"decode", "queue", "compute", "encode"}
    assert answer.server_timing["compute"] > 0
    with pytest.raises(AttributeError, match="weights"):
        answer.output  # noqa: B018


def test_blocks_and_descriptions(sync_heed, client):
    assert {line.block for line in sync_heed.blocks()} == set(BLOCKS)
    for name in TWO:
        block, description = BLOCKS[name], sync_heed.describe(name)
        assert description.formula == block.formula
        assert {one.name for one in description.inputs.values() if one.required} == {
            name for name, of in block.inputs.items() if of.required
        }
        assert description.inputs.keys() | description.parameters.keys() == block.inputs.keys()
        assert list(description.outputs) == list(block.outputs)
        stack = ["rollout", "head_statistics"] if name == "encoder" else []
        assert list(description.derived) == ["entropy", "received", *stack]
        assert json.dumps(description.example) == json.dumps(client.get(f"{V1}/{name}").json()["example"])
        sync_heed.attend(name, **description.example)


@pytest.mark.extended
@pytest.mark.parametrize("name", HALVES)
def test_blocks_in_half_precision(name, halves, shared_server):
    """float16 as bytes, too; bfloat16, which numpy does not have, as JSON and float32."""
    with Client(shared_server(halves).url) as heed:
        answer = heed.attend(name, **sdpa())
        again = heed.attend(name, **sdpa(), binary=HALVES[name].dtype == "float16")
    assert answer.output.dtype == ("float16" if name == "attention_float16" else "float32")
    np.testing.assert_array_equal(again.weights, answer.weights)
    np.testing.assert_allclose(answer.weights.astype(np.float32).sum(-1), 1, atol=0.01)
