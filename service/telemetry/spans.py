"""The spans of requests, by OpenTelemetry's SDK. This module is imported only if traces are wanted.

To start a span takes the SDK longer than to sample its request, even if it is not sampled. So a request is sampled
first, and only a sampled one gets spans.
"""

import os
import time

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBasedTraceIdRatio
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from service.telemetry.access_log import model_of

SAMPLED_RATIO = 0.01  # of requests without a parent, unless OTEL_TRACES_SAMPLER is set
NO_PARENT = Context()


class GivenTraceId(RandomIdGenerator):
    """Names a new trace by the id that its request was sampled by."""

    trace_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id


class Tracer:
    """Samples requests and sends their spans. The service is called heed unless ``OTEL_*`` variables name it."""

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        is_named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        self._ids = GivenTraceId()
        self._provider = TracerProvider(
            sampler=None if os.environ.get("OTEL_TRACES_SAMPLER") else ParentBasedTraceIdRatio(SAMPLED_RATIO),
            resource=Resource.create(None if is_named else {SERVICE_NAME: "heed"}),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("heed")
        self._new_trace_id = RandomIdGenerator().generate_trace_id

    def record(self, scope: Scope, status: int) -> None:
        """Sample a request that was answered with ``status``, and queue its spans.

        Its state has a TracedTiming, and gets the ``trace_id``, for the access log.
        """
        end_ns = time.time_ns()
        offset_ns = end_ns - time.perf_counter_ns()
        state, method, context = scope["state"], scope["method"], NO_PARENT
        trace_id = 0
        headers = state["headers"]
        given = {name: headers[key].decode("latin-1") for key, name in PROPAGATED.items() if key in headers}
        if given:
            context = PROPAGATOR.extract(given, context)
            trace_id = trace.get_current_span(context).get_span_context().trace_id
        state["trace_id"] = self._ids.trace_id = trace_id or self._new_trace_id()
        sampling = self._provider.sampler.should_sample(context, state["trace_id"], method, SpanKind.SERVER)
        if sampling.decision is not Decision.RECORD_AND_SAMPLE:
            return
        start_ns = offset_ns + state["timing"].started_ns
        span = self._tracer.start_span(method, context, SpanKind.SERVER, start_time=start_ns)
        _describe(span, scope, status)
        parent = trace.set_span_in_context(span, NO_PARENT)
        for name, stage_start_ns, stage_end_ns in state["timing"].stages:
            stage = self._tracer.start_span(name, parent, start_time=offset_ns + stage_start_ns)
            stage.end(offset_ns + stage_end_ns)
        span.end(end_ns)

    def close(self) -> None:
        """Send the last spans."""
        self._provider.shutdown()


# Baggage is not read: no span has it, and its parser takes 80 milliseconds for 8 KB of blanks.
PROPAGATOR = TraceContextTextMapPropagator()
PROPAGATED = {name.encode("latin-1"): name for name in PROPAGATOR.fields}


def _describe(span: trace.Span, scope: Scope, status: int) -> None:
    """Give the span of a request its name, its attributes and its status."""
    route = _route(scope)
    if route:
        span.update_name(f"{scope['method']} {route}")
    attributes = {
        "http.request.method": scope["method"],
        "url.path": scope["path"],
        "http.route": route,
        "heed.model": model_of(scope),
        "http.response.status_code": status,
        "heed.request_id": scope["state"]["request_id"].decode(),
    }
    span.set_attributes({name: value for name, value in attributes.items() if value is not None})
    if status >= 500:
        span.set_status(StatusCode.ERROR)


def _route(scope: Scope) -> str | None:
    """The template of the path, with parameters in braces; None if no route takes it."""
    path, parameters = scope["path"], scope.get("path_params")
    for name, value in (parameters or {}).items():
        path = path.replace(f"/{value}", f"/{{{name}}}", 1)
    return path if parameters or "endpoint" in scope else None
