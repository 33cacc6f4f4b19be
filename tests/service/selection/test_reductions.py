"""Each computation against float64, over shapes that are computed in one part and in many."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import Invalid
from service.selection import reductions
from service.selection.derived import entropy, head_statistics, received, rollout
from service.selection.reductions import largest, pool, quantize, select
from tests.support.attention import true_entropy, true_head_statistics, true_pool, true_received, true_rollout


def weights(*shape, seed=0, dtype=np.float32, empty=0.2):
    """Rows that sum to 1; some have no weight."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(shape) * rng.choice([0.1, 1, 30])
    scores -= scores.max(-1, keepdims=True)
    raw = np.exp(scores)
    raw[rng.random(shape) < 0.2] = 0
    raw /= np.where((total := raw.sum(-1, keepdims=True)) > 0, total, 1)
    raw[rng.random(shape[:-1]) < empty] = 0
    return raw.astype(dtype)


@pytest.fixture(params=[reductions.MAX_PART_NUMBERS, 7])
def part(request, monkeypatch):
    monkeypatch.setattr(reductions, "MAX_PART_NUMBERS", request.param)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(3, 2, 4, 5, 7), (1, 1, 1, 1, 1), (2, 3, 1, 40), (2, 2, 64, 9)])
@pytest.mark.usefixtures("part")
def test_entropy_and_received(shape, dtype):
    array = weights(*shape, dtype=dtype)
    np.testing.assert_allclose(entropy(array), true_entropy(array), rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(received(array), true_received(array), rtol=1e-6, atol=1e-7)
    assert entropy(array).dtype == received(array).dtype == np.float32


def test_entropy_of_known_rows():
    rows = np.array([[1, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0], [0] * 4, [3, 3, 3, 3]], np.float32)
    np.testing.assert_allclose(entropy(rows), [0, math.log(4), math.log(2), 0, math.log(4)], rtol=1e-7)
    tiny = np.array([[1, 1e-45, 1e-38]], np.float32)
    assert 0 <= entropy(tiny)[0] < 1e-30 + 1e-6
    with pytest.raises(Invalid, match=r"entropy requires weights of at least 0, got -0\.5"):
        entropy(np.array([[-0.5, 1.5]], np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(3, 2, 4, 7, 7), (1, 1, 1, 1), (2, 3, 40, 40), (2, 2, 2, 5, 9), (2, 1, 1, 6)])
@pytest.mark.usefixtures("part")
def test_head_statistics(shape, dtype):
    array, (m, n) = weights(*shape, dtype=dtype), shape[-2:]
    for queries in (slice(None), [0, 4, 2] if m > 4 else [0]):
        places, rows = np.arange(n - m, n)[queries], array[..., queries, :]
        found = head_statistics(rows, places)
        np.testing.assert_allclose(found, true_head_statistics(rows, places), rtol=2e-6, atol=2e-6)
        assert found.dtype == np.float32


def test_head_statistics_of_known_heads():
    eye, zeros = np.eye(4), np.zeros((4, 4))
    first = np.zeros((4, 4))
    first[:, 0] = 3  # a row need not sum to 1
    before = np.eye(4, k=-1)  # the first query has no key before it, and here no weight
    even = np.full((4, 4), 0.25)
    found = head_statistics(np.stack([eye, first, before, even, zeros]).astype(np.float32), np.arange(4))
    expected = [
        [0, 0, 0.25, 1, 0],
        [0, 1.5, 1, 0.25, 1 / 3],
        [0, 1, 1 / 3, 0, 1],
        [math.log(4), 1.25, 0.25, 0.25, 0.25],
        [0, 0, 0, 0, 0],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    with pytest.raises(Invalid, match=r"outputs: head_statistics requires weights of at least 0, got -0\.5"):
        head_statistics(np.array([[-0.5, 1.5]], np.float32), np.array([0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("by", ["mean", "max"])
def test_rollout(by, dtype):
    array = weights(4, 2, 3, 17, 17, dtype=dtype)
    expected = true_rollout(array, getattr(np, by))
    np.testing.assert_allclose(rollout(array, by), expected, rtol=1e-5, atol=1e-7)
    for queries in (slice(3, 9, 2), np.array([9, 2])):
        np.testing.assert_allclose(rollout(array, by, queries), expected[:, queries], rtol=1e-5, atol=1e-7)


def test_rollout_follows_the_order_of_layers():
    """The last layer's queries attend to what the first layer's answered: the last factor is on the left."""
    first, last = np.zeros((2, 1, 1, 2, 2), np.float32)
    first[0, 0] = [[0, 1], [0, 1]]
    last[0, 0] = [[1, 0], [1, 0]]
    np.testing.assert_allclose(rollout(np.stack([first, last]), "mean")[0], [[0.5, 0.5], [0.25, 0.75]])


@pytest.mark.parametrize("by", ["mean", "max"])
@pytest.mark.parametrize(("m", "n", "k"), [(10, 10, 3), (9, 4, 5), (4, 9, 4), (7, 7, 1), (3, 3, 8), (64, 50, 16)])
@pytest.mark.usefixtures("part")
def test_pool(m, n, k, by):
    array = weights(2, 3, m, n)
    found = pool(array, k, by)
    expected = np.array([[true_pool(matrix, k, getattr(np, by)) for matrix in row] for row in array.astype(np.float64)])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-38)
    assert max(found.shape[-2:]) <= max(k, 1)


NUMBERS = {  # few of them, so that many are equal; none: any
    "different": (),
    "few": (-np.inf, 0, 0.25, 0.5),
    "equal": (0.25,),
    "with NaN": (-np.inf, 0, 0.25, 0.5, np.nan),
    "NaN at the end": (),
}


@pytest.mark.parametrize("kind", NUMBERS)
@given(k=st.integers(1, 4), is_long=st.booleans(), more=st.integers(0, 3000), seed=st.integers(0, 99))
@pytest.mark.usefixtures("part")
def test_the_largest_are_those_of_a_stable_sort(kind, k, is_long, more, seed):
    n, rng = reductions.MIN_LONG_ROW * k + more if is_long else k + more % 30, np.random.default_rng(seed)
    array = rng.choice(np.float32(NUMBERS[kind]), (2, 2, n)) if NUMBERS[kind] else rng.random((2, 2, n), np.float32)
    if kind == "NaN at the end":
        array[1, 1, -1] = np.nan
    indices, found = largest(array, k)
    np.testing.assert_array_equal(indices, np.argsort(-array, axis=-1, kind="stable")[..., :k])
    np.testing.assert_array_equal(found, np.take_along_axis(array, indices, -1))


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("scale", [1, 1e-3, 1e-30, 700])
def test_uint8(scale):
    array = weights(2, 3, 8, 9) * np.float32(scale)
    levels, unit = quantize("weights", array)
    assert levels.dtype == np.uint8
    assert levels.max() == 255
    error = np.abs(levels * unit.astype(np.float64) - array)
    assert error.max() <= unit[0] / 2 * (1 + 1e-5)


def test_no_weights_are_quantized_to_none():
    """Of a model of pictures in texts, and a text without any."""
    levels, unit = quantize("vision_weights", np.zeros((2, 0, 4), np.float32))
    assert (levels.shape, levels.dtype, unit.tolist()) == ((2, 0, 4), np.uint8, [0.0])


def test_uint8_of_nothing_and_of_what_it_cannot_hold():
    levels, unit = quantize("weights", np.zeros((2, 2), np.float32))
    assert not levels.any()
    assert unit[0] == 0
    with pytest.raises(Invalid, match="weights_dtype: uint8 requires weights of at least 0, got -1 in weights"):
        quantize("weights", np.array([-1, 1], np.float32))
    with pytest.raises(Invalid, match="cross_weights is not finite"):
        quantize("cross_weights", np.array([np.inf, 1], np.float32))


@given(st.data())
def test_selected_parts(data):
    array = np.arange(3 * 2 * 4 * 5 * 2).reshape(3, 2, 4, 5, 2)
    picks = {}
    for axis, size in ((-5, 3), (-3, 4), (-2, 5)):
        places = data.draw(st.none() | st.lists(st.integers(0, size - 1), min_size=1, unique=True))
        if places is not None:
            picks[axis] = data.draw(st.sampled_from([np.array(places), slice(places[0], None), slice(None, None, -1)]))
    expected = array
    for axis, pick in picks.items():
        expected = np.moveaxis(np.moveaxis(expected, axis, 0)[pick], 0, axis)
    found = select(array, picks)
    np.testing.assert_array_equal(found, expected)
    assert np.shares_memory(found, array) == all(isinstance(pick, slice) for pick in picks.values())
