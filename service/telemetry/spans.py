"""The spans of requests: sampled and sent by OpenTelemetry's SDK, but queued and encoded here.

The SDK takes some 20 microseconds to make a span and to encode it, and a request has five. So the event loop only
queues what is known of a request, and a thread samples and encodes the spans of many: what requests have in common
by protobuf, once, and what differs by ``struct``. This module is imported only if traces are wanted.
"""

import logging
import os
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from threading import Event, Thread
from typing import Any, NamedTuple

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_SCHEDULE_DELAY,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceState
from starlette.types import Scope

from service.telemetry.access_log import model_of

log = logging.getLogger("heed")

LOCAL = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
REMOTE = LOCAL | int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)

# Fields of OTLP's Span: tags, with the length of those that have one. VARIABLE has those that differ from span to span.
TRACE_ID, SPAN_ID, PARENT_ID, START, END = b"\x0a\x10", b"\x12\x08", b"\x22\x08", b"\x39", b"\x41"
VARIABLE = Struct("<2s8scQcQ")
# The numbers of the fields that hold messages, in ExportTraceServiceRequest, ResourceSpans and ScopeSpans.
RESOURCE_SPANS, SCOPE_SPANS, SPANS = 1, 2, 2


class Origin(NamedTuple):
    """The trace that a request belongs to, and its parent there, if any."""

    trace_id: int
    parent: SpanContext | None
    state: TraceState | None
    is_sampled: bool


class Request(NamedTuple):
    """A request that has ended. Times are in nanoseconds; those of stages are less than the others by ``offset_ns``."""

    scope: Scope  # with the state that the envelope sets
    origin: Origin | None  # None: not known yet
    status: int
    start_ns: int
    end_ns: int
    offset_ns: int

    @property
    def route(self) -> str | None:
        """The template of the path, with parameters in braces; None if no route takes it."""
        path, parameters = self.scope["path"], self.scope.get("path_params")
        for name, value in (parameters or {}).items():
            path = path.replace(f"/{value}", f"/{{{name}}}", 1)
        return path if parameters or "endpoint" in self.scope else None


class Tracer:
    """Queues requests; its thread sends their spans. ``name`` is the service's unless ``OTEL_*`` variables name it.

    The variables of the sampler, the propagators, the length of texts and the exporter are read by the SDK. Those of
    its batch processor have their meaning, but count requests, not spans.
    """

    def __init__(self, name: str) -> None:
        is_named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create(None if is_named else {SERVICE_NAME: name})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._sampler, self._ids = provider.sampler, provider.id_generator
        self._max_length = SpanLimits().max_span_attribute_length
        self._resource, self._scope = _encoded_origin(resource)
        self._exporter = OTLPSpanExporter()
        self._delay_s = _number(OTEL_BSP_SCHEDULE_DELAY, 5000) / 1e3
        self._max_queued = _number(OTEL_BSP_MAX_QUEUE_SIZE, 2048)
        self._max_batch = min(_number(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, 512), self._max_queued)
        self._queue: deque[tuple[Any, ...]] = deque()
        self._dropped = 0
        self._wakeup, self._is_closing = Event(), False
        self._thread = Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def origin(self, method: str, headers: Mapping[bytes, bytes]) -> Origin:
        """The trace of a request with these headers, which may name its parent; and whether it is sampled."""
        parent, context = None, Context()
        if not PROPAGATED.isdisjoint(headers):
            context = propagate.extract(headers, context, GETTER)
            parent = trace.get_current_span(context).get_span_context()
        if parent is None or not parent.is_valid:
            parent, trace_id = None, self._ids.generate_trace_id()
        else:
            trace_id = parent.trace_id
        sampling = self._sampler.should_sample(context, trace_id, method, SpanKind.SERVER)
        return Origin(trace_id, parent, sampling.trace_state, sampling.decision is Decision.RECORD_AND_SAMPLE)

    def add(self, request: tuple[Any, ...]) -> None:
        """Queue the fields of a Request; drop them if the queue is full."""
        length = len(self._queue)
        if length >= self._max_queued:
            self._dropped += 1
            return
        self._queue.append(request)
        if length + 1 == self._max_batch:
            self._wakeup.set()

    def close(self) -> None:
        """Send the last spans."""
        self._is_closing = True
        self._wakeup.set()
        self._thread.join()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _run(self) -> None:
        while not self._is_closing:
            is_batch = self._wakeup.wait(self._delay_s)
            self._wakeup.clear()
            while len(self._queue) >= self._max_batch or (self._queue and not is_batch):
                self._send()
        while self._queue:
            self._send()

    def _send(self) -> None:
        """Send the spans of a batch of requests."""
        if self._dropped:
            log.warning("%d requests were not traced: the collector is too slow", self._dropped)
            self._dropped = 0
        try:
            messages: list[bytes] = []
            for _ in range(min(self._max_batch, len(self._queue))):
                self._encode(Request(*self._queue.popleft()), messages)
            if messages:
                content = _field(SCOPE_SPANS, self._scope + b"".join(messages))
                # Private to the SDK, whose exporter would encode its own spans only.
                self._exporter._client.export(_field(RESOURCE_SPANS, self._resource + content))
        except Exception:
            log.exception("traces cannot be sent")

    def _encode(self, request: Request, messages: list[bytes]) -> None:
        scope, offset_ns = request.scope, request.offset_ns
        state = scope["state"]
        origin = request.origin or self.origin(scope["method"], state["headers"])
        if not origin.is_sampled:
            return
        parent, new_id = origin.parent, self._ids.generate_span_id
        span_id, shared = new_id().to_bytes(8, "big"), TRACE_ID + origin.trace_id.to_bytes(16, "big")
        if origin.state:
            shared += _trace_state(origin.state.to_header())
        request_id = state["request_id"][: self._max_length]
        common = scope["method"], scope["path"], request.route, request.status, model_of(scope)
        own = [
            shared,
            VARIABLE.pack(SPAN_ID, span_id, START, request.start_ns, END, request.end_ns),
            _request(*common, parent is not None, self._max_length),
            _before_id(len(request_id)),
            request_id,
        ]
        if parent is not None:
            own += [PARENT_ID, parent.span_id.to_bytes(8, "big")]
        messages.append(_field(SPANS, b"".join(own)))
        shared += PARENT_ID + span_id
        for name, start_ns, end_ns in state["timing"].stages:
            stage = _stage(name)
            times = START, offset_ns + start_ns, END, offset_ns + end_ns
            variable = VARIABLE.pack(SPAN_ID, new_id().to_bytes(8, "big"), *times)
            messages += _prefix(SPANS, len(shared) + len(stage) + VARIABLE.size), shared, variable, stage


def _encoded_origin(resource: Resource) -> tuple[bytes, bytes]:
    """The fields of ResourceSpans and of ScopeSpans but for the spans, as the SDK encodes them."""
    scope = InstrumentationScope("heed")
    span = ReadableSpan("", trace.INVALID_SPAN_CONTEXT, resource=resource, instrumentation_scope=scope)
    message = encode_spans([span]).resource_spans[0]
    encoded_scope = message.scope_spans[0]
    encoded_scope.ClearField("spans")
    scope_bytes = bytes(encoded_scope.SerializeToString())
    message.ClearField("scope_spans")
    return bytes(message.SerializeToString()), scope_bytes


def _number(variable: str, default: int) -> int:
    """The value of a variable; ``default`` if it is not a positive number."""
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() and int(value) > 0 else default


class HeadersGetter(Getter[Mapping[bytes, bytes]]):
    """Gives a propagator the headers of a request."""

    def get(self, carrier: Mapping[bytes, bytes], key: str) -> list[str] | None:
        value = carrier.get(key.lower().encode("latin-1"))
        return None if value is None else [value.decode("latin-1")]

    def keys(self, carrier: Mapping[bytes, bytes]) -> list[str]:
        return [name.decode("latin-1") for name in carrier]


GETTER = HeadersGetter()
PROPAGATED = frozenset(name.encode("latin-1") for name in propagate.get_global_textmap().fields)


def _field(number: int, content: bytes) -> bytes:
    """A field that holds a message."""
    return _prefix(number, len(content)) + content


@lru_cache(1024)
def _prefix(number: int, length: int) -> bytes:
    """What stands before a message of ``length`` bytes in a field: its tag, and the length as a varint."""
    prefix = [number << 3 | 2]
    while length > 127:
        prefix.append(length & 127 | 128)
        length >>= 7
    return bytes((*prefix, length))


@lru_cache(256)
def _request(
    method: str, path: str, route: str | None, status: int, model: str | None, is_remote: bool, max_length: int | None
) -> bytes:
    texts = {"http.request.method": method, "url.path": path, "http.route": route, "heed.model": model}
    span = Span(
        name=f"{method} {route}" if route else method,
        kind=Span.SPAN_KIND_SERVER,
        flags=REMOTE if is_remote else LOCAL,
    )
    for name, value in texts.items():
        if value is not None:
            span.attributes.add(key=name).value.string_value = value[:max_length]
    span.attributes.add(key="http.response.status_code").value.int_value = status
    if status >= 500:
        span.status.code = Status.STATUS_CODE_ERROR
    return bytes(span.SerializeToString())


@lru_cache
def _stage(name: str) -> bytes:
    return bytes(Span(name=name, kind=Span.SPAN_KIND_INTERNAL, flags=LOCAL).SerializeToString())


@lru_cache(256)
def _before_id(length: int) -> bytes:
    """What stands before a request id of so many ASCII characters, in the attribute that ends with it."""
    span = Span()
    span.attributes.add(key="heed.request_id").value.string_value = "x" * length
    encoded = bytes(span.SerializeToString())
    return encoded[: len(encoded) - length]


def _trace_state(header: str) -> bytes:
    return bytes(Span(trace_state=header).SerializeToString())
