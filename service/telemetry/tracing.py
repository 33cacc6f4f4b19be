"""OpenTelemetry traces: a span for each request, child of the client's span, with a child span for each stage.

The standard variables ``OTEL_*`` configure the exporter and the sampler; without them the SDK is not loaded.
``opentelemetry-instrumentation-asgi`` would not make this smaller: the spans of the stages, the quiet paths and the
attributes stay, and its own attributes and its spans for each ASGI message would have to be taken out.
"""

import importlib.util
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from starlette.types import ASGIApp, Receive, Scope, Send

from service.telemetry.access_log import StatusRecorder, is_quiet, model_of
from service.timing import Timing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

EXPORTER = "opentelemetry.exporter.otlp.proto.http"
ENDPOINTS = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOLS = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
SHUTDOWN_TIMEOUT_S = 3.0  # to send the last spans


class CannotTrace(RuntimeError):
    """The environment asks for traces in a way that Heed does not support; the message says which."""


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for traces.

    Raises:
        CannotTrace: it asks for an exporter or a protocol that is not supported or not installed.
    """
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter == "none"
    if off or not (exporter or any(environment.get(name) for name in ENDPOINTS)):
        return False
    if exporter not in ("", "otlp"):
        raise CannotTrace(f"OTEL_TRACES_EXPORTER: expected otlp or none, got {exporter!r}")
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        raise CannotTrace(f"OTEL_EXPORTER_OTLP_PROTOCOL: expected http/protobuf, got {protocol!r}")
    try:
        is_installed = importlib.util.find_spec(EXPORTER) is not None
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        raise CannotTrace("the OTEL_* variables ask for traces, which need heed-attention[otel]")
    return True


def create_provider(name: str) -> "TracerProvider":
    """A provider that exports to the environment's collector. ``name`` is the service's unless OTEL_* names it."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    is_named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create(None if is_named else {SERVICE_NAME: name})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def close(provider: "TracerProvider") -> None:
    """Send the last spans, for at most ``SHUTDOWN_TIMEOUT_S`` if the collector does not answer."""
    sending = threading.Thread(target=provider.shutdown, daemon=True)
    sending.start()
    sending.join(SHUTDOWN_TIMEOUT_S)


class TracedTiming(Timing):
    """A timing that also keeps the start and end of each stage, in nanoseconds of ``time.perf_counter_ns``."""

    __slots__ = ("stages",)

    def __init__(self) -> None:
        super().__init__()
        self.stages: list[tuple[str, int, int]] = []

    def lap(self, stage: str) -> None:
        start = self._lap
        super().lap(stage)
        self.stages.append((stage, start, self._lap))

    def record_run(self, queue_ns: int, compute_ns: int) -> None:
        start = self._lap
        super().record_run(queue_ns, compute_ns)
        self.stages += [("queue", start, start + queue_ns), ("compute", self._lap - compute_ns, self._lap)]


class Tracing:
    """ASGI middleware around the envelope. The ``timing`` that the envelope puts into the state is a TracedTiming."""

    def __init__(self, app: ASGIApp, provider: "TracerProvider") -> None:
        self._app = app
        self._tracer = provider.get_tracer("heed")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_quiet(scope):
            await self._app(scope, receive, send)
            return
        start, start_time = time.perf_counter_ns(), time.time_ns()
        span = self._start(scope, start_time)
        status = StatusRecorder(send)
        try:
            await self._app(scope, receive, status)
        finally:
            self._end(span, scope, status.status, start_time - start)

    def observe(self, scope: Scope, status: int) -> None:
        """Trace a request that was answered on the fast path."""
        offset_ns = time.time_ns() - time.perf_counter_ns()
        span = self._start(scope, offset_ns + scope["state"]["timing"].started_ns)
        self._end(span, scope, status, offset_ns)

    def _start(self, scope: Scope, start_time: int) -> trace.Span:
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        context = propagate.extract(carrier)
        span = self._tracer.start_span(scope["method"], context, SpanKind.SERVER, start_time=start_time)
        scope.setdefault("state", {})["trace_id"] = trace.format_trace_id(span.get_span_context().trace_id)
        return span

    def _end(self, span: trace.Span, scope: Scope, status: int, offset_ns: int) -> None:
        if span.is_recording():
            self._describe(span, scope, status, offset_ns)
        span.end()

    def _describe(self, span: trace.Span, scope: Scope, status: int, offset_ns: int) -> None:
        """Name the span and add its attributes and stages. ``offset_ns`` is time.time_ns less time.perf_counter_ns."""
        state, route = scope["state"], _route(scope)
        span.update_name(f"{scope['method']} {route}" if route else scope["method"])
        attributes = {
            "http.request.method": scope["method"],
            "url.path": scope["path"],
            "http.route": route,
            "http.response.status_code": status,
            "heed.model": model_of(scope),
            "heed.request_id": state["request_id"].decode(),
        }
        span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        parent = trace.set_span_in_context(span)
        for stage, start, end in state["timing"].stages:
            self._tracer.start_span(stage, parent, start_time=offset_ns + start).end(offset_ns + end)


def _route(scope: Scope) -> str | None:
    """The template of the path, with parameters in braces; None if no route takes it."""
    path: str = scope["path"]
    parameters = scope.get("path_params")
    for name, value in (parameters or {}).items():
        path = path.replace(f"/{value}", f"/{{{name}}}", 1)
    return path if parameters or scope.get("endpoint") else None
