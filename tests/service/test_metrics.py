"""``GET /metrics``: true, over all workers, and of bounded size."""

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text
from starlette.testclient import TestClient

from service.app import create_app
from service.engine import engine
from service.model.model import Model
from service.settings import Settings
from service.telemetry.families import FAMILIES, LAST_INFERENCE, add
from tests.support import graphs
from tests.support.application import running
from tests.support.http_client import ADD, open_connections
from tests.support.server import ServerProcess, fork_server, started
from tests.support.waiting import until

ADDER = {"model": "adder", "api": "v2"}
INFER = "/v2/models/adder/infer"


@pytest.fixture
def one(adder, monkeypatch):
    """A client of an application in this process."""
    monkeypatch.setattr(engine, "INLINE_NS", 0)
    with running(adder, max_concurrent_runs=2) as client:
        yield client


@pytest.fixture
def two(adder, tmp_path) -> Iterator[ServerProcess]:
    """A server of two workers."""
    with started(adder, tmp_path / "log", "--workers", "2") as service:
        yield service


def value(client: httpx.Client, name: str, **labels: str) -> float:
    """The sum of all samples with these labels."""
    families = text(client.get("/metrics").text)
    found = [sample for family in families for sample in family.samples if sample.name == name]
    assert found, f"there is no {name}"
    return sum(sample.value for sample in found if labels.items() <= sample.labels.items())


def test_it_counts_requests(one):
    for _ in range(7):
        assert one.post(INFER, content=ADD).status_code == 200
    assert one.post(INFER, content="{").status_code == 400
    assert value(one, "heed_requests_total", **ADDER, status="200") == 7
    assert value(one, "heed_requests_total", **ADDER, status="400") == 1
    assert value(one, "heed_request_duration_seconds_count", **ADDER) == 7
    stages = [value(one, "heed_stage_duration_seconds_sum", **ADDER, stage=stage) for stage in ("decode", "compute")]
    assert 0 < sum(stages) < value(one, "heed_request_duration_seconds_sum", **ADDER)
    assert value(one, "heed_batch_size_sum") == 7
    assert value(one, "heed_models_loaded") == 1
    assert value(one, "heed_provider_info", provider="cpu") == 1
    assert 10e6 < value(one, "process_resident_memory_bytes") < 100e9
    assert value(one, "process_cpu_seconds_total") > 0


@pytest.mark.parametrize(
    ("accept", "media_type", "parse"),
    [
        ("", "text/plain", text),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", openmetrics),
    ],
)
def test_both_formats_are_well_formed_and_have_every_metric(one, accept, media_type, parse):
    assert one.post(INFER, content=ADD).status_code == 200
    response = one.get("/metrics", headers={"Accept": accept})
    assert response.headers["content-type"].startswith(media_type)
    families = {family.name: family for family in parse(response.text)}
    assert families.keys() == FAMILIES.keys()
    for name, family in families.items():
        assert family.samples or FAMILIES[name].labels == ("model",), name  # of models that generate
        assert family.type == FAMILIES[name].kind
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(FAMILIES[name].labels)


def test_strangers_make_no_series(one):
    size = len(one.get("/metrics").text.splitlines())
    for number in range(50):
        assert one.post(f"/v2/models/no_such_{number}/infer", content=ADD).status_code == 404
        assert one.post(f"/v1/attention/stranger_{number}", content="{}").status_code == 404
    content = one.get("/metrics").text
    assert "no_such" not in content
    assert "stranger" not in content
    assert len(content.splitlines()) <= size + 2
    assert value(one, "heed_requests_total", model="(none)", api="v2", status="404") == 50


def test_refusals_are_counted_by_reason(adder):
    with running(adder, max_body_bytes=500, allow_timeout_override=True) as client:
        assert client.post(INFER, content=" " * 501).status_code == 400
        late = json.loads(ADD) | {"parameters": {"timeout": 1}}
        assert client.post(INFER, json=late).status_code == 504
        assert value(client, "heed_requests_rejected_total", reason="max_body_bytes") == 1
        assert value(client, "heed_requests_rejected_total", reason="deadline") == 1
        assert value(client, "heed_requests_rejected_total") == 2


def test_requests_that_run_and_wait_are_gauges(one, monkeypatch):
    """Of six requests two run at a time, until the gate is opened; then none."""
    gate, run = threading.Event(), Model.run

    def wait_and_run(*arguments):
        assert gate.wait(60)
        return run(*arguments)

    monkeypatch.setattr(Model, "run", wait_and_run)
    with ThreadPoolExecutor() as threads:
        answers = []
        for count in range(1, 7):
            answers.append(threads.submit(one.post, INFER, content=ADD))
            until(lambda count=count: value(one, "heed_requests_in_flight") == count)
            until(lambda count=count: value(one, "heed_runs_in_progress") == min(count, 2))
            until(lambda count=count: value(one, "heed_memory_budget_used_bytes") >= count * len(ADD))
        until(lambda: value(one, "heed_requests_queued") == 4)
        gate.set()
        assert [answer.result().status_code for answer in answers] == [200] * 6
    for name in ("requests_in_flight", "requests_queued", "memory_budget_used_bytes"):
        until(lambda name=name: value(one, f"heed_{name}") == 0)
    assert value(one, "heed_requests_total", **ADDER) == 6


def test_models_that_cannot_be_loaded_are_counted(tmp_path):
    graphs.adder(tmp_path / "adder" / "1")
    for name in ("broken", "spoilt"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.onnx").write_bytes(b"no model")
    with running(tmp_path, ready_when="any") as client:
        assert value(client, "heed_model_load_failures_total") == 2
        assert value(client, "heed_models_failed") == 2
        assert value(client, "heed_models_loaded") == 1


def test_they_are_on_the_monitoring_port_where_there_is_one():
    for port, status in ((0, 200), (9000, 404)):
        assert TestClient(create_app(Settings(monitoring_port=port))).get("/metrics").status_code == status


def test_sums_have_every_key():
    one = [(("a",), [1, 2]), (("b",), [3]), ((LAST_INFERENCE, "m", "1"), [8])]
    other = [(("b",), [4]), (("c", "d"), [5]), ((LAST_INFERENCE, "m", "1"), [7]), (("b",), [1])]
    assert add(one, other) == {
        ("a",): [1, 2],
        ("b",): [8],
        ("c", "d"): [5],
        (LAST_INFERENCE, "m", "1"): [8],
    }


def test_every_worker_has_the_counts_of_all_and_renewed_ones_go_on(two):
    """A worker reads what the others have published, which they do ten times a second."""
    with httpx.Client(base_url=two.url, headers={"Connection": "close"}) as client:
        with ExitStack() as stack:
            for connection in open_connections(two, 8, stack):
                for _ in range(4):
                    connection.add()
            assert two.spread() == [4, 4]
        until(lambda: all(value(client, "heed_requests_total", **ADDER) == 40 for _ in range(4)))
        assert value(client, "heed_workers") == value(client, "heed_workers_ready") == 2
        assert value(client, "heed_models_loaded") == 1
        two.process.send_signal(signal.SIGHUP)
        until(lambda: two.log.read_text().count("Finished server process") == 2)
        until(lambda: value(client, "heed_workers") == 2)
        assert value(client, "heed_requests_total", **ADDER) == 40


def add_some(service: ServerProcess) -> None:
    """40 requests, over eight connections."""
    with ExitStack() as stack:
        for connection in open_connections(service, 8, stack):
            for _ in range(4):
                connection.add()


@pytest.mark.extended
def test_no_count_goes_down_when_workers_are_killed(two):
    """Neither those of the metrics nor, as both are of the same records, those of the statistics."""
    stop, decreased = threading.Event(), []

    def watch() -> None:
        highest: dict[tuple[str, ...], float] = {}
        while not stop.is_set():
            with suppress(httpx.TransportError):  # the worker that was asked has just been killed
                now = {
                    (sample.name, *sorted(sample.labels.items())): sample.value
                    for family in text(client.get("/metrics").text)
                    if FAMILIES[family.name].kind != "gauge"
                    for sample in family.samples
                }
                decreased.extend(key for key, before in highest.items() if now.get(key, -1) < before)
                highest.update(now)

    with httpx.Client(base_url=two.url, headers={"Connection": "close"}) as client, ThreadPoolExecutor() as threads:
        add_some(two)
        until(lambda: value(client, "heed_requests_total", **ADDER) == 40)
        watching = threads.submit(watch)
        try:
            for _ in range(2):
                killed = min(two.workers())
                os.kill(killed, signal.SIGKILL)
                until(lambda gone=killed: len(two.workers() - {gone}) == 2)
                until(lambda: all(two.is_ready() for _ in range(4)))
            add_some(two)
        finally:
            stop.set()
        watching.result()
        until(lambda: value(client, "heed_requests_total", **ADDER) == 80)
        assert not decreased
        until(lambda: value(client, "heed_workers") == 2)  # the last one started may still be loading


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_a_port_of_their_own(adder, tmp_path, free_port, workers):
    """Without keys, and with nothing else; the service's own port has no metrics; it is closed with the service."""
    (tmp_path / "keys").write_text("secret\n")
    flags = ["--workers", str(workers), "--monitoring-port", str(free_port), "--api-keys-file", str(tmp_path / "keys")]
    key = {"X-API-Key": "secret"}
    metrics = f"http://127.0.0.1:{free_port}"
    with started(adder, tmp_path / "log", *flags) as service:
        for _ in range(8):
            assert httpx.post(service.url + INFER, content=ADD, headers=key).status_code == 200
        counted = 'heed_requests_total{api="v2",model="adder",status="200"} 8.0'
        until(lambda: all(counted in httpx.get(f"{metrics}/metrics").text for _ in range(4)))
        for path in ("/metrics", "/metrics/"):
            scraped = httpx.get(metrics + path)
            assert (scraped.status_code, counted in scraped.text) == (200, True)
            assert f"heed_workers {workers}.0" in scraped.text
        until(lambda: httpx.get(f"{metrics}/v2/health/ready").status_code == 200)  # it hears of it at the next tick
        head = httpx.head(f"{metrics}/metrics")
        assert (head.status_code, head.content) == (200, b"")
        assert httpx.get(f"{service.url}/metrics", headers=key).status_code == 404
        for path in ("/v2", INFER, "/", "/docs"):
            assert httpx.get(metrics + path, headers=key).status_code == 404
            assert httpx.post(metrics + path, content=ADD, headers=key).status_code == 404
        assert f"metrics and health on {metrics}" in service.log.read_text()
        service.process.terminate()
        assert service.ended() == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{metrics}/metrics")


def test_a_port_that_is_taken_is_named(adder, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["--port", "0", "--model-repository", str(adder), "--monitoring-port", port]
        assert fork_server().start(arguments, tmp_path / "log", os.environ).wait(60) == 1
    assert f"port {port}: Address already in use" in (tmp_path / "log").read_text()
