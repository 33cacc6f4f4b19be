"""Errors repeat what a client has sent: at most 1 KiB of it, in both APIs and in the log."""

import json
import logging

import pytest

from service.errors import Invalid, NotFound
from service.http.response import error_response
from service.shorten import CUT, shortened
from service.telemetry.logs import Json, Text

KIB = 1024
SDPA = "/v1/attention/scaled_dot_product"
INFER = "/v2/models/scaled_dot_product/infer"
GOOD = {name: [[1.0]] for name in ("query", "key", "value")}
TENSOR = {"shape": [1, 1, 1, 1], "datatype": "FP32", "data": [1.0]}
INPUTS = [{"name": name, **TENSOR} for name in ("query", "key", "value")]
LONG = {"a": "a" * 300_000, "euro": "\u20ac" * 100_000, "emoji": "\U0001f600" * 80_000, "quotes": '"\\\n' * 100_000}


def native(long: str) -> list[dict]:
    return [
        {**GOOD, long: [[1.0]]},
        {**GOOD, "outputs": [long]},
        {**GOOD, "outputs": long},
        {**GOOD, "outputs": [[long]]},
        {**GOOD, "query": long},
        {**GOOD, "query": [[long]]},
        {**GOOD, "query": {"shape": [1, 1], "dtype": long, "base64": "AACAPw=="}},
        {**GOOD, "query": {"shape": [1, 1], long: [1.0]}},
        {**GOOD, "query": {"shape": long, "data": [1.0]}},
        {**GOOD, "is_causal": long},
        {**GOOD, "scale": long},
    ]


def v2(long: str) -> list[dict]:
    first = INPUTS[0]
    return [
        {"inputs": [{**first, "name": long}, *INPUTS[1:]]},
        {"inputs": [{**first, "datatype": long}, *INPUTS[1:]]},
        {"inputs": [{**first, "shape": long}, *INPUTS[1:]]},
        {"inputs": [{**first, "data": [long]}, *INPUTS[1:]]},
        {"inputs": [{**first, "shape": [1] * 100_000}, *INPUTS[1:]]},
        {"inputs": INPUTS, "outputs": [{"name": long}]},
        {"inputs": INPUTS, "outputs": long},
        {"inputs": INPUTS, "parameters": {"sequence_id": long, "scale": long}},
        {"inputs": INPUTS, "parameters": {"timeout": long}},
        {"inputs": INPUTS, "parameters": {"is_causal": long}},
    ]


@pytest.mark.parametrize("long", LONG.values(), ids=LONG)
@pytest.mark.parametrize(("path", "bodies"), [(SDPA, native), (INFER, v2)], ids=["native", "v2"])
def test_what_is_wrong_with_a_body_is_told_in_short(client, path, bodies, long):
    for body in bodies(long):
        for content in (json.dumps(body).encode(), json.dumps(body, ensure_ascii=False).encode()):
            response = client.post(path, content=content)
            assert response.status_code in (400, 422, 501), response.text[:200]
            assert len(response.content) <= KIB
            assert all(isinstance(value, (str, int)) for value in response.json().values())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/attention/{}"),
        ("POST", "/v1/attention/{}"),
        ("GET", "/v2/models/{}"),
        ("GET", "/v2/models/{}/config"),
        ("POST", "/v2/models/{}/infer"),
        ("POST", "/v2/repository/models/{}/load"),
        ("POST", "/v2/repository/{}/index"),
        ("GET", "/{}"),
    ],
)
def test_what_is_wrong_with_a_path_is_told_in_short(client, method, path):
    response = client.request(method, path.format("a" * 20_000), json=GOOD)
    assert response.status_code in (404, 501, 503)
    assert len(response.content) <= KIB


def test_control_is_answered_in_short(client):
    for body in ({"log_file": "a" * 300_000}, {"a" * 300_000: 1}, {"log_format": "a" * 300_000}):
        assert len(client.post("/v2/logging", json=body).content) <= KIB
    assert len(client.post("/v2/repository/index", content=b'"' + b"a" * 300_000).content) <= KIB
    assert len(client.post("/v2/trace/setting", json={"a" * 300_000: "b"}).content) <= KIB


@pytest.mark.parametrize("long", LONG.values(), ids=LONG)
def test_an_error_keeps_its_beginning_and_its_end(long):
    for error in (Invalid(f"begin {long} end", long), NotFound(f"begin {long} end")):
        for path in ("/v1/x", "/v2/x"):
            response = error_response(path, error)
            assert len(response.body) <= KIB
            said = json.loads(response.body)
            text = said.get("error") or said["detail"]
            assert CUT in text
            assert text.endswith(" end")
    short = "just long enough " * 20
    assert Invalid(short).detail == short


def test_any_text_is_shortened_to_its_length():
    for character in ("a", "\u20ac", "\U0001f600", "\0", "\ud800", "\n"):
        for length in (0, 1, 50, 99, 100, 101, 1000, 10**6):
            short = shortened(character * length, 100)
            assert len(json.dumps(short)) <= 100
            assert short == character * length or CUT in short


def test_the_log_repeats_no_more():
    try:
        raise ValueError("x" * 10**6)
    except ValueError as error:
        exception = type(error), error, error.__traceback__
    for form in (Text(), Json()):
        record = logging.LogRecord("heed", logging.ERROR, "", 0, "model %s failed", ("x" * 10**6,), None)
        line = form.format(record)
        assert len(line) < 1200
        assert "failed" in line
        record = logging.LogRecord("heed", logging.ERROR, "", 0, "request failed", (), exception)
        assert len(form.format(record)) < 3000
        assert record.getMessage() == "request failed"
