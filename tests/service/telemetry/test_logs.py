"""The log: one line an event, in both forms, with ids and stage times; nothing of probes, and no key."""

import json
import logging
import re

import httpx
import pytest

from service.telemetry.logs import Json, Text
from tests.support import graphs
from tests.support.application import running
from tests.support.http_client import ADD
from tests.support.server import started
from tests.support.v2 import tensor
from tests.support.waiting import until

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) +(\S.*)")
STAGES = {"decode", "queue", "compute", "encode"}


def call(client: httpx.Client) -> None:
    """A good request, a bad one, one for no model, two probes, a scrape."""
    for method, path, body in (
        ("POST", "/v2/models/adder/infer", ADD),
        ("POST", "/v2/models/adder/infer", "{"),
        ("POST", "/v1/attention/no%0Asuch", "{}"),
        ("GET", "/v2/health/live", ""),
        ("GET", "/v2/health/ready/", ""),
        ("GET", "/metrics", ""),
    ):
        client.request(method, path, content=body, headers={"X-Request-ID": f"{method}-{len(body)}"})


def test_every_line_of_a_server_is_json(tmp_path, monkeypatch):
    """Those of the start, the supervisor, uvicorn and requests, and of ONNX Runtime: a load that fails, and a run."""
    monkeypatch.setenv("HEED_PORTT", "1")
    (tmp_path / "keys").write_text("very-secret\n")
    models = tmp_path / "models"
    graphs.adder(models / "adder" / "1")
    graphs.lookup(models / "lookup" / "1")
    (models / "broken" / "1").mkdir(parents=True)
    (models / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    flags = ["--workers", "2", "--ready-when", "any", "--log-format", "json", "--access-log", "all"]
    with started(models, tmp_path / "log", *flags, "--api-keys-file", str(tmp_path / "keys")) as service:

        def logged(message: str) -> list[dict]:
            lines = [json.loads(line) for line in service.log.read_text().splitlines() if line.endswith("}")]
            return [line for line in lines if message in line["message"]]

        with httpx.Client(base_url=service.url, headers={"X-API-Key": "very-secret"}) as client:
            call(client)
            bad_id = {"inputs": [tensor("ids", [[7]], "INT64")]}
            assert client.post("/v2/models/lookup/infer", json=bad_id).status_code == 400
        until(lambda: len(logged("request")) >= 4 and logged("model lookup failed on a request"))
        service.process.terminate()
        assert service.ended() == 0
        log = service.log.read_text()
        for line in map(json.loads, log.splitlines()):
            assert LINE.fullmatch(f"{line['time']} {line['level'].upper()} {line['message']}")
        for part in ("listening on", "starts 2 workers", "Started server process", "ready: ", "stopping 2 workers"):
            assert logged(part), part
        good, bad, none, refused = (line for line in logged("request") if line["message"] == "request")
        (settings,) = logged("settings that differ")
        (unknown,) = logged("unknown setting")
        assert any(line["level"] == "error" for line in logged("model broken"))
        loads = [line["by"] for line in logged("model loaded") if line["model"] == "adder"]
    assert (good["request_id"], good["level"]) == (f"POST-{len(ADD)}", "info")
    assert (good["status"], good["model"], good["path"]) == (200, "adder", "/v2/models/adder/infer")
    assert 0 < sum(good[stage] for stage in STAGES) < good["milliseconds"]
    assert (bad["request_id"], bad["status"], bad["level"]) == ("POST-1", 400, "warning")
    assert (none["status"], none["model"], none["path"]) == (404, "no\nsuch", "/v1/attention/no\nsuch")
    assert {line["peer"].rpartition(":")[0] for line in (good, bad, none)} == {"127.0.0.1"}
    assert not STAGES & none.keys()
    assert refused["status"] == 400
    assert (settings["workers"], settings["api_keys_file"]) == (2, str(tmp_path / "keys"))
    assert (unknown["level"], unknown["message"]) == ("warning", "unknown setting HEED_PORTT; did you mean HEED_PORT?")
    assert loads == ["start", "start"]  # each worker has a copy
    assert "very-secret" not in log


@pytest.mark.parametrize(
    ("settings", "statuses"),
    [
        ({}, []),
        ({"access_log": "errors"}, [400, 404]),
        ({"access_log": "errors:0"}, [200, 400, 404]),
        ({"access_log": "all"}, [200, 400, 404]),
    ],
)
def test_which_requests_are_logged_and_in_one_line_each(adder, caplog, settings, statuses):
    caplog.set_level("INFO", "heed")
    with running(adder, **settings) as client:
        caplog.clear()
        call(client)
        records = [record for record in caplog.records if record.name == "heed"]
    assert [record.status for record in records] == statuses
    lines = [Text().format(record) for record in records]
    assert all(LINE.fullmatch(line) for line in lines), lines
    if 200 in statuses:
        good = rf".* INFO +request request_id=POST-{len(ADD)} .*status=200 .*model=adder .*compute=[\d.]+.*"
        assert re.fullmatch(good, lines[0])
    if 404 in statuses:
        assert r'path="/v1/attention/no\nsuch"' in lines[-1]


@pytest.mark.parametrize("form", [Text, Json])
def test_an_exception_is_told(form):
    try:
        raise ValueError("broken")
    except ValueError as error:
        raised = (ValueError, error, error.__traceback__)
    record = logging.makeLogRecord({"msg": "no %s", "args": ("good",), "exc_info": raised, "request_id": "x y"})
    text = form().format(record)
    if form is Json:
        event = json.loads(text)
        assert (event["message"], event["request_id"]) == ("no good", "x y")
        text = event["exception"]
    else:
        assert 'no good request_id="x y"' in text
    assert text.endswith("ValueError: broken")
