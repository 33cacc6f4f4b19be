"""What the mathematics promises, asked over HTTP."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.attending import attend

ROUNDING = 2e-6
seeds = st.integers(0, 2**32)
lengths = st.integers(2, 12)


def draw(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def test_every_block_s_weights_sum_to_one(client):
    query, key, value = draw(0, (2, 5, 64), (2, 7, 64), (2, 7, 64))
    for block in ("dot_product", "scaled_dot_product", "multi_head"):
        weights = attend(client, block, query=query, key=key, value=value)["weights"]
        np.testing.assert_allclose(weights.sum(-1), 1, atol=ROUNDING)
        assert (weights >= 0).all()


@settings(max_examples=25)
@given(seed=seeds, m=lengths, n=lengths)
def test_permuting_queries_permutes_outputs(client, seed, m, n):
    query, key, value = draw(seed, (m, 8), (n, 8), (n, 4))
    order = np.random.default_rng(seed).permutation(m)
    straight = attend(client, query=query, key=key, value=value)["output"]
    permuted = attend(client, query=query[order], key=key, value=value)["output"]
    np.testing.assert_allclose(permuted, straight[order], atol=ROUNDING)


@settings(max_examples=25)
@given(seed=seeds, m=lengths, n=lengths)
def test_permuting_key_value_pairs_changes_nothing(client, seed, m, n):
    query, key, value = draw(seed, (m, 8), (n, 8), (n, 4))
    order = np.random.default_rng(seed).permutation(n)
    straight = attend(client, query=query, key=key, value=value)["output"]
    permuted = attend(client, query=query, key=key[order], value=value[order])["output"]
    np.testing.assert_allclose(permuted, straight, atol=ROUNDING)


def test_permuting_key_value_pairs_changes_masked_attention(client):
    query, key, value = draw(0, (6, 8), (6, 8), (6, 4))
    for option in ({"is_causal": True}, {"attn_mask": np.tri(6, dtype=bool)}, {"left_window_size": 1}):
        straight = attend(client, query=query, key=key, value=value, **option)["output"]
        permuted = attend(client, query=query, key=key[::-1].copy(), value=value[::-1].copy(), **option)["output"]
        assert np.abs(straight - permuted).max() > 0.1


@pytest.mark.parametrize("block", ["scaled_dot_product", "multi_head"])
def test_causal_weights_are_lower_triangular(client, block):
    query, key, value = draw(0, (5, 64), (5, 64), (5, 64))
    weights = attend(client, block, query=query, key=key, value=value, is_causal=True)["weights"]
    assert (np.triu(weights, 1) == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=ROUNDING)


@pytest.mark.parametrize("block", ["scaled_dot_product", "multi_head"])
def test_causal_output_does_not_depend_on_later_rows(client, block):
    query, key, value, other = draw(0, (6, 64), (6, 64), (6, 64), (6, 64))
    for i in range(6):
        later = np.arange(6) > i
        keys, values = np.where(later[:, None], other, key), np.where(later[:, None], other, value)
        first = attend(client, block, query=query, key=key, value=value, is_causal=True)["output"]
        second = attend(client, block, query=query, key=keys, value=values, is_causal=True)["output"]
        np.testing.assert_array_equal(first[: i + 1], second[: i + 1])


@settings(max_examples=25)
@given(seed=seeds, m=lengths, n=lengths)
def test_outputs_lie_in_the_convex_hull_of_the_values(client, seed, m, n):
    """Along any direction, no output lies beyond the outermost value."""
    query, key, value, direction = draw(seed, (m, 3), (n, 3), (n, 4), (4, 20))
    output = attend(client, query=query, key=key, value=value)["output"]
    reach = value @ direction
    assert ((output @ direction) <= reach.max(0) + 1e-5).all()
    assert ((output @ direction) >= reach.min(0) - 1e-5).all()


def test_fully_masked_rows_are_zero(client):
    query, key, value = draw(0, (2, 2, 4, 8), (2, 2, 5, 8), (2, 2, 5, 3))
    mask = np.ones((4, 5), bool)
    mask[2] = False
    for option in ({"attn_mask": mask}, {"attn_mask": mask, "is_causal": True}, {"nonpad_kv_seqlen": [0, 5]}):
        found = attend(client, query=query, key=key, value=value, **option)
        nothing = found["weights"].sum(-1) == 0
        assert nothing.any()
        assert not nothing.all()
        assert (found["output"][nothing] == 0).all()
        np.testing.assert_allclose(found["weights"].sum(-1)[~nothing], 1, atol=ROUNDING)


def test_what_is_masked_is_never_looked_at(client):
    query, key, value, other = draw(0, (1, 1, 4, 8), (1, 1, 6, 8), (1, 1, 6, 8), (1, 1, 6, 8))
    real = np.arange(6) < 4
    keys, values = (np.where(real[:, None], x, 1e6 * other) for x in (key, value))
    for option in ({"nonpad_kv_seqlen": [4]}, {"attn_mask": real[None]}):
        first = attend(client, query=query, key=key, value=value, **option)
        second = attend(client, query=query, key=keys, value=values, **option)
        np.testing.assert_array_equal(first["output"], second["output"])


def test_zero_scale_averages(client):
    query, key, value = draw(0, (3, 4), (5, 4), (5, 2))
    found = attend(client, query=query, key=key, value=value, scale=0)
    np.testing.assert_allclose(found["weights"], 0.2, rtol=1e-6)
    np.testing.assert_allclose(found["output"], np.broadcast_to(value.mean(0), (3, 2)), atol=ROUNDING)


@settings(max_examples=15)
@given(seed=seeds, m=lengths, n=lengths)
def test_parts_of_the_keys_are_merged_by_lse(client, seed, m, n):
    """Query 0 may attend to no key of the first part: its lse there is null."""
    query, key, value = draw(seed, (m, 8), (n, 8), (n, 4))
    mask = np.ones((m, n), bool)
    mask[0, :1] = False
    parts = [
        attend(
            client, query=query, key=key[rows], value=value[rows], attn_mask=mask[:, rows], outputs=["output", "lse"]
        )
        for rows in (slice(1), slice(1, n))
    ]
    whole = attend(client, query=query, key=key, value=value, attn_mask=mask, outputs=["output", "lse"])
    assert np.isneginf(parts[0]["lse"]).tolist() == [True] + [False] * (m - 1)
    lse = np.logaddexp(parts[0]["lse"], parts[1]["lse"])
    merged = sum(np.exp(part["lse"] - lse)[:, None] * part["output"] for part in parts)
    np.testing.assert_allclose(lse, whole["lse"], atol=ROUNDING)
    np.testing.assert_allclose(merged, whole["output"], atol=ROUNDING)
