"""Every status of the native API, provoked; each answer names the tensor, what was expected and what came."""

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

MALFORMED = {
    "truncated": b'{"query": [[1, 2',
    "empty": b"",
    "no object": b"[1, 2]",
    "a number": b"3",
    "NaN literal": b'{"query": [[NaN]], "key": [[1]], "value": [[1]]}',
    "trailing": b'{"query": [[1]]} {}',
    "very deep": b"[" * 5000 + b"]" * 5000,
    "twice": b'{"query": [[1]], "query": [[2]], "key": [[1]], "value": [[1]]}',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_400_malformed(client, body):
    problem(post(client, "scaled_dot_product", body), 400)


UNKNOWN = {
    "field": ({"qeury": Q}, "qeury", "did you mean 'query'?"),
    "a parameter of another block": ({"bandwidth": 1}, "bandwidth", "unknown field"),
    "batch_size": ({"batch_size": 3}, "batch_size", "unknown field"),
    "output": ({"outputs": ["output", "attention"]}, "outputs", "did you mean 'weights'? There are output, weights"),
    "tensor field": ({"query": {"shape": [2, 2], "values": [1, 2, 3, 4]}}, "query", '"shape" and "data"'),
    "two forms": ({"query": {"shape": [1], "data": [1], "base64": ""}}, "query", '"shape" and "data"'),
}


@pytest.mark.parametrize(("change", "field", "said"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_400_unknown(client, change, field, said):
    body = problem(post(client, "scaled_dot_product", {**GOOD, **change}), 400)
    assert body["field"] == field
    assert said in body["detail"]


INVALID = {
    "ragged": ({"query": [[1, 0], [0]]}, "query", "different lengths at depth 1"),
    "ragged deep": ({"query": [[[1, 0]], [[0]]]}, "query", "different lengths"),
    "ragged with the right count": ({"value": [[1], [1, 2, 3], [1, 2]]}, "value", "different lengths"),
    "a number among rows": ({"query": [[1, 0], 5]}, "query", "different lengths"),
    "a row among numbers": ({"query": [[1, 0], [0, [1]]]}, "query", "got a list at [1, 1]"),
    "text among rows": ({"query": [[1, 0], "ab"]}, "query", "at [1]"),
    "an object among rows": ({"query": [[1, 0], {"a": 1, "b": 2}]}, "query", "got an object at [1]"),
    "null": ({"query": [[1, None], [0, 1]]}, "query", "got null at [0, 1]"),
    "text": ({"query": [[1, "0"], [0, 1]]}, "query", "at [0, 1]"),
    "boolean": ({"query": [[1, True], [0, 1]]}, "query", "got a boolean at [0, 1]"),
    "booleans": ({"query": [[True, True], [True, True]]}, "query", "expected numbers, got a boolean"),
    "object": ({"query": [[1, {}], [0, 1]]}, "query", "got an object at [0, 1]"),
    "a word": ({"query": "hello"}, "query", "expected a list of numbers, got text"),
    "a null": ({"query": None}, "query", "got null"),
    "one number": ({"query": 1}, "query", "expected a list of numbers"),
    "past float32": ({"query": [[1e39, 0], [0, 1]]}, "query", "past the range of float32"),
    "empty": ({"query": []}, "query", "empty"),
    "empty rows": ({"query": [[], []]}, "query", "empty"),
    "empty axis": ({"query": {"shape": [0, 2], "data": []}}, "query", "empty"),
    "missing": ({"value": None}, "value", "got null"),
    "rank 5": ({"query": [[[Q]]]}, "query", "expected shape [batch, heads, m, d_k], or its last 1 to 3, got shape"),
    "value beside one query": ({"query": [1, 0], "value": [V]}, "value", "shape [n, d_v] beside query of shape [2]"),
    "rank 20": ({"query": json.loads("[" * 20 + "1" + "]" * 20)}, "query", "nested more than 16 deep"),
    "rank of key": ({"key": [K]}, "key", "expected shape [n, d_k] beside query of shape [2, 2], got shape [1, 3, 2]"),
    "d_k": ({"key": [[1, 0, 1]] * 3}, "key", "expected axis 1 (d_k) to be 2, as in query, got 3 (shape [3, 3])"),
    "n": ({"value": V[:2]}, "value", "expected axis 0 (n) to be 3, as in key, got 2 (shape [2, 2])"),
    "batch": ({"query": [Q, Q], "key": [K], "value": [V, V]}, "key", "axis 0 (batch) to be 2, as in query, got 1"),
    "heads": ({"query": [[Q] * 3], "key": [[K] * 2], "value": [[V] * 2]}, "key", "divides 3 (heads of query), got 2"),
    "mask shape": ({"attn_mask": [[True, False]] * 2}, "attn_mask", "1 or 3"),
    "mask rank": ({"attn_mask": [[[[True]]]]}, "attn_mask", "shape [m, past + n] beside query of shape [2, 2]"),
    "mask text": ({"attn_mask": [[True, "true", False]] * 2}, "attn_mask", "at [0, 1]"),
    "mask tricky text": ({"attn_mask": [[True, "t", False]] * 2}, "attn_mask", "at [0, 1]"),
    "mask mixed": ({"attn_mask": [[True, 0, False]] * 2}, "attn_mask", "expected booleans, got 0 at [0, 1]"),
    "mask mixed otherwise": ({"attn_mask": [[0, True, 0]] * 2}, "attn_mask", "expected numbers, got a boolean"),
    "mask null": ({"attn_mask": [[True, None, False]] * 2}, "attn_mask", "got null"),
    "mask ragged": ({"attn_mask": [[True, True, False], [True]]}, "attn_mask", "different lengths"),
    "mask +inf": ({"attn_mask": coded(np.full((2, 3), np.inf, np.float32))}, "attn_mask", "infinity"),
    "mask NaN": ({"attn_mask": coded(np.full((2, 3), np.nan, np.float32))}, "attn_mask", "NaN"),
    "is_causal 1": ({"is_causal": 1}, "is_causal", "expected a boolean, got 1"),
    "is_causal text": ({"is_causal": "yes"}, "is_causal", "expected a boolean, got text"),
    "is_causal list": ({"is_causal": [True]}, "is_causal", "expected a boolean, got a list"),
    "window fraction": ({"left_window_size": 1.5}, "left_window_size", "expected a whole number, got 1.5"),
    "window below -1": ({"right_window_size": -2}, "right_window_size", "expected at least -1, got -2"),
    "window huge": ({"left_window_size": 2**63}, "left_window_size", "does not fit in int64"),
    "scale text": ({"scale": "1"}, "scale", "expected a number, got text"),
    "scale boolean": ({"scale": True}, "scale", "expected a number, got a boolean"),
    "scale huge": ({"scale": 1e300}, "scale", "past the range of float32"),
    "softcap negative": ({"softcap": -1}, "softcap", "expected at least 0, got -1.0"),
    "nonpad too many": ({"nonpad_kv_seqlen": 4}, "nonpad_kv_seqlen", "expected at most 3 (n), got 4"),
    "nonpad negative": ({"nonpad_kv_seqlen": -1}, "nonpad_kv_seqlen", "expected at least 0, got -1"),
    "nonpad list": ({"nonpad_kv_seqlen": [2]}, "nonpad_kv_seqlen", "a single number beside query of shape [2, 2], got"),
    "past alone": ({"past_key": K}, "past_key", "needs past_value"),
    "past with nonpad": ({**PAST, "nonpad_kv_seqlen": 1}, "nonpad_kv_seqlen", "cannot be given together with past_key"),
    "past d_k": ({**PAST, "past_key": [[1, 2, 3]] * 3}, "past_key", "axis 1 (d_k) to be 1 or 2, as in query, got 3"),
    "negative shape": ({"query": {"shape": [-1, 2], "data": [1, 2]}}, "query", "negative size"),
    "huge shape": ({"query": {"shape": [2**40, 2**40], "data": [1, 2]}}, "query", "needs 1208925819614629174706176"),
    "shape past int64": ({"query": {"shape": [2**63, 2], "data": [1, 2]}}, "query", "does not fit in int64"),
    "shape of fractions": ({"query": {"shape": [1.5], "data": [1, 2]}}, "query", "expected whole numbers, got 1.5"),
    "shape no list": ({"query": {"shape": 2, "data": [1, 2]}}, "query", "expected a list of whole numbers"),
    "data no list": ({"query": {"shape": [2], "data": "1,2"}}, "query", "expected data to be a list"),
    "data of another length": ({"query": {"shape": [2, 2], "data": [1, 2, 3]}}, "query", "needs 4 numbers, got 3"),
    "data nested otherwise": ({"query": {"shape": [4, 1], "data": Q}}, "query", "nested as [2, 2]"),
    "data with a hidden list": ({"query": {"shape": [2, 2], "data": [1, 2, [3], 4]}}, "query", "got a list at [2]"),
    "base64 not": ({"query": {"shape": [1], "dtype": "float32", "base64": "!!!!"}}, "query", "not base64"),
    "base64 number": ({"query": {"shape": [1], "dtype": "float32", "base64": 7}}, "query", "not base64"),
    "base64 odd": ({"query": {"shape": [1], "dtype": "float32", "base64": "AAAA"}}, "query", "no multiple of 4"),
    "base64 length": ({"query": coded(np.ones(3, np.float32), shape=[2, 2])}, "query", "needs 4 numbers, got 3"),
    "base64 dtype": ({"query": {"shape": [1], "dtype": "object", "base64": "AAAA"}}, "query", "expected dtype"),
    "base64 dtype number": ({"query": {"shape": [1], "dtype": 4, "base64": "AAAA"}}, "query", "expected dtype"),
    "base64 NaN": ({"query": coded(np.full((2, 2), np.nan, np.float32))}, "query", "NaN"),
    "base64 inf": ({"query": coded(np.full((2, 2), np.inf, np.float32))}, "query", "infinity"),
    "base64 booleans": ({"query": coded(np.ones((2, 2), bool))}, "query", "expected numbers, got booleans"),
    "outputs none": ({"outputs": []}, "outputs", "at least one output"),
    "outputs twice": ({"outputs": ["output", "output"]}, "outputs", "each once"),
    "outputs word": ({"outputs": "output"}, "outputs", "a list of names"),
    "outputs numbers": ({"outputs": [1]}, "outputs", "a list of names"),
    "average word": ({"average_attn_weights": "yes"}, "average_attn_weights", "a boolean"),
    "top 0": ({"weights_top_k": 0}, "weights_top_k", "whole number from 1"),
    "top true": ({"weights_top_k": True}, "weights_top_k", "whole number from 1"),
}


@pytest.mark.parametrize(("change", "field", "said"), INVALID.values(), ids=INVALID.keys())
def test_422(client, change, field, said):
    body = problem(post(client, "scaled_dot_product", {**GOOD, **change}), 422)
    assert body["field"] == field
    assert said in body["detail"]
    assert body["detail"].startswith(f"{field}: ")
    assert attend(client, "dot_product", **ONE_NUMBER)["output"].tolist() == [[1.0]]  # the next request is right


def test_422_of_another_block_or_without_a_tensor(client):
    assert problem(post(client, "scaled_dot_product", {"query": Q, "value": V}), 422)["field"] == "key"
    body = problem(post(client, "multi_head", GOOD), 422)
    assert body["detail"] == "query: expected axis 1 to be 64, got 2 (shape [2, 2])"


def test_422_overflow_is_never_null(client):
    """A score past float32 would make NaN, which JSON would print as null."""
    big = [[1e30, 0], [0, 1]]
    body = problem(post(client, "scaled_dot_product", {"query": big, "key": big, "value": big}), 422)
    assert "not finite" in body["detail"]


def test_404(client):
    body = problem(post(client, "scaled", GOOD), 404)
    assert "unknown block 'scaled'; there are additive, cosine, " in body["detail"]
    problem(client.get("/v1/attention/scaled"), 404)
    problem(client.get("/v1/nothing"), 404)
    assert client.get("/v2/nothing").json()["error"].startswith("Not Found")


def test_405_and_415(client):
    problem(client.put("/v1/attention/scaled_dot_product"), 405)
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/x-npy"}, {"Content-Encoding": "br"}):
        problem(post(client, "scaled_dot_product", GOOD, **headers), 415)


def test_json_with_a_charset_is_json(client):
    assert post(client, "dot_product", GOOD, **{"Content-Type": "Application/JSON; charset=utf-8"}).status_code == 200


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_base64_may_be_broken_into_lines(client, ending):
    """As many encoders write it: base64.encodebytes of Python, libb64, the command base64."""
    rows = np.arange(40, dtype=np.float32).reshape(2, 20)
    broken = coded(rows, base64=base64.encodebytes(rows.tobytes()).decode().replace("\n", ending))
    assert broken["base64"].count(ending) > 1
    found, expected = (attend(client, "dot_product", query=x, key=x, value=x)["output"] for x in (broken, rows))
    np.testing.assert_array_equal(found, expected)


def test_413(two_blocks):
    with running(two_blocks, max_body_bytes=1000, max_memory_bytes=100_000) as client:
        body = problem(post(client, "dot_product", b" " * 1001), 413)
        assert "the body has 1,001 bytes, which exceeds the maximum allowed (max_body_bytes), 1,000" in body["detail"]
        chunks = iter([b" " * 600] * 3)
        headers = {"Content-Type": "application/json"}
        problem(client.post("/v1/attention/dot_product", content=chunks, headers=headers), 413)
        many = coded(np.zeros((200, 1), np.int8))
        body = problem(post(client, "dot_product", {"query": many, "key": many, "value": many}), 413)
        assert "max_memory_bytes" in body["detail"]
        assert post(client, "dot_product", GOOD).status_code == 200


def test_500_shows_nothing_but_the_request_id(two_blocks, monkeypatch):
    with running(two_blocks) as client:
        model = client.app.repository.block("dot_product")
        monkeypatch.setattr(model, "run", Mock(side_effect=RuntimeError("a secret")))
        detail = "The server failed; its log names this request's X-Request-ID."
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
