"""``lse`` merges attention over parts of the keys, and is the log of the softmax's denominator."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.catalogue import BLOCKS
from models.examples import OPTIONS, draw

WITH_LSE = [name for name, block in BLOCKS.items() if "lse" in block.outputs and "key" in block.inputs]
# An output projection, with its bias, follows the average.
MERGED = [name for name in WITH_LSE if not BLOCKS[name].config.get("out_proj")]


def refer(name, inputs):
    block = BLOCKS[name]
    return block.reference(block.build(), inputs, np.float64)


def merged(parts):
    """The output and lse over all keys, from those over each part; in NumPy, as a client computes it."""
    lses = np.stack([part["lse"] for part in parts])
    lse = np.logaddexp.reduce(lses)
    factors = np.exp(lses - np.where(np.isneginf(lse), 0, lse))[..., None]
    outputs = np.stack([part["output"] for part in parts]).reshape(len(parts), *lse.shape, -1)
    return (factors * outputs).sum(0), lse


@pytest.mark.parametrize("name", MERGED)
@settings(max_examples=10)
@given(data=st.data(), n=st.integers(2, 12), masked=st.booleans(), seed=st.integers(0, 2**32))
def test_two_parts_of_the_keys_are_merged_exactly(name, data, n, masked, seed):
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "m": 3, "n": n, "past": 0, "d_k": 5, "d_v": 6}
    inputs = draw(BLOCKS[name], sizes, OPTIONS["attn_mask" if masked else "plain"], seed)
    cut = data.draw(st.integers(1, n - 1))
    parts = []
    for rows in (slice(cut), slice(cut, n)):
        part = {key: x[..., rows, :] if key in ("key", "value") else x for key, x in inputs.items()}
        if masked:
            part["attn_mask"] = part["attn_mask"][..., rows]
        parts.append(refer(name, part))
    whole = refer(name, inputs)
    output, lse = merged(parts)
    np.testing.assert_allclose(lse, whole["lse"], rtol=1e-12)
    np.testing.assert_allclose(output.reshape(whole["output"].shape), whole["output"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", WITH_LSE)
def test_weights_are_exp_of_scores_less_lse(name):
    sizes = {"batch": 2, "heads": 2, "kv_heads": 1, "m": 4, "n": 3, "past": 0, "d_k": 5, "d_v": 6}
    inputs = draw(BLOCKS[name], sizes, OPTIONS["attn_mask"])
    inputs["attn_mask"][:, :, 1] = -np.inf
    actual = refer(name, inputs)
    assert np.isneginf(actual["lse"][:, :, 1]).all()
    lse = np.where(np.isneginf(actual["lse"]), 0, actual["lse"])[..., None]
    np.testing.assert_allclose(np.exp(actual["scores"] - lse), actual["weights"], rtol=1e-9, atol=1e-15)
