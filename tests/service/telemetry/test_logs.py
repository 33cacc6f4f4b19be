"""The log of a real server: one line an event, in both forms, with ids and stage times; nothing of probes."""

import json
import logging
import re
from contextlib import closing

import pytest

from service.telemetry.logs import Json, Text
from tests.support import graphs
from tests.support.http_client import ADD, Connection
from tests.support.server import ServerProcess, started
from tests.support.waiting import until

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) +(\S.*)")
STAGES = {"decode", "queue", "compute", "encode"}


def call(service: ServerProcess) -> None:
    """A good request, a bad one, one for no model, two probes, a scrape."""
    with closing(Connection(service.port)) as connection:
        for method, path, body in (
            ("POST", "/v2/models/adder/infer", ADD),
            ("POST", "/v2/models/adder/infer", "{"),
            ("POST", "/v1/attention/no%0Asuch", "{}"),
            ("GET", "/v2/health/live", None),
            ("GET", "/v2/health/ready/", None),
            ("GET", "/metrics", None),
        ):
            connection.request(method, path, body, {"X-Request-ID": f"{method}-{len(body or '')}"})
            connection.getresponse().read()


def requests(service: ServerProcess, count: int) -> list[dict]:
    """The lines of requests, ``count`` of them."""

    def logged() -> list[dict]:
        lines = [json.loads(line) for line in service.log.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["message"] == "request"]

    until(lambda: len(logged()) >= count)
    assert len(logged()) == count
    return logged()


def test_every_line_is_json(models, tmp_path):
    """Those of the supervisor, of uvicorn and of requests."""
    flags = ("--log-format", "json", "--access-log", "all")
    with started(models, tmp_path / "log", "--workers", "2", *flags) as service:
        call(service)
        good, bad, none = requests(service, 3)
        service.process.terminate()
        assert service.ended() == 0
        lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    for line in lines:
        assert LINE.fullmatch(f"{line['time']} {line['level'].upper()} {line['message']}")
    said = " ".join(line["message"] for line in lines)
    for part in (
        "listening on",
        "starts 2 workers",
        "Started server process",
        "ready: adder, slow",
        "ending 2 workers",
    ):
        assert part in said
    assert good["request_id"] == f"POST-{len(ADD)}"
    assert (good["status"], good["model"], good["path"]) == (200, "adder", "/v2/models/adder/infer")
    assert good["level"] == "info"
    assert 0 < sum(good[stage] for stage in STAGES) < good["milliseconds"]
    assert (bad["request_id"], bad["status"], bad["level"]) == ("POST-1", 400, "warning")
    assert (none["status"], none["model"], none["path"]) == (404, "no\nsuch", "/v1/attention/no\nsuch")
    assert not STAGES & none.keys()


def test_a_run_or_a_load_that_fails_is_logged_as_all_else(tmp_path):
    """ONNX Runtime has lines of its own for both."""
    graphs.lookup(tmp_path / "models" / "lookup" / "1")
    (tmp_path / "models" / "broken" / "1").mkdir(parents=True)
    (tmp_path / "models" / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    body = {"inputs": [{"name": "ids", "shape": [1, 1], "datatype": "INT64", "data": [7]}]}
    flags = ["--workers", "1", "--log-format", "json", "--ready-when", "any"]
    with started(tmp_path / "models", tmp_path / "log", *flags) as service:
        with closing(Connection(service.port)) as connection:
            connection.request("POST", "/v2/models/lookup/infer", json.dumps(body))
            assert connection.getresponse().status == 400
        until(lambda: "model lookup refused a request" in service.log.read_text())
        lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    assert any("model broken" in line["message"] and line["level"] == "error" for line in lines)
    assert any("model lookup refused a request" in line["message"] for line in lines)


def test_errors_alone(models, tmp_path):
    with started(
        models, tmp_path / "log", "--workers", "1", "--log-format", "json", "--access-log", "errors"
    ) as service:
        call(service)
        assert [line["status"] for line in requests(service, 2)] == [400, 404]


def test_slow_requests_are_logged_with_errors(models, tmp_path):
    flags = ("--log-format", "json", "--access-log", "errors", "--slow-milliseconds", "0")
    with started(models, tmp_path / "log", "--workers", "1", *flags) as service:
        call(service)
        assert [line["status"] for line in requests(service, 3)] == [200, 400, 404]


def test_text_is_a_line_an_event_whatever_a_stranger_sends(models, tmp_path):
    with started(models, tmp_path / "log", "--workers", "1", "--access-log", "all") as service:
        call(service)
        until(lambda: "status=404" in service.log.read_text())
        lines = service.log.read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    events = [line for line in lines if " request " in line]
    assert len(events) == 3
    assert re.search(
        rf" INFO +request request_id=POST-{len(ADD)} .*status=200 .*model=adder .*compute=[\d.]+", events[0]
    )
    assert r'path="/v1/attention/no\nsuch"' in events[2]


def test_nothing_is_logged_of_requests_by_default(models, tmp_path):
    with started(models, tmp_path / "log", "--workers", "1") as service:
        before = service.log.read_text()
        call(service)
        assert service.log.read_text() == before


@pytest.mark.parametrize("form", [Text, Json])
def test_an_exception_is_told(form):
    try:
        raise ValueError("broken")
    except ValueError as error:
        found = (ValueError, error, error.__traceback__)
    record = logging.makeLogRecord({"msg": "no %s", "args": ("good",), "exc_info": found, "request_id": "x y"})
    said = form().format(record)
    if form is Json:
        event = json.loads(said)
        assert (event["message"], event["request_id"]) == ("no good", "x y")
        said = event["exception"]
    else:
        assert 'no good request_id="x y"' in said
    assert said.endswith("ValueError: broken")
