"""The statistics of V2: the counters of all workers for a model version, in shared memory.

They continue when a worker is replaced and when a model is reloaded, as metrics do: clients take differences.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.base.timing import STAGES
from service.telemetry.counters import NO_MODEL, OTHER_BATCH_SIZES, RequestCounters, Version
from service.telemetry.families import LAST_INFERENCE
from service.telemetry.shared_metrics import Counters, Key

TOKENIZE = "tokenize"  # the API whose requests run no model: metrics have them, these statistics do not
# Names of counters beside those of metrics. A key is the name, the model and its version; that of RUNS ends with rows.
ANSWERED = "model_answered"  # rows, requests, nanoseconds of each stage, nanoseconds in total
FAILED = "model_failed"  # requests, nanoseconds
RUNS = "model_runs"  # nanoseconds of each stage, runs


@dataclass(frozen=True)
class Tally:
    """A count, and the total duration in nanoseconds."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True)
class Statistics:
    """The statistics of one model version."""

    last_inference: int  # milliseconds since 1970; 0 = none yet
    inferences: int  # rows: a batch of 64 counts 64
    executions: int
    success: Tally
    fail: Tally
    stages: dict[str, Tally]
    batches: dict[int, dict[str, Tally]]  # rows of a run -> stage -> tally


def counters(counts: RequestCounters) -> Iterable[tuple[Key, list[int]]]:
    """This process's counters of its models by key; those of all workers are added."""
    for (version, api), answered in counts.answered.items():
        if api == TOKENIZE:
            continue
        yield _key(ANSWERED, version), [answered.rows, sum(answered.bits[-1]), *answered.sums]
        yield _key(LAST_INFERENCE, version), [answered.last]
    for (version, api, _), requests in counts.failed.items():
        if version != NO_MODEL and api != TOKENIZE:
            yield _key(FAILED, version), [requests, 0]
    for version, taken in counts.failed_ns.items():
        if version != NO_MODEL:
            yield _key(FAILED, version), [0, taken]
    for version, batches in counts.batches.items():
        for rows, numbers in batches.items():
            yield (*_key(RUNS, version), str(rows)), list(numbers)


def statistics(totals: Counters, versions: Sequence[Version]) -> list[Statistics]:
    """The statistics of each of ``versions`` from the summed counters of all workers."""
    runs: dict[Key, dict[int, Sequence[int]]] = {}
    for key, numbers in totals.items():
        if key[0] == RUNS:
            runs.setdefault(key[:-1], {})[int(key[-1])] = numbers
    return [_statistics(totals, version, runs.get(_key(RUNS, version), {})) for version in versions]


def _statistics(totals: Counters, version: Version, runs: dict[int, Sequence[int]]) -> Statistics:
    rows, requests, *spent, taken = totals.get(_key(ANSWERED, version), [0] * (len(STAGES) + 3))
    (last,) = totals.get(_key(LAST_INFERENCE, version), [0])
    return Statistics(
        last // 1_000_000,
        rows,
        sum(numbers[-1] for numbers in runs.values()),
        Tally(requests, taken),
        Tally(*totals.get(_key(FAILED, version), [0, 0])),
        _tallies(requests, spent),
        {size: _tallies(runs[size][-1], runs[size][:-1]) for size in sorted(runs) if size != OTHER_BATCH_SIZES},
    )


def _tallies(count: int, spent: Sequence[int]) -> dict[str, Tally]:
    return {stage: Tally(count, ns) for stage, ns in zip(STAGES, spent, strict=True)}


def _key(counter: str, version: Version) -> Key:
    name, number = version
    return counter, name, str(number)
