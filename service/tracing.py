"""Traces by OpenTelemetry: a span for each request, continuing the client's, and in it one for each stage.

The standard variables ``OTEL_*`` say whether, whereto and how many; without them the SDK is not even loaded.
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

from service.access_log import Watched, is_quiet, model_of
from service.timing import Timing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

EXPORTER = "opentelemetry.exporter.otlp.proto.http"
ENDPOINTS = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOLS = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
LAST_SECONDS = 3.0


class CannotTrace(RuntimeError):
    """The environment asks for traces in a way that cannot be had; the message says why."""


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """The environment asks for traces.

    Raises:
        CannotTrace: but not for such as are offered here.
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
        found = importlib.util.find_spec(EXPORTER)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise CannotTrace("the OTEL_* variables ask for traces, which need heed-attention[otel]")
    return True


def provider(name: str) -> "TracerProvider":
    """Exports to the collector that the environment names, for a service called ``name`` if that names none."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    is_named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create(None if is_named else {SERVICE_NAME: name})
    made = TracerProvider(resource=resource, shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return made


def close(provider: "TracerProvider") -> None:
    """Send what there is; for a collector that does not answer, only so long is waited."""
    sending = threading.Thread(target=provider.shutdown, daemon=True)
    sending.start()
    sending.join(LAST_SECONDS)


class Laps(Timing):
    """A timing that keeps when each stage began and ended, in nanoseconds of ``time.perf_counter_ns``."""

    __slots__ = ("stages",)

    def __init__(self) -> None:
        super().__init__()
        self.stages: list[tuple[str, int, int]] = []

    def lap(self, stage: str) -> None:
        start = self._lap
        super().lap(stage)
        self.stages.append((stage, start, self._lap))

    def lap_as(self, waited: int, computed: int) -> None:
        start = self._lap
        super().lap_as(waited, computed)
        self.stages += [("queue", start, start + waited), ("compute", self._lap - computed, self._lap)]


class Tracing:
    """ASGI middleware around the envelope, whose ``scope["state"]`` it reads: the ``timing`` there has to be Laps."""

    def __init__(self, app: ASGIApp, provider: "TracerProvider") -> None:
        self._app = app
        self._tracer = provider.get_tracer("heed")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_quiet(scope):
            await self._app(scope, receive, send)
            return
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        began, epoch = time.perf_counter_ns(), time.time_ns()
        span = self._tracer.start_span(scope["method"], propagate.extract(carrier), SpanKind.SERVER, start_time=epoch)
        state = scope.setdefault("state", {})
        state["trace_id"] = trace.format_trace_id(span.get_span_context().trace_id)
        watched = Watched(send)
        try:
            await self._app(scope, receive, watched)
        finally:
            if span.is_recording():
                self._describe(span, scope, watched.status, epoch - began)
            span.end()

    def _describe(self, span: trace.Span, scope: Scope, status: int, epoch: int) -> None:
        """``epoch`` is the time.time_ns at which time.perf_counter_ns was 0."""
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
        inside = trace.set_span_in_context(span)
        for stage, start, end in state["timing"].stages:
            self._tracer.start_span(stage, inside, start_time=epoch + start).end(epoch + end)


def _route(scope: Scope) -> str | None:
    """The path, with the names of its parameters for what they are; None for one that no route is known to take."""
    path: str = scope["path"]
    parameters = scope.get("path_params")
    for name, value in (parameters or {}).items():
        path = path.replace(f"/{value}", f"/{{{name}}}", 1)
    return path if parameters or scope.get("endpoint") else None
