"""The server's own measurements: the difference between two scrapes of its metrics at /metrics."""

from collections import defaultdict
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from loadtest.server import Server, ServerError

STAGES = ("decode", "queue", "compute", "encode")
Counters = dict[tuple[str, str, str], float]  # by metric, stage, and upper bound in seconds
MEMORY = "process_resident_memory_bytes"
METRICS = ("heed_request_duration_", "heed_stage_duration_", "heed_batch_size", "process_cpu_seconds_total", MEMORY)


def scrape(server: Server) -> Counters | None:
    """The sums over all models and workers; None if the server has no metrics of Heed."""
    counters: Counters = defaultdict(float)
    try:
        status, content = server.call("/metrics")
        if status != 200:
            return None
        for family in text_string_to_metric_families(content.decode()):
            for sample in family.samples:
                if sample.name.startswith(METRICS):
                    labels = sample.labels
                    counters[sample.name, labels.get("stage", ""), labels.get("le", "")] += sample.value
    except (ServerError, ValueError):
        return None
    return counters if any(name.startswith("heed_") for name, *_ in counters) else None


def between(before: Counters | None, after: Counters | None) -> Counters | None:
    """The increase of each counter from one scrape to the next."""
    if before is None or after is None:
        return None
    return defaultdict(float, {key: count - before.get(key, 0) for key, count in after.items()})


def summarize(counters: Counters, seconds: float) -> dict[str, Any] | None:
    """Mean and p99 in milliseconds of each stage and of the total; requests per run; processor cores in use; by how
    many bytes the resident memory of the server has grown."""
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
    return {"mean": 1e3 * counters[f"{metric}_sum", stage, ""] / max(1, count), "p99": 1e3 * _quantile(buckets, 0.99)}


def _quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """Like Prometheus' histogram_quantile: interpolate linearly; in the last bucket, use its lower bound."""
    target = share * buckets[-1][1] if buckets else 0
    lower, count = 0.0, 0.0
    for bound, below in buckets:
        if below >= target and below > count:
            return lower if bound == float("inf") else lower + (bound - lower) * (target - count) / (below - count)
        lower, count = bound, below
    return lower
