"""Traces of a real server, as an OpenTelemetry collector receives them."""

import http.server
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status

from service.telemetry import tracing
from tests.support.http_client import ADD, Connection
from tests.support.server import ServerProcess, command, started
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(http.server.ThreadingHTTPServer):
    """Keeps the spans that are sent to it, and the names of the services that sent them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Span] = []
        self.services: set[str] = set()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        content = self.rfile.read(int(self.headers["Content-Length"]))
        for resource in ExportTraceServiceRequest.FromString(content).resource_spans:
            attributes = {of.key: of.value.string_value for of in resource.resource.attributes}
            self.server.services.add(attributes["service.name"])
            for scope in resource.scope_spans:
                self.server.spans.extend(scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch) -> Iterator[Collector]:
    """One that the servers a test starts send to."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.05,))
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield collector
        collector.shutdown()
        thread.join()


def ask(service: ServerProcess, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
    """The status and the Server-Timing of an answer."""
    with closing(Connection(service.port)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers["Server-Timing"]


def attributes(span: Span) -> dict[str, object]:
    return {of.key: getattr(of.value, of.value.WhichOneof("value")) for of in span.attributes}


def test_a_client_s_trace_goes_on_with_a_span_for_each_stage(models, tmp_path, collector):
    with started(models, tmp_path / "log", "--workers", "1") as service:
        before = time.time_ns()
        traceparent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-ID": "mine"}
        status, told = ask(service, "POST", "/v2/models/adder/infer", ADD, **traceparent)
        after = time.time_ns()
        assert status == 200
        (request,) = until(lambda: collector.named("POST /v2/models/{model}/infer"))
        stages = [span for span in collector.spans if span.parent_span_id == request.span_id]
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    assert request.kind == Span.SPAN_KIND_SERVER
    assert attributes(request) == {
        "http.request.method": "POST",
        "url.path": "/v2/models/adder/infer",
        "http.route": "/v2/models/{model}/infer",
        "http.response.status_code": 200,
        "heed.model": "adder",
        "heed.request_id": "mine",
    }
    assert before <= request.start_time_unix_nano <= after  # it ends a moment after the client has its answer
    assert [span.name for span in stages] == ["decode", "queue", "compute", "encode"]
    moments = [moment for span in stages for moment in (span.start_time_unix_nano, span.end_time_unix_nano)]
    assert sorted(moments) == moments
    assert request.start_time_unix_nano <= moments[0] <= moments[-1] <= request.end_time_unix_nano
    said = {name: float(duration) for name, duration in re.findall(r"(\w+);dur=([\d.]+)", told)}
    for span in stages:
        assert span.trace_id.hex() == TRACE
        milliseconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        assert milliseconds == pytest.approx(said[span.name], abs=0.001)
    assert collector.services == {"heed"}


def test_what_is_traced_and_what_is_not(models, tmp_path, collector):
    """Of errors the span says so; probes, scrapes, and what the client does not sample leave none."""
    with started(models, tmp_path / "log", "--workers", "2", "--access-log", "all") as service:
        assert ask(service, "GET", "/v2/health/ready")[0] == 200
        assert ask(service, "GET", "/metrics")[0] == 200
        unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        assert ask(service, "POST", "/v2/models/adder/infer", ADD, **unsampled)[0] == 200
        assert ask(service, "POST", "/v1/attention/stranger", "{}")[0] == 404
        assert ask(service, "GET", "/v2/models/adder")[0] == 200
        assert ask(service, "GET", "/stranger")[0] == 404
        until(lambda: len(collector.spans) == 3)
        time.sleep(0.2)
        by_name = {span.name: span for span in collector.spans}
        assert by_name.keys() == {"POST /v1/attention/{block}", "GET /v2/models/{model}", "GET"}
        assert all(span.status.code == Status.STATUS_CODE_UNSET for span in by_name.values())
        assert len({span.trace_id for span in collector.spans}) == 3
        ids = {span.trace_id.hex() for span in by_name.values()} | {TRACE}
        assert set(re.findall(r"trace_id=(\w+)", service.log.read_text())) == ids


def test_the_sdk_s_limit_of_texts_and_the_trace_state_hold(models, tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4")
    with started(models, tmp_path / "log", "--workers", "1") as service:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1,other=2"}
        assert ask(service, "POST", "/v2/models/adder/infer", ADD, **headers)[0] == 200
        (request,) = until(lambda: collector.named("POST /v2/models/{model}/infer"))
    assert attributes(request)["url.path"] == "/v2/"
    assert len(collector.spans) == 5
    assert {span.trace_state for span in collector.spans} == {"vendor=1,other=2"}
    assert len({span.span_id for span in collector.spans}) == 5
    remote = [span.flags for span in collector.spans if span.flags & SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK]
    assert remote == [request.flags]


def test_a_full_queue_drops_requests(models, tmp_path, monkeypatch):
    """The collector accepts connections and never answers; what is queued while a batch is being sent is bounded."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
        with started(models, tmp_path / "log", "--workers", "1") as service:
            for _ in range(8):
                assert ask(service, "POST", "/v2/models/adder/infer", ADD)[0] == 200
            until(lambda: "requests were not traced" in service.log.read_text())


def test_spans_are_sent_before_the_end(models, tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    with started(models, tmp_path / "log", "--workers", "2") as service:
        for _ in range(4):
            assert ask(service, "POST", "/v2/models/adder/infer", ADD)[0] == 200
        assert not collector.spans
        service.process.terminate()
        assert service.ended() == 0
    assert len(collector.named("POST /v2/models/{model}/infer")) == 4
    assert collector.services == {"ours"}


def test_a_collector_that_is_not_there_harms_nobody(models, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with started(models, tmp_path / "log", "--workers", "1") as service:
        for _ in range(4):
            assert ask(service, "POST", "/v2/models/adder/infer", ADD)[0] == 200
            time.sleep(0.1)
        service.process.terminate()
        assert service.ended() == 0


def test_without_the_variables_the_sdk_is_not_loaded():
    script = """
import sys
from service.app import create_app
from service.settings import Settings
create_app(Settings())
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
    ],
)
def test_the_standard_variables_decide(environment, wanted):
    assert tracing.is_wanted(environment) is wanted


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER: expected otlp or none, got 'zipkin'"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL: expected http/protobuf, got 'grpc'"),
    ],
)
def test_what_is_not_offered_fails_at_start(models, monkeypatch, name, value, said):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    done = subprocess.run(command(models), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == f"heed serve: {said}\n"
