"""Errors repeat what a client has sent: at most 1 KiB of it, in both APIs and in the log."""

import json
import logging
import sys

import pytest

from service.base.errors import Invalid, NotFound
from service.base.messages import CUT, shortened
from service.http.response import error_response
from service.telemetry.logs import Json, Text

KIB = 1024
SDPA = "/v1/attention/scaled_dot_product"
INFER = "/v2/models/scaled_dot_product/infer"
GOOD = {name: [[1.0]] for name in ("query", "key", "value")}
FIRST, *OTHERS = [{"name": name, "shape": [1, 1, 1, 1], "datatype": "FP32", "data": [1.0]} for name in GOOD]
LONG = {"a": "a" * 300_000, "euro": "\u20ac" * 100_000, "emoji": "\U0001f600" * 80_000, "quotes": '"\\\n' * 100_000}


def native(long: str) -> list[dict]:
    queries = (
        long,
        [[long]],
        {"shape": [1, 1], "dtype": long, "base64": "AACAPw=="},
        {"shape": [1, 1], long: [1.0]},
        {"shape": long, "data": [1.0]},
    )
    outputs = ([long], long, [[long]])
    changes = [{long: [[1.0]]}, {"is_causal": long}, {"scale": long}]
    changes += [{"query": query} for query in queries] + [{"outputs": names} for names in outputs]
    return [GOOD | change for change in changes]


def v2(long: str) -> list[dict]:
    tensors = ({"name": long}, {"datatype": long}, {"shape": long}, {"data": [long]}, {"shape": [1] * 100_000})
    options = ({"sequence_id": long, "scale": long}, {"timeout": long}, {"is_causal": long})
    changes = [{"outputs": [{"name": long}]}, {"outputs": long}] + [{"parameters": option} for option in options]
    return [{"inputs": [FIRST | tensor, *OTHERS]} for tensor in tensors] + [
        {"inputs": [FIRST, *OTHERS]} | change for change in changes
    ]


@pytest.mark.parametrize("long", LONG.values(), ids=LONG)
@pytest.mark.parametrize(("path", "bodies"), [(SDPA, native), (INFER, v2)], ids=["native", "v2"])
def test_what_is_wrong_with_a_body_is_told_briefly(client, path, bodies, long):
    for body in bodies(long):
        for content in (json.dumps(body).encode(), json.dumps(body, ensure_ascii=False).encode()):
            response = client.post(path, content=content)
            assert response.status_code in (400, 422, 501), response.text[:200]
            assert len(response.content) <= KIB
            assert all(isinstance(value, (str, int)) for value in response.json().values())


NAME, LETTERS = "a" * 2000, "a" * 60_000


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/v1/attention/{NAME}", GOOD),
        ("POST", f"/v1/attention/{NAME}", GOOD),
        ("GET", f"/v2/models/{NAME}", GOOD),
        ("GET", f"/v2/models/{NAME}/config", GOOD),
        ("POST", f"/v2/models/{NAME}/infer", GOOD),
        ("POST", f"/v2/repository/models/{NAME}/load", GOOD),
        ("POST", f"/v2/repository/{NAME}/index", GOOD),
        ("GET", f"/{NAME}", GOOD),
        *(("POST", "/v2/logging", body) for body in ({"log_file": LETTERS}, {LETTERS: 1}, {"log_format": LETTERS})),
        ("POST", "/v2/repository/index", LETTERS),
        ("POST", "/v2/trace/setting", {LETTERS: "b"}),
    ],
    ids=lambda part: str(part)[:30],
)
def test_what_is_wrong_with_a_path_or_a_setting_is_told_briefly(client, method, path, body):
    response = client.request(method, path, json=body)
    assert response.status_code in ((404, 501, 503) if NAME in path else (400, 501, 503)), response.text[:200]
    assert len(response.content) <= KIB


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


@pytest.mark.parametrize("form", [Text(), Json()], ids=["text", "json"])
def test_the_log_repeats_no_more(form):
    long = "x" * 10**6
    line = form.format(logging.LogRecord("heed", logging.ERROR, "", 0, "model %s failed", (long,), None))
    assert len(line) < 1200
    assert "failed" in line
    try:
        raise ValueError(long)
    except ValueError:
        record = logging.LogRecord("heed", logging.ERROR, "", 0, "request failed", (), sys.exc_info())
    assert len(form.format(record)) < 3000
    assert record.getMessage() == "request failed"
