"""``GET /metrics`` of a real server: true, over all workers, and of bounded size."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from service.telemetry.families import FAMILIES, LAST_INFERENCE, add
from tests.support import graphs
from tests.support.http_client import ADD, SLOW, Connection, open_connections
from tests.support.server import ServerProcess, command, started
from tests.support.waiting import until

ADDER = {"model": "adder", "api": "v2"}


@pytest.fixture
def one(models, tmp_path) -> Iterator[ServerProcess]:
    with started(models, tmp_path / "log", "--workers", "1") as service:
        yield service


def scrape(service: ServerProcess, accept: str = "") -> tuple[str, str]:
    with closing(Connection(service.port)) as connection:
        connection.request("GET", "/metrics", headers={"Accept": accept})
        response = connection.getresponse()
        return response.read().decode(), response.headers["content-type"]


def value(service: ServerProcess, name: str, **labels: str) -> float:
    """Of all the samples with these labels, the sum."""
    samples = [sample for family in text(scrape(service)[0]) for sample in family.samples if sample.name == name]
    assert samples, f"there is no {name}"
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def post(service: ServerProcess, path: str, body: str) -> int:
    with closing(Connection(service.port)) as connection:
        connection.request("POST", path, body)
        return connection.getresponse().status


def test_it_counts_what_was_done(one):
    with closing(Connection(one.port)) as connection:
        for _ in range(7):
            connection.add()
    assert post(one, "/v2/models/adder/infer", "{") == 400
    assert value(one, "heed_requests_total", **ADDER, status="200") == 7
    assert value(one, "heed_requests_total", **ADDER, status="400") == 1
    assert value(one, "heed_request_duration_seconds_count", **ADDER) == 7
    spent = {
        stage: value(one, "heed_stage_duration_seconds_sum", **ADDER, stage=stage) for stage in ("decode", "compute")
    }
    assert 0 < spent["decode"] + spent["compute"] < value(one, "heed_request_duration_seconds_sum", **ADDER) < 7
    assert value(one, "heed_batch_size_sum") == 7
    assert value(one, "heed_models_loaded") == 2
    assert value(one, "heed_provider_info", provider="cpu") == 1
    assert 10e6 < value(one, "process_resident_memory_bytes") < 10e9
    assert value(one, "process_cpu_seconds_total") > 0


@pytest.mark.parametrize(
    ("accept", "media_type", "parse"),
    [
        ("", "text/plain", text),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", openmetrics),
    ],
)
def test_both_formats_are_well_formed_and_have_every_metric(one, accept, media_type, parse):
    assert post(one, "/v2/models/adder/infer", ADD) == 200
    content, said = scrape(one, accept)
    assert said.startswith(media_type)
    families = {family.name: family for family in parse(content)}
    assert families.keys() == FAMILIES.keys()
    for name, family in families.items():
        assert family.samples, name
        assert family.type == FAMILIES[name].kind
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(FAMILIES[name].labels)


def test_strangers_make_no_series(one):
    size = len(scrape(one)[0].splitlines())
    for number in range(50):
        assert post(one, f"/v2/models/no_such_{number}/infer", ADD) == 404
        assert post(one, f"/v1/attention/stranger_{number}", "{}") == 404
    content = scrape(one)[0]
    assert "no_such" not in content
    assert "stranger" not in content
    assert len(content.splitlines()) <= size + 2
    assert value(one, "heed_requests_total", model="(none)", api="v2", status="404") == 50


def test_refusals_are_counted_by_reason(models, tmp_path):
    flags = ["--workers", "1", "--max-body-bytes", "500", "--allow-timeout-override"]
    with started(models, tmp_path / "log", *flags) as service:
        assert post(service, "/v2/models/adder/infer", " " * 501) == 400
        late = json.loads(ADD) | {"parameters": {"timeout": 1}}
        assert post(service, "/v2/models/adder/infer", json.dumps(late)) == 504
        assert value(service, "heed_requests_rejected_total", reason="max_body_bytes") == 1
        assert value(service, "heed_requests_rejected_total", reason="deadline") == 1
        assert value(service, "heed_requests_rejected_total") == 2


def test_what_is_going_on_shows(one):
    """Six long requests, of which as many run as there are threads; then none."""
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(Connection(one.port))) for _ in range(6)]
        for connection in connections:
            connection.request("POST", "/v2/models/slow/infer", SLOW)
        until(lambda: value(one, "heed_requests_in_flight") > 3)
        assert until(lambda: value(one, "heed_runs_in_progress") > 0)
        assert until(lambda: value(one, "heed_requests_queued") > 0)
        for connection in connections:
            assert connection.getresponse().status == 200
            connection.close()
    until(lambda: value(one, "heed_requests_in_flight") == 0)
    assert value(one, "heed_requests_queued") == 0
    assert value(one, "heed_requests_total", model="slow") == 6


def test_every_worker_tells_of_all(two):
    with ExitStack() as stack:
        for connection in open_connections(two, 8, stack):
            for _ in range(4):
                connection.add()
        assert two.spread() == [4, 4]
        # by turns of the one worker and the other, each of which is told what the other has counted once a second
        until(lambda: all(value(two, "heed_requests_total", **ADDER) == 40 for _ in range(4)))
    assert value(two, "heed_workers") == value(two, "heed_workers_ready") == 2
    assert value(two, "heed_models_loaded") == 2


def test_a_killed_worker_s_counts_stay_and_none_goes_down(two):
    """All the time two workers are killed and replaced while others work."""
    stop, wrong = threading.Event(), []

    def watch() -> None:
        highest: dict[tuple[str, ...], float] = {}
        while not stop.is_set():
            found = {
                (sample.name, *sorted(sample.labels.items())): sample.value
                for family in text(scrape_if_there(two))
                if FAMILIES[family.name].kind != "gauge"
                for sample in family.samples
            }
            wrong.extend(key for key, before in highest.items() if found and found.get(key, -1) < before)
            highest.update(found)

    def add_some(count: int) -> None:
        with ExitStack() as stack:
            for connection in open_connections(two, count, stack):
                for _ in range(4):
                    connection.add()

    add_some(8)
    until(lambda: value(two, "heed_requests_total", **ADDER) == 40)
    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(2):
        killed = min(two.workers())
        os.kill(killed, signal.SIGKILL)
        until(lambda gone=killed: len(two.workers() - {gone}) == 2)
        until(lambda: value(two, "heed_workers_ready") == 2)
    add_some(8)
    until(lambda: value(two, "heed_requests_total", **ADDER) == 80)
    stop.set()
    watcher.join()
    assert not wrong
    until(lambda: value(two, "heed_requests_total", **ADDER) == 80)
    assert value(two, "heed_workers") == 2


def scrape_if_there(service: ServerProcess) -> str:
    try:
        return scrape(service)[0]
    except (ConnectionError, OSError):
        time.sleep(0.05)  # the worker that was asked has just been killed
        return ""


def test_renewed_workers_go_on_counting(two):
    with ExitStack() as stack:
        for connection in open_connections(two, 8, stack):
            connection.add()
    two.process.send_signal(signal.SIGHUP)
    until(lambda: two.log.read_text().count("Finished server process") == 2)
    until(lambda: value(two, "heed_workers") == 2)
    until(lambda: value(two, "heed_requests_total", **ADDER) == 16)


def test_models_that_cannot_be_loaded_are_counted(tmp_path):
    graphs.adder(tmp_path / "models" / "adder" / "1")
    for name in ("broken", "spoilt"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "1" / "model.onnx").write_bytes(b"no model")
    with started(tmp_path / "models", tmp_path / "log", "--workers", "1", "--ready-when", "any") as service:
        assert value(service, "heed_model_load_failures_total") == 2
        assert value(service, "heed_models_failed") == 2
        assert value(service, "heed_models_loaded") == 1


def test_they_can_be_switched_off():
    for metrics, status in ((True, 200), (False, 404)):
        assert TestClient(create_app(Settings(metrics=metrics))).get("/metrics").status_code == status


def test_sums_have_every_key():
    one = [(("a",), [1, 2]), (("b",), [3]), ((LAST_INFERENCE, "m", "1"), [8])]
    other = [(("b",), [4]), (("c", "d"), [5]), ((LAST_INFERENCE, "m", "1"), [7]), (("b",), [1])]
    assert add(one, other) == {
        ("a",): [1, 2],
        ("b",): [8],
        ("c", "d"): [5],
        (LAST_INFERENCE, "m", "1"): [8],
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_of_their_own(models, tmp_path, free_port, workers):
    """Without keys, and with nothing else; where all else is they are not; it is closed with the service."""
    (tmp_path / "keys").write_text("secret\n")
    flags = ["--workers", str(workers), "--monitoring-port", str(free_port), "--api-keys-file", str(tmp_path / "keys")]
    key = {"X-API-Key": "secret"}
    with started(models, tmp_path / "log", *flags) as service:
        everything, metrics = (f"http://127.0.0.1:{port}" for port in (service.port, free_port))
        for _ in range(8):
            assert httpx.post(f"{everything}/v2/models/adder/infer", content=ADD, headers=key).status_code == 200
        counted = 'heed_requests_total{api="v2",model="adder",status="200"} 8.0'
        until(lambda: all(counted in httpx.get(f"{metrics}/metrics").text for _ in range(4)))
        for path in ("/metrics", "/metrics/"):
            scraped = httpx.get(metrics + path)
            assert scraped.status_code == 200
            assert counted in scraped.text
            assert f"heed_workers {workers}.0" in scraped.text
        head = httpx.head(f"{metrics}/metrics")
        assert (head.status_code, head.content) == (200, b"")
        assert httpx.get(f"{everything}/metrics", headers=key).status_code == 404
        for path in ("/v2", "/v2/models/adder/infer", "/", "/docs"):
            assert httpx.get(metrics + path, headers=key).status_code == 404
            assert httpx.post(metrics + path, content=ADD, headers=key).status_code == 404
        assert f"metrics and health on {metrics}" in service.log.read_text()
        service.process.terminate()
        assert service.ended() == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{metrics}/metrics")


def test_a_port_that_is_taken_is_named(models):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = subprocess.run(command(models, "--monitoring-port", port), capture_output=True, text=True, timeout=120)
    assert (ran.returncode, f"port {port}" in ran.stderr) == (1, True)
