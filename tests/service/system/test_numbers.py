"""Every number over HTTP equals the float64 reference, within an error budget that comes from data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.catalogue import BLOCKS
from models.examples import ExampleOptions, draw, examples
from tests.support.attending import assert_close, attend, coded, post

SDPA = "scaled_dot_product"
OUTPUTS = ["output", "weights", "scores", "lse", "present_key", "present_value"]
FAST = (SDPA, "luong_general", "encoder")  # the other blocks differ in their graphs, which tests/export compares
PARAMETERS = {
    "is_causal": st.booleans(),
    "left_window_size": st.integers(-1, 25),
    "right_window_size": st.integers(-1, 25),
    "softcap": st.sampled_from([0.0, 0.5, 30.0]),
    "scale": st.sampled_from([-0.5, 0.0, 0.125, 1.0]),
}


@st.composite
def requests(draw_):
    """A block, its inputs at full rank, and the axes of length 1 that the request leaves out."""
    name = draw_(st.sampled_from([SDPA, "dot_product", "multi_head"]))
    left_out = draw_(st.sampled_from([(), (0,)] if name == "multi_head" else [(), (1,), (0, 1)]))
    kv_heads = 1 if 1 in left_out else draw_(st.integers(1, 3))
    sizes = {
        "batch": 1 if 0 in left_out else draw_(st.integers(1, 3)),
        "heads": 1 if 1 in left_out else kv_heads * draw_(st.integers(1, 3)),
        "kv_heads": kv_heads,
        **{length: draw_(st.integers(1, 20)) for length in ("m", "n", "d_v")},
        "d_k": draw_(st.integers(1, 70)),
        "past": draw_(st.integers(1, 9)),
    }
    offset = draw_(st.sampled_from([(), ("past_key", "past_value"), ("nonpad_kv_seqlen",)]))
    mask = draw_(st.sampled_from([(), ("attn_mask",)]))
    parameters = draw_(st.fixed_dictionaries({}, optional=PARAMETERS))
    options = ExampleOptions(offset + mask, parameters, broadcast=draw_(st.booleans()))
    inputs = draw(BLOCKS[name], sizes, options, draw_(st.integers(0, 2**32)))
    inputs["query"] *= np.float32(draw_(st.sampled_from([0.1, 1, 3])))
    return name, inputs, left_out


@settings(max_examples=150)
@given(request_=requests())
def test_random_requests(client, request_):
    name, inputs, left_out = request_
    body = {key: x.squeeze(tuple(axis for axis in left_out if axis < x.ndim)) for key, x in inputs.items()}
    if "attn_mask" in body:  # JSON has no -inf
        body["attn_mask"] = coded(body["attn_mask"])
    answer = attend(client, name, **body, outputs=OUTPUTS)
    assert_close(name, answer, inputs)
    assert answer["output"].ndim == body["query"].ndim


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.extended) for name in BLOCKS]
)
def test_named_examples(client, name):
    outputs = list(BLOCKS[name].outputs)
    for example, inputs in examples(BLOCKS[name]):
        body = inputs | ({"attn_mask": coded(inputs["attn_mask"])} if "attn_mask" in inputs else {})  # JSON has no -inf
        if not example.startswith(("long", "blocks")):  # export verifies them, on the same graphs
            assert_close(name, attend(client, name, **body, outputs=outputs), inputs)


@pytest.mark.parametrize("option", [{"nonpad_kv_seqlen": [4]}, {"attn_mask": [[True] * 4 + [False] * 2]}])
def test_masked_keys_change_no_bit(client, option):
    rng = np.random.default_rng(0)
    query, key, value, other = (rng.standard_normal((1, 1, rows, 8), np.float32) for rows in (4, 6, 6, 2))
    changed = [np.concatenate([x[:, :, :4], 1e6 * other], axis=2, dtype=np.float32) for x in (key, value)]
    first = attend(client, query=query, key=key, value=value, **option)
    second = attend(client, query=query, key=changed[0], value=changed[1], **option)
    np.testing.assert_array_equal(first["output"], second["output"])


def test_digits_survive_the_way(client):
    """A value weighed by exactly 1 comes back as the same float32, whatever its digits."""
    powers = np.float32(10) ** np.arange(-20, 20).repeat(13)[:500]
    value = (np.random.default_rng(0).standard_normal((1, 500)) * powers).astype(np.float32)
    for body in (value, {"shape": [1, 500], "data": value[0]}):
        answer = attend(client, query=[[1]], key=[[1]], value=body)
        np.testing.assert_array_equal(answer["output"], value)


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
    plain, encoded = (attend(client, query=form, key=form, value=form) for form in (x.tolist(), coded(x)))
    np.testing.assert_array_equal(encoded["output"], plain["output"])


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
