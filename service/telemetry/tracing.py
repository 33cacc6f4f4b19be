"""OpenTelemetry traces: a span for each request, child of the client's span, with a child span for each stage.

The standard variables ``OTEL_*`` configure the exporter and the sampler; without them the SDK is not loaded.
``opentelemetry-instrumentation-asgi`` would not make this smaller: the spans of the stages, the quiet paths and the
attributes stay, and its own attributes and its spans for each ASGI message would have to be taken out.
"""

import importlib.util
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from service.base.timing import Timing

if TYPE_CHECKING:
    from service.telemetry.spans import Tracer

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


def create_tracer() -> "Tracer":
    """A tracer that sends to the environment's collector."""
    from service.telemetry.spans import Tracer

    return Tracer()


def close(tracer: "Tracer") -> None:
    """Send the last spans, for at most ``SHUTDOWN_TIMEOUT_S`` if the collector does not answer."""
    sending = threading.Thread(target=tracer.close, daemon=True)
    sending.start()
    sending.join(SHUTDOWN_TIMEOUT_S)


class TracedTiming(Timing):
    """A timing that also keeps the start and end of each stage, in nanoseconds of ``time.perf_counter_ns``."""

    __slots__ = ("stages",)

    def __init__(self, started_ns: int | None = None) -> None:
        super().__init__(started_ns)
        self.stages: list[tuple[str, int, int]] = []

    def lap(self, stage: str) -> None:
        start = self._lap
        super().lap(stage)
        self.stages.append((stage, start, self._lap))

    def record_run(self, queue_ns: int, compute_ns: int) -> None:
        start = self._lap
        super().record_run(queue_ns, compute_ns)
        self.stages += (("queue", start, start + queue_ns), ("compute", self._lap - compute_ns, self._lap))
