"""Traces, as an OpenTelemetry collector receives them."""

import http.server
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from service.cli.serve import main
from service.telemetry import spans, tracing
from tests.support.application import running
from tests.support.http_client import ADD
from tests.support.server import started
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
INFER, SPAN = "/v2/models/adder/infer", "POST /v2/models/{model}/infer"
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
    """The collector of all applications and servers that a test starts."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.05,))
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_on")
        yield collector
        collector.shutdown()
        thread.join()


def add(client: httpx.Client, times: int = 1, **headers: str) -> httpx.Response:
    """The last of so many good answers."""
    for _ in range(times):
        response = client.post(INFER, content=ADD, headers=headers)
        assert response.status_code == 200
    return response


def attributes(span: Span) -> dict[str, object]:
    return {of.key: getattr(of.value, of.value.WhichOneof("value")) for of in span.attributes}


def test_a_client_s_trace_goes_on_with_a_span_for_each_stage(adder, collector):
    with running(adder) as client:
        before = time.time_ns()
        response = add(client, **{"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-ID": "mine"})
        after = time.time_ns()
        (request,) = until(lambda: collector.named(SPAN))
        stages = until(lambda: [span for span in collector.spans if span.parent_span_id == request.span_id])
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    assert request.kind == Span.SPAN_KIND_SERVER
    assert attributes(request) == {
        "http.request.method": "POST",
        "url.path": INFER,
        "http.route": "/v2/models/{model}/infer",
        "http.response.status_code": 200,
        "heed.model": "adder",
        "heed.request_id": "mine",
    }
    assert before <= request.start_time_unix_nano <= after
    assert [span.name for span in stages] == ["decode", "queue", "compute", "encode"]
    moments = [moment for span in stages for moment in (span.start_time_unix_nano, span.end_time_unix_nano)]
    assert sorted(moments) == moments
    assert request.start_time_unix_nano <= moments[0] <= moments[-1] <= request.end_time_unix_nano
    timing = re.findall(r"(\w+);dur=([\d.]+)", response.headers["Server-Timing"])
    told = {name: float(duration) for name, duration in timing}
    for span in stages:
        assert span.trace_id.hex() == TRACE
        milliseconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        assert milliseconds == pytest.approx(told[span.name], abs=0.001)
    assert collector.services == {"heed"}


def test_what_is_traced_and_what_is_not(adder, collector, caplog):
    """Probes, scrapes, and requests that the client does not sample leave no span; the access log names all traces."""
    caplog.set_level(logging.INFO, "heed")
    with running(adder, access_log="all") as client:
        assert client.get("/v2/health/ready").status_code == 200
        assert client.get("/metrics").status_code == 200
        add(client, traceparent=f"00-{TRACE}-{PARENT}-00")
        assert client.post("/v1/attention/stranger", content="{}").status_code == 404
        assert client.get("/v2/models/adder").status_code == 200
        assert client.get("/stranger").status_code == 404
    by_name = {span.name: span for span in collector.spans}
    assert by_name.keys() == {"POST /v1/attention/{block}", "GET /v2/models/{model}", "GET"}
    assert all(span.status.code == Status.STATUS_CODE_UNSET for span in by_name.values())
    ids = {span.trace_id.hex() for span in collector.spans}
    assert len(ids) == len(collector.spans) == 3
    assert {record.trace_id for record in caplog.records if record.message == "request"} == ids | {TRACE}


def test_the_sdk_s_limit_of_texts_and_the_trace_state_hold(adder, collector, monkeypatch):
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4")
    with running(adder) as client:
        add(client, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="vendor=1,other=2")
    (request,) = collector.named(SPAN)
    assert attributes(request)["url.path"] == "/v2/"
    assert len(collector.spans) == len({span.span_id for span in collector.spans}) == 5
    assert {span.trace_state for span in collector.spans} == {"vendor=1,other=2"}
    remote = [span.flags for span in collector.spans if span.flags & SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK]
    assert remote == [request.flags]


def test_baggage_is_not_parsed(adder, collector, monkeypatch):
    """Its parser takes 80 milliseconds for 8 KB of blanks."""
    monkeypatch.setattr("opentelemetry.baggage.propagation.W3CBaggagePropagator.extract", None)
    with running(adder) as client:
        add(client, baggage=f"a=b{' ' * 8000}c=d", traceparent=f"00-{TRACE}-{PARENT}-01")
        until(lambda: collector.named(SPAN))
    (span,) = collector.named(SPAN)
    assert span.trace_id.hex() == TRACE


def test_spans_are_sent_before_the_end(adder, tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    with started(adder, tmp_path / "log", "--workers", "2") as service:
        with httpx.Client(base_url=service.url, headers={"Connection": "close"}) as client:
            add(client, times=4)
        assert not collector.spans
        service.process.terminate()
        assert service.ended() == 0
    assert len(collector.named(SPAN)) == 4
    assert collector.services == {"ours"}


class Exporter:
    """In place of the SDK's: holds up its caller until ``gate`` is set, then fails."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def export(self, _spans: object) -> None:
        assert self.gate.wait(60)
        raise ConnectionError

    def shutdown(self) -> None:
        pass


def test_a_collector_that_is_slow_or_fails_harms_nobody(adder, collector, monkeypatch, caplog):
    """What is queued while a batch is being sent is bounded."""
    exporter = Exporter()
    monkeypatch.setattr(spans, "OTLPSpanExporter", lambda: exporter)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")
    with running(adder) as client:
        add(client, times=8)
        assert "Queue full, dropping Span" in caplog.text
        exporter.gate.set()
        until(lambda: "Exception while exporting Span" in caplog.text)
        add(client)


def test_the_client_s_choice_counts_and_else_one_request_in_a_hundred(adder, collector, monkeypatch):
    monkeypatch.delenv("OTEL_TRACES_SAMPLER")
    ids = iter([(1 << 64) // 200, (1 << 64) // 50])
    monkeypatch.setattr(RandomIdGenerator, "generate_trace_id", lambda _self: next(ids))
    with running(adder) as client:
        add(client, times=2)
        add(client, traceparent=f"00-{TRACE}-{PARENT}-01")
        add(client, traceparent=f"00-{TRACE}-{PARENT}-00")
    traces = [span.trace_id for span in collector.named(SPAN)]
    assert traces == [((1 << 64) // 200).to_bytes(16, "big"), bytes.fromhex(TRACE)]


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
    ("name", "value", "message"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER: expected otlp or none, got 'zipkin'"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL: expected http/protobuf, got 'grpc'"),
    ],
)
def test_what_is_not_offered_fails_at_start(adder, monkeypatch, capsys, name, value, message):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    assert main(["--port", "0", "--model-repository", str(adder)]) == 2
    assert capsys.readouterr().err == f"heed serve: {message}\n"
