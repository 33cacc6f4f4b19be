"""The metrics by name: what each says, its labels, and how those of several workers become one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from prometheus_client.metrics_core import Metric

from service.board import Counters, Key, Record
from service.counts import BOUNDS

SIZES = [2**power for power in range(11)]
SECONDS = 1e-9  # what is counted is nanoseconds


@dataclass(frozen=True)
class Family:
    """A metric. ``join`` makes one number of the workers' gauges; counters are added up."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    unit: float = 1  # what is counted, in what is told
    bounds: Sequence[int] = ()  # of a histogram, in what is counted
    join: Callable[[Iterable[float]], float] = sum


FAMILIES = {
    "heed_requests": Family("counter", "Requests to run a model, by their answer.", ("model", "face", "status")),
    "heed_request_seconds": Family(
        "histogram", "From header to answer, of what was answered with 200.", ("model", "face"), SECONDS, BOUNDS
    ),
    "heed_stage_seconds": Family(
        "histogram", "Each stage of what was answered with 200.", ("model", "face", "stage"), SECONDS, BOUNDS
    ),
    "heed_run_requests": Family("histogram", "Requests that shared a run of ONNX Runtime.", bounds=SIZES),
    "heed_requests_refused": Family("counter", "Requests refused, by the limit that said no.", ("reason",)),
    "heed_requests_cancelled": Family("counter", "Requests dropped from the queue: nobody waited for them any more."),
    "heed_requests_in_flight": Family("gauge", "Requests to run a model that are being worked on."),
    "heed_requests_queued": Family("gauge", "Requests that wait for a run."),
    "heed_runs_running": Family("gauge", "Runs of ONNX Runtime in threads, now."),
    "heed_model_load_failures": Family("counter", "Versions of models that could not be loaded."),
    "heed_models_loaded": Family("gauge", "Models served, by the worker that serves fewest.", join=min),
    "heed_models_failed": Family("gauge", "Models that failed to load and wait for another try.", join=max),
    "heed_workers": Family("gauge", "Processes that serve."),
    "heed_workers_ready": Family("gauge", "Of them, those whose models are loaded and can be run."),
    "heed_provider_info": Family("gauge", "Where models run, and why there.", ("provider", "reason"), join=max),
    "heed_model_nodes": Family(
        "gauge", "Nodes of a model's graphs, by where they run.", ("model", "provider"), join=max
    ),
    "heed_build_info": Family("gauge", "What serves.", ("version", "python", "onnxruntime"), join=max),
    "process_cpu_seconds": Family("counter", "Processor time of all workers, ended ones too.", unit=SECONDS),
    "process_resident_memory_bytes": Family("gauge", "Memory of all workers; what they share counts in each."),
}


def add(counters: Counters, more: Counters) -> Counters:
    """Both together, number by number."""
    both = counters.keys() & more.keys()
    added = {key: [a + b for a, b in zip(counters[key], more[key], strict=True)] for key in both}
    return {**counters, **more, **added}


def families(records: Sequence[Record]) -> Iterable[Metric]:
    """Every metric with its samples, over what the workers tell."""
    counters: Counters = {}
    gauges: dict[Key, list[float]] = {}
    for record in records:
        counters = add(counters, record.counters)
        for key, value in record.gauges.items():
            gauges.setdefault(key, []).append(value)
    for name, family in FAMILIES.items():
        metric = Metric(name, family.help, family.kind)
        of_workers = gauges if family.kind == "gauge" else counters
        for key in sorted(key for key in of_workers if key[0] == name):
            labels = dict(zip(family.labels, key[1:], strict=True))
            if family.kind == "gauge":
                metric.add_sample(name, labels, family.join(gauges[key]))
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
