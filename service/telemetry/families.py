"""The metric families: help, labels, units, and how the numbers of several workers are combined."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from statistics import fmean
from typing import Literal

from prometheus_client.metrics_core import Metric

from service.telemetry.counters import BOUNDS, FINE_BOUNDS
from service.telemetry.shared_metrics import Counters, Key, Record

BATCH_SIZES = [2**power for power in range(11)]
NS = 1e-9  # seconds: durations are counted in nanoseconds
LAST_INFERENCE = "model_last_inference"  # not exported: a time in nanoseconds since 1970, of which the latest counts


@dataclass(frozen=True)
class Family:
    """A metric. ``combine`` makes one number of the workers' gauges; counters are always added."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    unit: float = 1  # of a counted number, in the exported unit
    bounds: Sequence[int] = ()  # of a histogram's buckets, as counted
    combine: Callable[[Iterable[float]], float] = sum


FAMILIES = {
    "heed_requests": Family("counter", "Requests for runs or tokens, by response status.", ("model", "api", "status")),
    "heed_request_duration_seconds": Family(
        "histogram",
        "Time from a request's arrival at this machine to its response with status 200.",
        ("model", "api"),
        NS,
        FINE_BOUNDS,
    ),
    "heed_stage_duration_seconds": Family(
        "histogram", "Time in each stage of requests answered with 200.", ("model", "api", "stage"), NS, BOUNDS
    ),
    "heed_batch_size": Family("histogram", "Requests that shared a run of ONNX Runtime.", bounds=BATCH_SIZES),
    "heed_requests_rejected": Family("counter", "Requests rejected, by the limit they exceeded.", ("reason",)),
    "heed_requests_cancelled": Family("counter", "Requests removed from the queue because their client disconnected."),
    "heed_event_loop_lag_seconds": Family(
        "histogram", "Delay of the event loops, which adds to each request's latency.", (), NS, BOUNDS
    ),
    "heed_event_loop_lag_max_seconds": Family("gauge", "The largest lag in the last 15 seconds.", combine=max),
    "heed_event_loop_busy_seconds": Family("counter", "CPU time of the event loops' threads.", unit=NS),
    "heed_event_loop_busy_ratio": Family(
        "gauge",
        "Share of the last 15 seconds in which the event loop was busy or late; the mean of all workers. Near 1 there"
        " is no capacity for more requests.",
        combine=lambda shares: fmean([*shares]),
    ),
    "heed_connections": Family("gauge", "Open connections."),
    "heed_connections_unread": Family("gauge", "Connections with bytes that are not read yet."),
    "heed_requests_in_flight": Family("gauge", "Requests in progress that run a model."),
    "heed_requests_queued": Family("gauge", "Requests waiting in the queue."),
    "heed_memory_budget_used_bytes": Family(
        "gauge", "Memory reserved by requests outside of runs; the limit is half of memory_budget_bytes."
    ),
    "heed_runs_in_progress": Family("gauge", "Runs of ONNX Runtime in progress in threads."),
    "heed_model_load_failures": Family("counter", "Model versions that failed to load."),
    "heed_models_loaded": Family("gauge", "Models served; the smallest number of any worker.", combine=min),
    "heed_models_failed": Family("gauge", "Models whose last load failed.", combine=max),
    "heed_model_repository_readable": Family(
        "gauge", "1 if the last scan of the model repository saw every model that is served, else 0.", combine=min
    ),
    "heed_memories": Family("gauge", "Stored memories.", combine=max),
    "heed_memories_bytes": Family("gauge", "Bytes of the files of all memories.", combine=max),
    "heed_memory_queries": Family("counter", "Requests that named an existing memory."),
    "heed_memory_misses": Family("counter", "Requests that named a missing memory, or one of another key."),
    "heed_memories_evicted": Family("counter", "Memories deleted to make room for others."),
    "heed_prompt_tokens": Family("counter", "Tokens of the prompts that were continued.", ("model",)),
    "heed_generated_tokens": Family("counter", "Tokens that were generated.", ("model",)),
    "heed_time_to_first_token_seconds": Family(
        "histogram", "Time from a request's arrival to the first token of each prompt.", ("model",), NS, FINE_BOUNDS
    ),
    "heed_time_per_output_token_seconds": Family(
        "histogram", "Time between two generated tokens of a sequence.", ("model",), NS, FINE_BOUNDS
    ),
    "heed_generation_batch_size": Family(
        "histogram", "Sequences that shared a run of one new token each.", bounds=BATCH_SIZES
    ),
    "heed_workers": Family("gauge", "Worker processes that are running."),
    "heed_workers_ready": Family("gauge", "Worker processes whose models are loaded and can run."),
    "heed_provider_info": Family(
        "gauge", "The execution provider, and why it was chosen.", ("provider", "reason"), combine=max
    ),
    "heed_model_nodes": Family(
        "gauge", "Nodes of a model's graphs, by execution provider.", ("model", "provider"), combine=max
    ),
    "heed_build_info": Family(
        "gauge", "Versions of the service and its runtime.", ("version", "python", "onnxruntime"), combine=max
    ),
    "process_cpu_seconds": Family("counter", "CPU time of all workers, including those that have exited.", unit=NS),
    "process_resident_memory_bytes": Family("gauge", "Resident memory of all workers; shared pages count in each."),
}


def add(*many: Iterable[tuple[Key, list[int]]]) -> Counters:
    """The sum of ``many`` counters for each key, number by number; of LAST_INFERENCE, the latest."""
    added: dict[Key, list[int]] = {}
    for key, numbers in chain(*many):
        before = added.get(key)
        join = max if key[0] == LAST_INFERENCE else operator.add
        added[key] = numbers if before is None else [join(a, b) for a, b in zip(before, numbers, strict=True)]
    return added


def metrics_of(records: Sequence[Record]) -> Iterable[Metric]:
    """Every metric with its samples, from the records of all workers."""
    counters = add(*(record.counters.items() for record in records))
    gauges: dict[Key, list[float]] = {}
    for record in records:
        for key, value in record.gauges.items():
            gauges.setdefault(key, []).append(value)
    for name, family in FAMILIES.items():
        metric = Metric(name, family.help, family.kind)
        samples = gauges if family.kind == "gauge" else counters
        for key in sorted(key for key in samples if key[0] == name):
            labels = dict(zip(family.labels, key[1:], strict=True))
            if family.kind == "gauge":
                metric.add_sample(name, labels, family.combine(gauges[key]))
            elif family.kind == "counter":
                metric.add_sample(f"{name}_total", labels, counters[key][0] * family.unit)
            else:
                _histogram(metric, labels, counters[key], family)
        yield metric


def _histogram(metric: Metric, labels: Mapping[str, str], numbers: Sequence[int], family: Family) -> None:
    *counts, total = numbers
    bounds = [*(f"{bound * family.unit:g}" for bound in family.bounds), "+Inf"]
    for bound, count in zip(bounds, accumulate(counts), strict=True):
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{metric.name}_count", dict(labels), sum(counts))
    metric.add_sample(f"{metric.name}_sum", dict(labels), total * family.unit)
