"""Every number over HTTP equals the float64 reference, within an error budget that comes from data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.catalogue import BLOCKS
from models.examples import ExampleOptions, draw, examples
from tests.support.attending import assert_close, attend, coded, post
from tests.support.v2 import binary, error, parts

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


def with_coded_mask(inputs):
    """JSON has no -inf."""
    return inputs | ({"attn_mask": coded(inputs["attn_mask"])} if "attn_mask" in inputs else {})


@settings(max_examples=150)
@given(request_=requests())
def test_random_requests(client, request_):
    name, inputs, left_out = request_
    body = {key: x.squeeze(tuple(axis for axis in left_out if axis < x.ndim)) for key, x in inputs.items()}
    answer = attend(client, name, **with_coded_mask(body), outputs=OUTPUTS)
    assert_close(name, answer, inputs)
    assert answer["output"].ndim == body["query"].ndim


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.extended) for name in BLOCKS]
)
def test_named_examples(client, name):
    """V2 answers the same bits as the native API; tensors of heads, learned matrices and layers are among them."""
    outputs = list(BLOCKS[name].outputs)
    for example, inputs in examples(BLOCKS[name]):
        if not example.startswith(("long", "blocks")):  # export verifies them, on the same graphs
            answer = attend(client, name, **with_coded_mask(inputs), outputs=outputs)
            assert_close(name, answer, inputs)
            _, content = parts(binary(client, name, inputs, {}, outputs=outputs))
            assert content == {output: array.tobytes() for output, array in answer.items()}, example


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


RNG = np.random.default_rng(0)
QKV = dict(zip(("query", "key", "value"), RNG.standard_normal((3, 2, 2, 3, 4), np.float32), strict=True))
ALLOWED = RNG.random((3, 3)) < 0.6
MASKS = [ALLOWED, {"shape": [3, 3], "data": ALLOWED.ravel()}, coded(ALLOWED)]
MASKS += [coded(np.where(ALLOWED, 0, -np.inf).astype(np.float32))]
MASKS += [np.broadcast_to(ALLOWED, shape).copy() for shape in ((1, 3, 3), (2, 3, 3), (2, 2, 3, 3), (2, 1, 3, 3))]
X = dict.fromkeys(QKV, RNG.standard_normal((2, 5, 64), np.float32))
OF_HEADS = np.array([1, 0, 1, 1, 0.5, 1, 0, 2], np.float32)
INTEGERS = np.arange(6).reshape(3, 2)
FORMS = [QKV, {name: {"shape": x.shape, "data": x.ravel()} for name, x in QKV.items()}]
FORMS += [{name: coded(x) for name, x in QKV.items()}]
NOTATIONS = {  # a block, and the bodies of one request
    "tensors": (SDPA, FORMS),
    "masks": (SDPA, [QKV | {"attn_mask": form} for form in MASKS]),
    "masks of heads": ("multi_head", [X | {"head_mask": of} for of in (OF_HEADS, [OF_HEADS], [OF_HEADS] * 2)]),
} | {
    dtype: (SDPA, [dict.fromkeys(QKV, form) for form in (INTEGERS.tolist(), coded(INTEGERS.astype(dtype)))])
    for dtype in ("float16", "float64", "int8", "uint16", "int64")
}


@pytest.mark.parametrize(("block", "bodies"), NOTATIONS.values(), ids=NOTATIONS)
def test_the_notation_of_an_input_changes_nothing(client, block, bodies):
    first, *others = (post(client, block, body) for body in bodies)
    assert first.status_code == 200, first.text
    assert {other.content for other in others} == {first.content}


def test_true_in_a_mask_is_may_attend(client):
    assert ((attend(client, **QKV, attn_mask=ALLOWED)["weights"] > 0) == ALLOWED).all()


IDS = {"input_ids": np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])}
SHAPES = [
    ("multi_head", X, "q_proj_weight", np.ones((64, 63)), "expected axis 1 to be 64, got 63"),
    ("multi_head", X, "q_proj_bias", np.ones((1, 64)), "expected shape [64] for query of shape"),
    ("grouped_query", {"x": X["query"]}, "k_proj_weight", np.ones((64, 64)), "expected axis 0 to be 16, got 64"),
    ("grouped_query", {"x": X["query"]}, "alibi_slopes", np.ones(3), "expected axis 0 to be 1 or 8, got 3"),
    ("multi_head", X, "head_mask", np.ones((1, 7)), "expected axis 1 to be 1 or 8, got 7"),
    ("multi_head", X, "head_mask", np.ones((3, 8)), "axis 0 (batch) to be 1 or 2, as in query, got 3"),
    ("encoder", IDS, "head_mask", np.ones((1, 4)), "expected axis 0 to be 2, got 1"),
    ("encoder", IDS, "head_mask", np.ones(4), "expected shape [2, "),
]


@pytest.mark.parametrize(("name", "inputs", "key", "array", "said"), SHAPES)
def test_another_shape_of_heads_or_matrices_is_refused(client, name, inputs, key, array, said):
    response = post(client, name, inputs | {key: array})
    assert (response.status_code, response.json()["field"]) == (422, key)
    assert said in response.json()["detail"]
    error(binary(client, name, inputs | {key: array.astype(np.float32)}, {}), 400, key)
