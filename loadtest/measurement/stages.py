"""The server's own measurements: the difference between two scrapes of its metrics at /metrics."""

from collections import defaultdict
from typing import Any

import numpy as np

from loadtest.requests.server import Server

STAGES = ("decode", "queue", "compute", "encode")
Counters = dict[tuple[str, str, str], float]  # by metric, stage, and upper bound in seconds
MEMORY = "process_resident_memory_bytes"
METRICS = ("heed_request_duration_", "heed_stage_duration_", "heed_batch_size", "process_cpu_seconds_total", MEMORY)


def scrape(server: Server) -> Counters | None:
    """The sums over all models and workers; None if the server has no metrics of Heed."""
    counters: Counters = defaultdict(float)
    for sample in server.metrics():
        if sample.name.startswith(METRICS):
            counters[sample.name, sample.labels.get("stage", ""), sample.labels.get("le", "")] += sample.value
    return counters if any(name.startswith("heed_") for name, *_ in counters) else None


def between(before: Counters | None, after: Counters | None) -> Counters | None:
    """The increase of each counter from one scrape to the next."""
    if before is None or after is None:
        return None
    return defaultdict(float, {key: count - before.get(key, 0) for key, count in after.items()})


def summarize(counters: Counters, seconds: float) -> dict[str, Any] | None:
    """Mean and p99 in milliseconds of each stage and of the total; requests per run; processor cores in use; growth of
    the server's resident memory in bytes."""
    answered = counters["heed_request_duration_seconds_count", "", ""]
    if not answered:
        return None
    runs = counters["heed_batch_size_count", "", ""]
    return {
        "requests": int(answered),
        "stages": {stage: _times_ms(counters, "heed_stage_duration_seconds", stage) for stage in STAGES},
        "total": _times_ms(counters, "heed_request_duration_seconds", ""),
        "requests_per_run": counters["heed_batch_size_sum", "", ""] / runs if runs else None,
        "cores": counters["process_cpu_seconds_total", "", ""] / seconds,
        "growth": counters.get((MEMORY, "", "")),
    }


def _times_ms(counters: Counters, metric: str, stage: str) -> dict[str, float]:
    count = counters[f"{metric}_count", stage, ""]
    series = (f"{metric}_bucket", stage)
    buckets = sorted((float(bound), below) for (*key, bound), below in counters.items() if tuple(key) == series)
    return {"mean": 1e3 * counters[f"{metric}_sum", stage, ""] / max(1, count), "p99": 1e3 * _p99(buckets)}


def _p99(buckets: list[tuple[float, float]]) -> float:
    """The 99th percentile as by Prometheus' histogram_quantile: interpolated, or the last bucket's lower bound."""
    if not buckets:
        return 0.0
    bounds, below = zip((0.0, 0.0), *buckets[:-1], strict=True)
    return float(np.interp(0.99 * buckets[-1][1], below, bounds))
