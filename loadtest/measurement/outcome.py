"""The result of a level of load on one server, as in the JSON file and the report."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.generator.load import Sample
from loadtest.measurement import stages
from loadtest.measurement.measure import Measurement
from loadtest.measurement.window import join

PERCENTILES = (50, 90, 95, 99, 99.9)
CURVE = [*range(0, 90, 2), *(100 - 10 ** (1 - step / 10) for step in range(31))]  # percentiles: 0 to 99.99
MAX_CORES = 0.9  # above this share of a core, a process of the load generator is the bottleneck
MAX_LAG_MS = 2.0  # the load generator may be late by this time, or by the share below of the 99th percentile
MAX_LAG_SHARE = 0.2
MAX_FAILED = 0.01  # share of requests that may fail without a note


@dataclass(frozen=True)
class Level:
    """The connections of a closed loop, or the requests a second of an open one."""

    concurrency: int | None = None
    rate: float | None = None
    soak_s: float | None = None  # the seconds of a soak test, which is measured for longer than the other levels

    def __str__(self) -> str:
        soak = f", soak {self.soak_s:,.6g} s" if self.soak_s else ""
        if self.rate is not None:
            return f"{self.rate:,.6g}/s{soak}"
        return f"{self.concurrency} connection{'s' * (self.concurrency != 1)}{soak}"


def outcome(level: Level, server: str, kinds: Sequence[str], turns: Sequence[Measurement]) -> dict[str, Any]:
    """The result of all turns together. Times are in milliseconds; any status but 200 is an error."""
    measured = join([window for turn in turns for window in turn.measured])
    with_late = join([window for turn in turns for window in turn.windows if window.phase != "warm-up"])
    latencies_ms, kind_of, failed = with_late.latencies_ms, with_late.kinds, with_late.errors.total()
    result: dict[str, Any] = {
        "level": str(level),
        "concurrency": level.concurrency,
        "offered": level.rate,
        "soak": level.soak_s is not None,
        "server": server,
        "seconds": measured.seconds,
        "requests": len(latencies_ms),
        "rate": measured.rate,
        "errors": dict(with_late.errors),
        "failed": failed / (failed + len(latencies_ms)) if failed or len(latencies_ms) else None,
        **_times(latencies_ms),
        "generation": _generation(measured, with_late),
        "curve": [[percent, float(ms)] for percent, ms in zip(CURVE, np.percentile(latencies_ms, CURVE), strict=True)]
        if len(latencies_ms)
        else [],
        "kinds": [{"name": name, "requests": int((kind_of == i).sum())} | _times(latencies_ms[kind_of == i])
                  for i, name in enumerate(kinds)],
        "generator": {
            "processes": max(turn.processes for turn in turns),
            "cores": measured.cores,
            "late_p99": float(np.percentile(measured.lags_ms, 99)) if len(measured.lags_ms) else 0.0,
        },
        "windows": [
            {"phase": window.phase, "seconds": window.seconds, "rate": window.rate}
            | {"p50": window.percentile_ms(50), "p99": window.percentile_ms(99)}
            for turn in turns
            for window in turn.windows
            if window.phase in ("warm-up", "measured") and window.seconds
        ],
        "server_side": _server_side(turns, measured.seconds),
    }  # fmt: skip
    if inside := result["server_side"]:
        inside["rest"] = {"mean": max(0.0, (result["mean"] or 0.0) - inside["total"]["mean"])}
    result["growth"] = inside["growth"] if inside else None
    unsteady = [
        *_note("not steady", [turn.unsteady for turn in turns]),
        *_note("measured before it was steady", [turn.unsteady_warmup for turn in turns]),
    ]
    bottleneck = _bottleneck(result)
    late = _late_answers(len(latencies_ms), measured.rate)
    notes = [*unsteady, *bottleneck, *late, *_few_answers(len(latencies_ms), failed)]
    return result | {"steady": not unsteady, "bottleneck": bool(bottleneck), "notes": notes}


def ratios(turns: Sequence[Measurement], others: Sequence[Measurement]) -> dict[str, dict[str, float | None]]:
    """The first server's values divided by the other's, in adjacent turns: median, smallest, largest."""
    sides = ([{"rate": turn.rate, **_times(turn.latencies_ms)} for turn in side] for side in (turns, others))
    adjacent = list(zip(*sides, strict=True))
    result = {}
    for metric in ("rate", "p50", "p99"):
        pairs = [(value[metric], reference[metric]) for value, reference in adjacent]
        quotients = [value / reference for value, reference in pairs if value and reference]
        spread = (float(np.median(quotients)), min(quotients), max(quotients)) if quotients else (None, None, None)
        result[metric] = dict(zip(("median", "low", "high"), spread, strict=True))
    return result


def _times(latencies_ms: np.ndarray) -> dict[str, float | None]:
    if not len(latencies_ms):
        return dict.fromkeys(["mean", *(f"p{percent:g}" for percent in PERCENTILES), "max"])
    percentiles = {f"p{percent:g}": float(np.percentile(latencies_ms, percent)) for percent in PERCENTILES}
    return {"mean": float(latencies_ms.mean(dtype=np.float64)), **percentiles, "max": float(latencies_ms.max())}


def _generation(measured: Sample, with_late: Sample) -> dict[str, Any] | None:
    """Tokens a second, and the times of the first token and of each further one; None without tokens."""
    first_ms, gaps_ms = with_late.first_ms, with_late.gaps_ms
    if not len(first_ms):
        return None
    tokens = len(first_ms) + len(gaps_ms)
    return {
        "tokens": tokens, "rate": measured.token_rate, "first_token": _times(first_ms), "per_token": _times(gaps_ms)
    }  # fmt: skip


def _server_side(turns: Sequence[Measurement], seconds: float) -> dict[str, Any] | None:
    if any(turn.counters is None for turn in turns):
        return None
    counters: stages.Counters = defaultdict(float)
    for turn in turns:
        for key, count in (turn.counters or {}).items():
            counters[key] += count
    return stages.summarize(counters, seconds)


def _note(problem: str, reasons: Sequence[str | None]) -> list[str]:
    """One note for all turns: the number of those in which the problem occurred, and the first reason."""
    given = [reason for reason in reasons if reason]
    count = f" in {len(given)} of {len(reasons)} turns" if len(reasons) > 1 else ""
    return [f"{problem}{count}: {given[0]}"] if given else []


def is_answered(result: Mapping[str, Any]) -> bool:
    """Whether the server answered a request with 200, if only one that was due before the measurement."""
    return bool(result["requests"] or result["rate"])


def _late_answers(answered: int, rate: float) -> list[str]:
    """A note if a server under too much load answered only requests that were due before the measurement."""
    if answered or not rate:
        return []
    return [f"no request due in the measurement was answered in time; the {rate:,.1f}/s answered were due before it"]


def _few_answers(answered: int, failed: int) -> list[str]:
    """A note if more than ``MAX_FAILED`` of the requests failed, since their times are not included."""
    if not answered or failed <= MAX_FAILED * (answered + failed):
        return []
    return [f"times are those of the {answered:,} requests answered with 200; {failed:,} failed"]


def _bottleneck(result: dict[str, Any]) -> list[str]:
    generator, notes = result["generator"], []
    if generator["cores"] > MAX_CORES:
        notes.append(
            f"the load generator is the bottleneck: each process uses {generator['cores']:.0%} of a core; "
            f"use --processes {2 * generator['processes']}"
        )
    if generator["late_p99"] > max(MAX_LAG_MS, MAX_LAG_SHARE * (result["p99"] or 0)):
        notes.append(f"the load generator is late by {generator['late_p99']:.1f} ms (p99): it needs more CPU time")
    return notes
