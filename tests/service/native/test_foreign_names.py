"""What torch and transformers write is taken where it asks for what is done anyway, and changes no number."""

import numpy as np
import pytest

from tests.support.attending import post

RNG = np.random.default_rng(7)
TENSORS = {name: RNG.normal(size=(1, 4, 3, 8)).astype("f") for name in ("query", "key", "value")}
GROUPED = {**TENSORS, "key": TENSORS["key"][:, :2], "value": TENSORS["value"][:, :2]}
HARMLESS = [
    {"dropout_p": 0.0, "enable_gqa": True},
    {"dropout_p": 0, "training": False, "attn_mask": None, "is_causal": False, "scale": None},
    {"need_weights": True, "average_attn_weights": False, "key_padding_mask": None},
    {"output_attentions": True, "return_dict": True, "use_cache": False, "past_key_values": None, "batch_first": True},
]


@pytest.mark.parametrize("words", HARMLESS)
def test_harmless_words_change_nothing(client, words):
    plain = post(client, "scaled_dot_product", GROUPED)
    answer = post(client, "scaled_dot_product", {**words, **GROUPED})
    assert answer.status_code == 200, answer.text
    assert answer.content == plain.content


@pytest.mark.parametrize(
    ("block", "words", "field"),
    [
        ("scaled_dot_product", {"dropout_p": 0.1}, "dropout_p"),
        ("scaled_dot_product", {"dropout_p": False}, "dropout_p"),
        ("scaled_dot_product", {"dropout_p": [0]}, "dropout_p"),
        ("scaled_dot_product", {"enable_gqa": 1}, "enable_gqa"),
        ("scaled_dot_product", {"need_weights": True, "outputs": ["output"]}, "need_weights"),
        ("scaled_dot_product", {"need_weights": True, "outputs": "weights"}, "need_weights"),
        ("cosine", {"enable_gqa": True}, "enable_gqa"),
    ],
)
def test_words_that_ask_for_something_else_are_refused(client, block, words, field):
    response = post(client, block, {**TENSORS, **words})
    assert (response.status_code, response.json()["field"]) == (400, field)


@pytest.mark.parametrize("name", [b"\\u0000", b"\\u0000query", b"dropout_p\\u0000", b"\\u001b[31m", b"\\u202ekey"])
def test_a_name_of_any_characters_is_refused(client, name):
    response = post(client, "scaled_dot_product", b'{"%b": 0, "query": [[1]], "key": [[1]], "value": [[1]]}' % name)
    assert response.status_code == 400
    assert "unknown field" in response.json()["detail"]
