"""``GET /metrics``: what all workers have counted, in the words of Prometheus or OpenMetrics."""

import asyncio
import logging
import os
import platform
import time
from bisect import bisect_left
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import onnxruntime
from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool

from service.board import Board, Counters, Gauges, Key, Record, Slot
from service.counts import REASONS, Counts, histograms
from service.engine import Engine
from service.families import SIZES, add, families
from service.repository import Repository
from service.timing import STAGES

log = logging.getLogger("heed")

STATM = Path("/proc/self/statm")  # where there is one

router = APIRouter()


class Metrics:
    """What this process puts up in ``slot`` of ``board``, and what is told of all."""

    def __init__(self, repository: Repository, engine: Engine, board: Board, slot: Slot) -> None:
        self._repository = repository
        self._engine = engine
        self._board = board
        self._slot = slot
        self._before = slot.read().counters  # of the worker that had the slot: a counter never goes down
        self._build = version("heed-attention"), platform.python_version(), onnxruntime.__version__

    def publish(self) -> None:
        """Put up the numbers of this moment. From the event loop."""
        try:
            self._slot.write(Record(add(self._before, self._counters()), self._gauges()))
        except ValueError as error:
            log.error("metrics stand still: %s", error)

    async def keep_publishing(self) -> None:
        """Publish every second, which is what a worker that is killed may lose."""
        while True:
            self.publish()
            await asyncio.sleep(1)

    async def scrape(self, accept: str) -> Response:
        """All workers' numbers, this one's of now and the others' of the last second, as ``accept`` wants them."""
        self.publish()
        encode, media_type = choose_encoder(accept)
        return Response(await run_in_threadpool(lambda: encode(_registry(self._board))), media_type=media_type)

    def _counters(self) -> Counters:
        counts = self._engine.counts
        found: dict[Key, list[int]] = {
            ("heed_requests", model, face, str(status)): [n] for (model, face, status), n in counts.failed.items()
        }
        for (model, face), answered in counts.answered.items():
            *stages, total = histograms(answered)
            found["heed_requests", model, face, "200"] = [sum(total[:-1])]
            found["heed_request_seconds", model, face] = total
            for stage, histogram in zip(STAGES, stages, strict=True):
                found["heed_stage_seconds", model, face, stage] = histogram
        for reason in REASONS:
            found["heed_requests_refused", reason] = [counts.refused[reason]]
        return found | {
            ("heed_run_requests",): _runs(counts),
            ("heed_requests_cancelled",): [counts.cancelled],
            ("heed_model_load_failures",): [self._repository.load_failures],
            ("process_cpu_seconds",): [time.process_time_ns()],
        }

    def _gauges(self) -> Gauges:
        repository, engine = self._repository, self._engine
        found: dict[Key, float] = {
            ("heed_requests_in_flight",): engine.counts.in_flight,
            ("heed_requests_queued",): engine.queued,
            ("heed_runs_running",): engine.running,
            ("heed_models_loaded",): len(repository.models),
            ("heed_models_failed",): len(repository.failed),
            ("heed_workers",): 1,
            ("heed_workers_ready",): int(repository.ready.is_set()),
            ("heed_build_info", *self._build): 1,
        }
        if repository.provider:
            found["heed_provider_info", repository.provider.name, repository.provider.reason] = 1
        for name, versions in repository.models.items():
            for provider, nodes in versions[next(reversed(versions))].nodes.items():
                found["heed_model_nodes", name, provider] = nodes
        if STATM.exists():
            pages = int(STATM.read_text().split()[1])
            found[("process_resident_memory_bytes",)] = pages * os.sysconf("SC_PAGE_SIZE")
        return found


class _Collector(Collector):
    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterable[Metric]:
        return families(self._board.read())


def _registry(board: Board) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(board))
    return registry


def _runs(counts: Counts) -> list[int]:
    """Runs by how many requests shared one, and the requests of all."""
    histogram = [counts.here, *[0] * len(SIZES), counts.here]
    for requests, runs in counts.runs.copy().items():
        histogram[bisect_left(SIZES, requests)] += runs
        histogram[-1] += requests * runs
    return histogram


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request) -> Response:
    of_process: Metrics = request.app.state.metrics
    return await of_process.scrape(request.headers.get("accept", ""))
