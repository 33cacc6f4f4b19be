"""The metrics of all workers: ``GET /metrics`` as Prometheus or OpenMetrics text, and sums for V2's statistics."""

import asyncio
import logging
import platform
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.base import machine
from service.base.timing import STAGES
from service.engine.engine import Engine
from service.ort.provider import VERSION as ONNXRUNTIME_VERSION
from service.repository.repository import Repository
from service.telemetry import statistics
from service.telemetry.counters import REASONS, RequestCounters, histograms
from service.telemetry.event_loop import EventLoopClock
from service.telemetry.families import BATCH_SIZES, add, metrics_of
from service.telemetry.shared_metrics import Counters, Gauges, Key, Record, SharedMetrics, WorkerSlot

log = logging.getLogger("heed")

SINGLE_WORKER_INTERVAL_S = 1.0  # between two publications
INTERVAL_S = 0.1  # the same with several workers, which read each other's records


class Measured(Protocol):
    """A feature that counts something."""

    def counters(self) -> Iterable[tuple[Key, list[int]]]: ...
    def gauges(self) -> Gauges: ...


class Metrics:
    """Publishes this process's metrics in ``slot``, and renders those of all workers in ``shared_metrics``."""

    def __init__(
        self,
        repository: Repository,
        engine: Engine,
        features: Sequence[Measured],
        clock: EventLoopClock,
        shared_metrics: SharedMetrics,
        slot: WorkerSlot,
    ) -> None:
        self._repository = repository
        self._engine = engine
        self._features = features
        self._clock = clock
        self._shared_metrics = shared_metrics
        self._slot = slot
        self._base = slot.read().counters  # of the worker that had the slot before: a counter never decreases
        self._build = version("heed-attention"), platform.python_version(), ONNXRUNTIME_VERSION
        self._is_shared = len(shared_metrics.slots) > 1
        # Between two calls of publish(); a killed worker loses what it counted since the last one.
        self.publish_interval_s = INTERVAL_S if self._is_shared else SINGLE_WORKER_INTERVAL_S

    def publish(self) -> None:
        """Write the current numbers to the slot. Call it on the event loop."""
        try:
            self._slot.write(Record(add(self._base.items(), self._counters()), self._gauges()))
        except ValueError as error:
            log.error("metrics are not updated any more: %s", error)

    async def totals(self) -> Counters:
        """The sums of all workers' counters, ended workers included.

        It waits until the other workers have published, so every response sent before the call is counted.
        """
        if self._is_shared:
            await asyncio.sleep(2 * INTERVAL_S)
        self.publish()
        records = await run_in_threadpool(self._shared_metrics.read)
        return add(*(record.counters.items() for record in records))

    async def scrape(self, request: Request) -> Response:
        """``GET /metrics``: the metrics of all workers; other workers' as last published."""
        self.publish()
        return await run_in_threadpool(exposition, self._shared_metrics, request.headers.get("accept", ""))

    def _counters(self) -> Iterator[tuple[Key, list[int]]]:
        """This process's counters by key. The versions of a model share a key in metrics; their numbers are added."""
        counts = self._engine.counts
        for ((model, _), api, status), requests in counts.failed.items():
            yield ("heed_requests", model, api, str(status)), [requests]
        for ((model, _), api), answered in counts.answered.items():
            *stages, total = histograms(answered)
            yield ("heed_requests", model, api, "200"), [sum(total[:-1])]
            yield ("heed_request_duration_seconds", model, api), total
            for stage, histogram in zip(STAGES, stages, strict=True):
                yield ("heed_stage_duration_seconds", model, api, stage), histogram
        for reason in REASONS:
            yield ("heed_requests_rejected", reason), [counts.refused[reason]]
        yield ("heed_batch_size",), _batch_sizes(counts)
        yield ("heed_requests_cancelled",), [counts.cancelled]
        yield ("heed_model_load_failures",), [self._repository.load_failures]
        yield ("heed_event_loop_lag_seconds",), self._clock.lags
        yield ("heed_event_loop_busy_seconds",), [self._clock.busy_ns]
        for feature in self._features:
            yield from feature.counters()
        yield ("process_cpu_seconds",), [time.process_time_ns()]
        yield from statistics.counters(counts)

    def _gauges(self) -> Gauges:
        repository, engine = self._repository, self._engine
        gauges: dict[Key, float] = {
            ("heed_event_loop_lag_max_seconds",): self._clock.largest_lag_s,
            ("heed_event_loop_busy_ratio",): self._clock.busy_share,
            ("heed_connections",): len(self._clock.connections()),
            ("heed_connections_unread",): self._clock.unread,
            ("heed_requests_in_flight",): engine.counts.in_flight,
            ("heed_requests_queued",): engine.queued,
            ("heed_memory_budget_used_bytes",): engine.budget.used,
            ("heed_runs_in_progress",): engine.running,
            ("heed_models_loaded",): len(repository.models),
            ("heed_models_failed",): len(repository.failed),
            ("heed_model_repository_readable",): int(repository.is_readable),
            ("heed_workers",): 1,
            ("heed_workers_ready",): int(repository.ready.is_set()),
            ("heed_build_info", *self._build): 1,
        }
        for feature in self._features:
            gauges |= feature.gauges()
        if repository.provider:
            gauges["heed_provider_info", repository.provider.name, repository.provider.reason] = 1
        for name, versions in repository.models.items():
            for provider, nodes in versions[next(reversed(versions))].nodes.items():
                gauges["heed_model_nodes", name, provider] = nodes
        if resident_bytes := machine.resident_bytes():
            gauges["process_resident_memory_bytes",] = resident_bytes
        return gauges


def _batch_sizes(counts: RequestCounters) -> list[int]:
    """Histogram of runs by the requests that shared one; its sum is the number of requests."""
    histogram = [counts.inline_runs, *[0] * len(BATCH_SIZES), counts.inline_runs]
    for requests, runs in counts.runs.copy().items():
        histogram[bisect_left(BATCH_SIZES, requests)] += runs
        histogram[-1] += requests * runs
    return histogram


@dataclass
class _Records(Collector):
    shared_metrics: SharedMetrics

    def collect(self) -> Iterable[Metric]:
        return metrics_of(self.shared_metrics.read())


def exposition(shared_metrics: SharedMetrics, accept: str) -> Response:
    """The metrics of all workers, as last published, in the format that ``accept`` asks for."""
    encode, media_type = choose_encoder(accept)
    return Response(encode(_Records(shared_metrics)), media_type=media_type)
