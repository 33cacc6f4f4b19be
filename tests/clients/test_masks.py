"""Masks from Python: integers are refused, 0.0 and 1.0 unless they are meant, None in a list is -infinity."""

import numpy as np
import pytest
import torch

from heed_client import BadRequest
from tests.support.client_calls import SDPA, both, sdpa

BITS = np.indices((5, 7)).sum(axis=0) % 2
NUMBERS = {"numpy": BITS, "torch": torch.from_numpy(BITS), "uint8": BITS.astype(np.uint8), "zeros": 0 * BITS}


@pytest.mark.parametrize("binary", [None, False, True])
@pytest.mark.parametrize("mask", NUMBERS.values(), ids=NUMBERS)
def test_integers_are_refused(heed, mask, binary):
    for flag in (False, True):
        with pytest.raises(BadRequest, match=r"expected booleans .* or floats .* got (uint8|int64)") as refused:
            heed.attend(SDPA, **sdpa(), attn_mask=mask, binary=binary, additive_mask=flag)
        assert (refused.value.status, refused.value.field) == (422, "attn_mask")


@pytest.mark.parametrize("binary", [None, False, True])
@pytest.mark.parametrize("mask", [BITS.astype(np.float32), torch.from_numpy(BITS).double(), BITS.tolist()])
def test_zeros_and_ones_are_refused(heed, mask, binary):
    with pytest.raises(BadRequest, match=r"nothing but 0 and 1.*additive_mask") as refused:
        heed.attend(SDPA, **sdpa(), attn_mask=mask, binary=binary)
    assert (refused.value.status, refused.value.field) == (422, "attn_mask")


def test_zeros_and_ones_that_are_meant(heed):
    mask = BITS.astype(np.float32)
    meant = both(heed, SDPA, **sdpa(), attn_mask=mask, additive_mask=True, outputs=["scores"])["scores"]
    plain = heed.attend(SDPA, **sdpa(), outputs=["scores"]).scores
    np.testing.assert_allclose(meant - plain, BITS, atol=1e-5)


@pytest.mark.parametrize("added", [None, -1e9, -10000])
def test_lists_are_what_json_has(heed, added):
    allowed = BITS == 0
    lists = [[0 if free else added for free in row] for row in allowed]
    weights = both(heed, SDPA, **sdpa(), attn_mask=lists)["weights"]
    np.testing.assert_array_equal(weights, heed.attend(SDPA, **sdpa(), attn_mask=allowed).weights)


def test_booleans_and_numbers_in_one_list(heed):
    with pytest.raises(TypeError, match="attn_mask: expected either booleans or numbers, got both"):
        heed.attend(SDPA, **sdpa(), attn_mask=[[True] * 6 + [0.5]])
