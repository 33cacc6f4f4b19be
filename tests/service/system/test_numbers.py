"""Every number over HTTP equals the float64 reference, within an error budget that comes from data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.catalogue import BLOCKS
from models.examples import examples
from tests.support.attending import array, assert_close, attend, coded, post
from tests.support.magnitudes import inputs_of, wrong

SDPA = "scaled_dot_product"
EVERY = ["output", "weights", "scores", "present_key", "present_value"]


@st.composite
def requests(draw):
    """A block, its inputs at full rank, and how many leading axes the request leaves out."""
    name = draw(st.sampled_from([SDPA, "dot_product", "multi_head"]))
    learned = name == "multi_head"
    left_out = draw(st.integers(0, 1 if learned else 2))
    kv_heads = 1 if left_out else draw(st.integers(1, 3))
    heads = 8 if learned else 1 if left_out else kv_heads * draw(st.integers(1, 3))
    batch = 1 if left_out == (1 if learned else 2) else draw(st.integers(1, 3))
    m, n = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    d_k, d_v = (64, 64) if learned else (draw(st.integers(1, 70)), draw(st.integers(1, 20)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.1, 1, 3]))

    def normal(*shape):
        return (spread * rng.standard_normal(shape)).astype(np.float32)

    own, others = ((), ()) if learned else ((heads,), (kv_heads,))
    inputs = {
        "query": normal(batch, *own, m, d_k),
        "key": normal(batch, *others, n, d_k),
        "value": normal(batch, *others, n, d_v),
    }
    offset = draw(st.sampled_from([None, "past", "nonpad"]))
    past = 0
    if offset == "past":
        past = draw(st.integers(1, 9))
        shape = (batch, 8, past, 8) if learned else (batch, kv_heads, past)
        inputs["past_key"] = normal(*shape) if learned else normal(*shape, d_k)
        inputs["past_value"] = normal(*shape) if learned else normal(*shape, d_v)
    if offset == "nonpad":
        inputs["nonpad_kv_seqlen"] = rng.integers(0, n + 1, batch)
    mask = draw(st.sampled_from([None, "boolean", "float"]))
    if mask:
        shape = (batch if draw(st.booleans()) else 1, heads if draw(st.booleans()) else 1, m, past + n)
        inputs["attn_mask"] = rng.random(shape) < 0.7 if mask == "boolean" else normal(*shape)
    parameters = {
        "is_causal": st.booleans(),
        "left_window_size": st.integers(-1, 25),
        "right_window_size": st.integers(-1, 25),
        "softcap": st.sampled_from([0.0, 0.5, 30.0]),
        "scale": st.sampled_from([-0.5, 0.0, 0.125, 1.0]),
    }
    for parameter in draw(st.sets(st.sampled_from(sorted(parameters)))):
        inputs[parameter] = np.asarray(draw(parameters[parameter]))
    return name, inputs, left_out


def leave_out(name, array, left_out, learned):
    """The array without its leading axes of length 1: heads first, then batch."""
    if not left_out or np.ndim(array) == 0:
        return array
    if name == "nonpad_kv_seqlen":
        return array[0] if left_out == (1 if learned else 2) else array
    if learned:
        return array[0]
    return array[:, 0] if left_out == 1 else array[0, 0]


@settings(max_examples=150)
@given(request_=requests())
def test_random_requests(client, request_):
    name, inputs, left_out = request_
    body = {key: leave_out(key, array, left_out, name == "multi_head") for key, array in inputs.items()}
    found = attend(client, name, **body, outputs=EVERY)
    assert_close(name, found, inputs)
    assert found["output"].ndim == body["query"].ndim


@pytest.mark.parametrize("name", BLOCKS)
def test_named_examples(client, name):
    every = list(BLOCKS[name].outputs)
    for example, inputs in examples(BLOCKS[name]):
        body = inputs | ({"attn_mask": coded(inputs["attn_mask"])} if "attn_mask" in inputs else {})  # JSON has no -inf
        if not example.startswith(("long", "blocks")):  # export verifies them, on the same graphs
            assert_close(name, attend(client, name, **body, outputs=every), inputs)


@pytest.mark.parametrize(
    ("batch", "m", "n", "d"),
    [(1, 1, 1, 1), (1, 1, 5, 1), (1, 5, 1, 3), (64, 3, 4, 8), (2, 4, 4096, 16), (1, 4096, 3, 4)],
)
def test_edge_sizes(client, batch, m, n, d):
    rng = np.random.default_rng(m + n)
    query, key = rng.standard_normal((batch, 1, m, d), np.float32), rng.standard_normal((batch, 1, n, d), np.float32)
    inputs = {"query": query, "key": key, "value": key}
    assert_close(SDPA, attend(client, **inputs), inputs)


def test_long_square(client):
    """m = n = 4096, weights left aside: they would be 16 million numbers of JSON."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, 1, 4096, 8), np.float32) for _ in range(3))
    inputs = {"query": query, "key": key, "value": value}
    assert_close(SDPA, attend(client, **inputs, outputs=["output"]), inputs)


def test_grouped_queries(client):
    rng = np.random.default_rng(0)
    key, value = rng.standard_normal((2, 1, 2, 5, 4), np.float32)
    query = rng.standard_normal((1, 6, 3, 4), np.float32)
    grouped = attend(client, query=query, key=key, value=value)
    repeated = attend(client, query=query, key=key.repeat(3, axis=1), value=value.repeat(3, axis=1))
    np.testing.assert_allclose(grouped["output"], repeated["output"], atol=1e-6)


def test_average_attn_weights(client):
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 2, 5, 64), np.float32)
    each = attend(client, "multi_head", query=query, key=key, value=value)["weights"]
    average = attend(client, "multi_head", query=query, key=key, value=value, average_attn_weights=True)["weights"]
    assert each.shape == (2, 8, 5, 5)
    np.testing.assert_allclose(average, each.mean(axis=1), rtol=1e-6)
    single = attend(client, "multi_head", query=query[0], key=key[0], value=value[0], average_attn_weights=True)
    np.testing.assert_allclose(single["weights"], average[0], rtol=1e-5)
    no_heads = attend(client, query=query, key=key, value=value, average_attn_weights=True)
    assert no_heads["weights"].shape == (2, 5, 5)


def test_weights_top_k(client):
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 2, 2, 5, 4), np.float32)
    weights = attend(client, query=query, key=key, value=value)["weights"]
    top = attend(client, query=query, key=key, value=value, weights_top_k=3)["weights"]
    assert top["indices"].shape == top["values"].shape == (2, 2, 5, 3)
    assert (np.diff(top["values"]) <= 0).all()
    np.testing.assert_array_equal(np.take_along_axis(weights, top["indices"], -1), top["values"].astype(np.float32))
    np.testing.assert_array_equal(top["values"].astype(np.float32), -np.sort(-weights)[..., :3])


def test_equal_weights_come_in_the_order_of_their_keys(client):
    ones = [[1.0], [1.0], [1.0]]
    top = attend(client, query=ones, key=ones, value=ones, weights_top_k=2)["weights"]
    assert top["indices"].tolist() == [[0, 1]] * 3


def test_one_token_at_a_time_equals_the_whole(client):
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 1, 2, 6, 4), np.float32)
    whole = attend(client, query=query, key=key, value=value, is_causal=True)["output"]
    past: dict = {}
    for t in range(6):
        step = {name: x[:, :, t : t + 1] for name, x in (("query", query), ("key", key), ("value", value))}
        found = attend(client, **step, **past, is_causal=True, outputs=["output", "present_key", "present_value"])
        past = {"past_key": found["present_key"], "past_value": found["present_value"]}
        np.testing.assert_allclose(found["output"][:, :, 0], whole[:, :, t], atol=1e-6)


def test_digits_survive_the_way(client):
    """A value weighed by exactly 1 comes back as the same float32, whatever its digits."""
    powers = np.float32(10) ** np.arange(-20, 20).repeat(13)[:500]
    value = (np.random.default_rng(0).standard_normal((1, 500)) * powers).astype(np.float32)
    for body in (value, {"shape": [1, 500], "data": value[0]}):
        found = attend(client, query=[[1]], key=[[1]], value=body)
        np.testing.assert_array_equal(found["output"], value)


def test_three_ways_to_write_a_tensor_give_the_same_answer(client):
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal((2, 3, 4), np.float32) for name in ("query", "key", "value")}
    flat = {name: {"shape": x.shape, "data": x.ravel()} for name, x in tensors.items()}
    bytes_ = {name: coded(x) for name, x in tensors.items()}
    answers = [post(client, SDPA, body).content for body in (tensors, flat, bytes_)]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint16", "int64"])
def test_base64_of_other_types(client, dtype):
    x = np.arange(6).reshape(3, 2).astype(dtype)
    plain = attend(client, query=x.tolist(), key=x.tolist(), value=x.tolist())
    found = attend(client, query=coded(x), key=coded(x), value=coded(x))
    np.testing.assert_array_equal(found["output"], plain["output"])


def test_masks_in_every_form(client):
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 2, 2, 3, 4), np.float32)
    allowed = rng.random((3, 3)) < 0.6
    added = np.where(allowed, 0, -np.inf).astype(np.float32)

    forms = [allowed, {"shape": [3, 3], "data": allowed.ravel()}, coded(allowed), coded(added)]
    forms += [np.broadcast_to(allowed, shape).copy() for shape in ((1, 3, 3), (2, 3, 3), (2, 2, 3, 3), (2, 1, 3, 3))]
    answers = [attend(client, query=query, key=key, value=value, attn_mask=form)["weights"] for form in forms]
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])
    assert ((answers[0] > 0) == allowed).all()


@pytest.mark.parametrize("name", BLOCKS)
def test_any_magnitude_is_answered_rightly_or_refused(client, name):
    @settings(max_examples=12)
    @given(drawn=inputs_of(BLOCKS[name]))
    def check(drawn):
        inputs, moderate = drawn
        body = {key: coded(x) if key == "attn_mask" else x for key, x in inputs.items()}
        response = post(client, name, body)
        if response.status_code == 200:
            outputs = {key: array(value) for key, value in response.json().items() if key != "block"}
            assert not wrong(name, inputs, outputs)
        else:
            assert not moderate
            assert response.status_code == 422
            assert "is not finite: the numbers given overflow float32" in response.json()["detail"]

    check()


@pytest.mark.parametrize("exponent", [-140, -100, -70, -30, 30, 64, 100, 124])
def test_cosine_does_not_know_lengths(client, exponent):
    """A power of two changes no digit of a number that stays normal."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((2, 3, n, 8), np.float32) for n in (5, 7, 7))
    plain = attend(client, "cosine", query=query, key=key, value=value)
    factor = 2.0**exponent
    found = attend(client, "cosine", query=(query * factor).astype(np.float32), key=key, value=value)
    atol = 1e-6 if exponent > -120 else 1e-2  # of a subnormal number few digits are left
    np.testing.assert_allclose(found["weights"], plain["weights"], atol=atol)
    found = attend(client, "cosine", query=query, key=(key * factor).astype(np.float32), value=value)
    np.testing.assert_allclose(found["weights"], plain["weights"], atol=atol)


def test_cosine_of_zeros_is_like_nothing(client):
    rng = np.random.default_rng(0)
    key, value = rng.standard_normal((2, 4, 8), np.float32)
    found = attend(client, "cosine", query=np.zeros((3, 8), np.float32), key=key, value=value)
    np.testing.assert_allclose(found["weights"], 0.25, rtol=1e-6)
