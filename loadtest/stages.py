"""What the server itself says it did meanwhile: its histograms at /metrics, before and after."""

from collections import defaultdict
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from loadtest.server import Server, ServerError

STAGES = ("decode", "queue", "compute", "encode")
Counts = dict[tuple[str, str, str], float]  # by metric, stage, and upper bound in seconds
KEPT = ("heed_request_seconds", "heed_stage_seconds", "heed_run_requests", "process_cpu_seconds_total")


def scrape(server: Server) -> Counts | None:
    """The counters of all models and workers; None if the server tells none."""
    counts: Counts = defaultdict(float)
    try:
        status, content = server.call("/metrics")
        if status != 200:
            return None
        for family in text_string_to_metric_families(content.decode()):
            for sample in family.samples:
                if sample.name.startswith(KEPT):
                    labels = sample.labels
                    counts[sample.name, labels.get("stage", ""), labels.get("le", "")] += sample.value
    except (ServerError, ValueError):
        return None
    return counts if any(name.startswith("heed_") for name, *_ in counts) else None


def between(before: Counts | None, after: Counts | None) -> Counts | None:
    """What was counted from one scrape to the next."""
    if before is None or after is None:
        return None
    return defaultdict(float, {key: count - before.get(key, 0) for key, count in after.items()})


def told(counts: Counts, seconds: float) -> dict[str, Any] | None:
    """Milliseconds in each stage and in all, as mean and p99; requests that shared a run; cores that were busy."""
    answered = counts["heed_request_seconds_count", "", ""]
    if not answered:
        return None
    runs = counts["heed_run_requests_count", "", ""]
    return {
        "requests": int(answered),
        "stages": {stage: _times(counts, "heed_stage_seconds", stage) for stage in STAGES},
        "total": _times(counts, "heed_request_seconds", ""),
        "requests_per_run": counts["heed_run_requests_sum", "", ""] / runs if runs else None,
        "cores": counts["process_cpu_seconds_total", "", ""] / seconds,
    }


def _times(counts: Counts, metric: str, stage: str) -> dict[str, float]:
    count = counts[f"{metric}_count", stage, ""]
    bucket = (f"{metric}_bucket", stage)
    buckets = sorted((float(bound), below) for (*of, bound), below in counts.items() if tuple(of) == bucket)
    return {"mean": 1e3 * counts[f"{metric}_sum", stage, ""] / max(1, count), "p99": 1e3 * _quantile(buckets, 0.99)}


def _quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """As Prometheus' histogram_quantile: straight within a bucket; of the last, its lower bound."""
    wanted = share * buckets[-1][1] if buckets else 0
    lower, seen = 0.0, 0.0
    for bound, below in buckets:
        if below >= wanted and below > seen:
            return lower if bound == float("inf") else lower + (bound - lower) * (wanted - seen) / (below - seen)
        lower, seen = bound, below
    return lower
