"""Errors of the native API, beside those of mistakes.toml: each names the field, what was expected and what came."""

import base64
import json
from unittest.mock import Mock

import numpy as np
import pytest

from tests.support.application import running
from tests.support.attending import attend, coded, post
from tests.support.v2 import infer, tensor

Q, K, V = [[1, 0], [0, 1]], [[1, 0], [0, 1], [1, 1]], [[1, 0], [0, 1], [0.5, 0.5]]
GOOD = {"query": Q, "key": K, "value": V}
PAST = {"past_key": K, "past_value": V}
ONE_NUMBER = {"query": [[1.0]], "key": [[1.0]], "value": [[1.0]]}

UNKNOWN = {
    "a parameter of another block": ({"bandwidth": 1}, "bandwidth", "unknown field"),
    "two forms": ({"query": {"shape": [1], "data": [1], "base64": ""}}, "query", '"shape" and "data"'),
    "an alias with a list": ({"dropout_p": [0]}, "dropout_p", "unknown field"),
    "an alias beside text": ({"need_weights": True, "outputs": "weights"}, "need_weights", "unknown field"),
}


INVALID = {
    "ragged deep": ({"query": [[[1, 0]], [[0]]]}, "query", "different lengths"),
    "ragged with the right count": ({"value": [[1], [1, 2, 3], [1, 2]]}, "value", "different lengths"),
    "a row among numbers": ({"query": [[1, 0], [0, [1]]]}, "query", "got a list at [1, 1]"),
    "text among rows": ({"query": [[1, 0], "ab"]}, "query", "at [1]"),
    "an object among rows": ({"query": [[1, 0], {"a": 1, "b": 2}]}, "query", "got an object at [1]"),
    "boolean": ({"query": [[1, True], [0, 1]]}, "query", "got a boolean at [0, 1]"),
    "booleans": ({"query": [[True, True], [True, True]]}, "query", "expected numbers, got a boolean"),
    "object": ({"query": [[1, {}], [0, 1]]}, "query", "got an object at [0, 1]"),
    "one number": ({"query": 1}, "query", "expected a list of numbers"),
    "empty rows": ({"query": [[], []]}, "query", "empty"),
    "empty axis": ({"query": {"shape": [0, 2], "data": []}}, "query", "empty"),
    "value beside one query": ({"query": [1, 0], "value": [V]}, "value", "shape [n, d_v] for query of shape [2]"),
    "rank 20": ({"query": json.loads("[" * 20 + "1" + "]" * 20)}, "query", "nested more than 16 levels deep"),
    "rank of key": ({"key": [K]}, "key", "expected shape [n, d_k] for query of shape [2, 2], got shape [1, 3, 2]"),
    "batch": ({"query": [Q, Q], "key": [K], "value": [V, V]}, "key", "axis 0 (batch) to be 2, as in query, got 1"),
    "mask rank": ({"attn_mask": [[[[True]]]]}, "attn_mask", "shape [m, past + n] for query of shape [2, 2]"),
    "mask text": ({"attn_mask": [[True, "true", False]] * 2}, "attn_mask", "at [0, 1]"),
    "mask tricky text": ({"attn_mask": [[True, "t", False]] * 2}, "attn_mask", "at [0, 1]"),
    "mask mixed": ({"attn_mask": [[True, 0, False]] * 2}, "attn_mask", "expected booleans, got 0 at [0, 1]"),
    "mask mixed otherwise": ({"attn_mask": [[0, True, 0]] * 2}, "attn_mask", "expected numbers, got a boolean"),
    "mask null": ({"attn_mask": [[True, None, False]] * 2}, "attn_mask", "got null"),
    "mask ragged": ({"attn_mask": [[True, True, False], [True]]}, "attn_mask", "different lengths"),
    "mask +inf": ({"attn_mask": coded(np.full((2, 3), np.inf, np.float32))}, "attn_mask", "infinity"),
    "mask NaN": ({"attn_mask": coded(np.full((2, 3), np.nan, np.float32))}, "attn_mask", "NaN"),
    "is_causal list": ({"is_causal": [True]}, "is_causal", "expected a boolean, got a list"),
    "window fraction": ({"left_window_size": 1.5}, "left_window_size", "expected a whole number, got 1.5"),
    "window below -1": ({"right_window_size": -2}, "right_window_size", "expected at least -1, got -2"),
    "window huge": ({"left_window_size": 2**63}, "left_window_size", "is out of range for int64"),
    "scale boolean": ({"scale": True}, "scale", "expected a number, got a boolean"),
    "scale huge": ({"scale": 1e300}, "scale", "out of range for float32"),
    "softcap negative": ({"softcap": -1}, "softcap", "expected at least 0, got -1.0"),
    "nonpad negative": ({"nonpad_kv_seqlen": -1}, "nonpad_kv_seqlen", "expected at least 0, got -1"),
    "nonpad list": ({"nonpad_kv_seqlen": [2]}, "nonpad_kv_seqlen", "a single number for query of shape [2, 2], got"),
    "past with nonpad": ({**PAST, "nonpad_kv_seqlen": 1}, "nonpad_kv_seqlen", "cannot be given together with past_key"),
    "past d_k": ({**PAST, "past_key": [[1, 2, 3]] * 3}, "past_key", "axis 1 (d_k) to be 1 or 2, as in query, got 3"),
    "negative shape": ({"query": {"shape": [-1, 2], "data": [1, 2]}}, "query", "negative size"),
    "huge shape": (
        {"query": {"shape": [2**40, 2**40], "data": [1, 2]}},
        "query",
        "needs 1,208,925,819,614,629,174,706,176",
    ),
    "shape past int64": ({"query": {"shape": [2**63, 2], "data": [1, 2]}}, "query", "is out of range for int64"),
    "shape of fractions": ({"query": {"shape": [1.5], "data": [1, 2]}}, "query", "expected whole numbers, got 1.5"),
    "shape no list": ({"query": {"shape": 2, "data": [1, 2]}}, "query", "expected a list of whole numbers"),
    "data no list": ({"query": {"shape": [2], "data": "1,2"}}, "query", "expected data to be a list"),
    "data nested otherwise": ({"query": {"shape": [4, 1], "data": Q}}, "query", "nested as [2, 2]"),
    "data with a hidden list": ({"query": {"shape": [2, 2], "data": [1, 2, [3], 4]}}, "query", "got a list at [2]"),
    "base64 number": ({"query": {"shape": [1], "dtype": "float32", "base64": 7}}, "query", "invalid base64"),
    "base64 length": ({"query": coded(np.ones(3, np.float32), shape=[2, 2])}, "query", "needs 4 numbers, got 3"),
    "base64 dtype number": ({"query": {"shape": [1], "dtype": 4, "base64": "AAAA"}}, "query", "expected dtype"),
    "base64 NaN": ({"query": coded(np.full((2, 2), np.nan, np.float32))}, "query", "NaN"),
    "base64 inf": ({"query": coded(np.full((2, 2), np.inf, np.float32))}, "query", "infinity"),
    "base64 booleans": ({"query": coded(np.ones((2, 2), bool))}, "query", "expected numbers, got booleans"),
    "top true": ({"weights_top_k": True}, "weights_top_k", "whole number of at least 1"),
}


CASES = [(name, 400, *case) for name, case in UNKNOWN.items()] + [(name, 422, *case) for name, case in INVALID.items()]


@pytest.mark.parametrize(("status", "change", "field", "said"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_a_wrong_field_is_named(client, status, change, field, said):
    body = problem(post(client, "scaled_dot_product", {**GOOD, **change}), status)
    assert body["field"] == field
    assert said in body["detail"]
    assert body["detail"].startswith(f"{field}: ")
    assert attend(client, "dot_product", **ONE_NUMBER)["output"].tolist() == [[1.0]]  # the next request is right


@pytest.mark.parametrize("name", [b"\\u0000", b"\\u0000query", b"dropout_p\\u0000", b"\\u001b[31m", b"\\u202ekey"])
def test_a_name_of_any_characters_is_refused(client, name):
    body = problem(post(client, "dot_product", b'{"%b": 0, "query": [[1]], "key": [[1]], "value": [[1]]}' % name), 400)
    assert "unknown field" in body["detail"]


def test_422_of_another_block_or_without_a_tensor(client):
    assert problem(post(client, "scaled_dot_product", {"query": Q, "value": V}), 422)["field"] == "key"
    body = problem(post(client, "multi_head", GOOD), 422)
    assert body["detail"] == "query: expected axis 1 to be 64, got 2 (shape [2, 2])"


def test_422_overflow_is_never_null(client):
    """A score past float32 would make NaN, which JSON would print as null."""
    big = [[1e30, 0], [0, 1]]
    body = problem(post(client, "scaled_dot_product", {"query": big, "key": big, "value": big}), 422)
    assert "not finite" in body["detail"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "attention/scaled", {}, 404),
        ("GET", "nothing", {}, 404),
        ("PUT", "attention/dot_product", {}, 405),
        ("POST", "attention/dot_product", {"Content-Type": "application/x-npy"}, 415),
        ("POST", "attention/dot_product", {"Content-Type": "Application/JSON; charset=utf-8"}, 400),
    ],
)
def test_other_refusals_are_problems_too(client, method, path, headers, status):
    problem(client.request(method, f"/v1/{path}", headers=headers, content=b"3"), status)


@pytest.mark.parametrize(
    "fields",
    [
        {"dropout_p": 0.0, "enable_gqa": True},
        {"dropout_p": 0, "training": False, "attn_mask": None, "is_causal": False, "scale": None},
        {"need_weights": True, "average_attn_weights": False, "key_padding_mask": None},
        {"output_attentions": True, "return_dict": True, "use_cache": False, "past_key_values": None},
        {"batch_first": True},
    ],
)
def test_aliases_whose_value_is_a_no_op_change_nothing(client, fields):
    plain = post(client, "scaled_dot_product", GOOD)
    answer = post(client, "scaled_dot_product", {**fields, **GOOD})
    assert (answer.status_code, answer.content) == (200, plain.content)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_base64_may_be_broken_into_lines(client, ending):
    """As many encoders write it: base64.encodebytes of Python, libb64, the command base64."""
    rows = np.arange(40, dtype=np.float32).reshape(2, 20)
    broken = coded(rows, base64=base64.encodebytes(rows.tobytes()).decode().replace("\n", ending))
    assert broken["base64"].count(ending) > 1
    found, expected = (attend(client, "dot_product", query=x, key=x, value=x)["output"] for x in (broken, rows))
    np.testing.assert_array_equal(found, expected)


def test_500_shows_nothing_but_the_request_id(two_blocks, monkeypatch):
    with running(two_blocks) as client:
        model = client.app.repository.block("dot_product")
        monkeypatch.setattr(model, "run", Mock(side_effect=RuntimeError("a secret")))
        detail = "Internal error; see the server's log for this request's X-Request-ID."
        assert problem(post(client, "dot_product", ONE_NUMBER), 500)["detail"] == detail
        inputs = [tensor(name, np.ones((1, 1, 1, 1))) for name in ONE_NUMBER]
        response = infer(client, "dot_product", {"inputs": inputs})
        assert (response.status_code, response.json()) == (500, {"error": detail})
        assert client.get("/v2/health/ready").status_code == 200


def problem(response, status):
    """The body of an RFC 9457 answer with this status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"]
    assert "decode;dur=" in response.headers["server-timing"]
    body = response.json()
    assert body["status"] == status
    assert body["title"]
    return body
