"""What came of a level of load on one server, as the JSON file and the report tell it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest import stages
from loadtest.measure import Taken

PERCENTILES = (50, 90, 95, 99, 99.9)
CURVE = [*range(0, 90, 2), *(100 - 10 ** (1 - step / 10) for step in range(31))]  # percentiles: 0 to 99.99
BUSY = 0.9  # of a core: what a process can do
LATE = 2.0  # milliseconds a process may be late, or this share of the slowest percent
LATE_SHARE = 0.2


@dataclass(frozen=True)
class Level:
    """Connections of a closed loop, or requests a second of an open one."""

    concurrency: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:,.6g}/s"
        return f"{self.concurrency} connection{'s' * (self.concurrency != 1)}"


def outcome(level: Level, server: str, kinds: Sequence[str], turns: Sequence[Taken]) -> dict[str, Any]:
    """All turns together. Times are milliseconds, rates a second; an error is whatever is not a 200."""
    windows = [of for taken in turns for of in taken.measured]
    with_late = [of for taken in turns for of in taken.windows if of.phase != "warm-up"]
    seconds = sum(of.seconds for of in windows)
    latencies = np.concatenate([of.latencies for of in with_late])
    which = np.concatenate([of.kinds for of in with_late])
    errors = sum((of.errors for of in with_late), Counter[str]())
    lags = np.concatenate([of.lags for of in windows])
    failed = sum(errors.values())
    result = {
        "level": str(level),
        "concurrency": level.concurrency,
        "offered": level.rate,
        "server": server,
        "seconds": seconds,
        "requests": len(latencies),
        "rate": sum(of.answered for of in windows) / seconds,
        "errors": dict(errors),
        "failed": failed / max(1, failed + len(latencies)),
        **_times(latencies),
        "curve": [[of, float(ms)] for of, ms in zip(CURVE, np.percentile(latencies, CURVE), strict=True)]
        if len(latencies)
        else [],
        "kinds": [{"name": name, "requests": int((which == i).sum())} | _times(latencies[which == i])
                  for i, name in enumerate(kinds)],
        "generator": {
            "processes": max(taken.processes for taken in turns),
            "cores": float(np.mean([of.cores for of in windows])),
            "late_p99": float(np.percentile(lags, 99)) if len(lags) else 0.0,
        },
        "windows": [
            {"phase": of.phase, "seconds": of.seconds, "rate": of.rate}
            | {"p50": of.percentile(50), "p99": of.percentile(99)}
            for taken in turns
            for of in taken.windows
            if of.phase in ("warm-up", "measured") and of.seconds
        ],
        "server_side": _server_side(turns, seconds),
    }  # fmt: skip
    unsteady = [
        *_several("not steady", [taken.steady for taken in turns]),
        *_several("measured before it was steady", [taken.warmed for taken in turns]),
    ]
    bottleneck = _bottleneck(result)
    return result | {
        "steady": not unsteady,
        "bottleneck": bool(bottleneck),
        "notes": unsteady + bottleneck,
    }  # fmt: skip


def ratios(turns: Sequence[Taken], others: Sequence[Taken]) -> dict[str, dict[str, float | None]]:
    """The first server's numbers over the other's, of turns that stood next to each other: median, least, most."""
    found = {}
    for what in ("rate", "p50", "p99"):
        pairs = [(_number(mine, what), _number(theirs, what)) for mine, theirs in zip(turns, others, strict=True)]
        each = [mine / theirs for mine, theirs in pairs if mine and theirs]
        spread = {"median": float(np.median(each)), "low": min(each), "high": max(each)} if each else {}
        found[what] = {name: spread.get(name) for name in ("median", "low", "high")}
    return found


def _number(taken: Taken, what: str) -> float | None:
    if what == "rate":
        return taken.rate
    latencies = np.concatenate([of.latencies for of in taken.windows if of.phase != "warm-up"])
    return float(np.percentile(latencies, float(what[1:]))) if len(latencies) else None


def _times(latencies: np.ndarray) -> dict[str, float | None]:
    if not len(latencies):
        return dict.fromkeys(["mean", *(f"p{of:g}" for of in PERCENTILES), "max"])
    found = {f"p{of:g}": float(np.percentile(latencies, of)) for of in PERCENTILES}
    return {"mean": float(latencies.mean(dtype=np.float64)), **found, "max": float(latencies.max())}


def _server_side(turns: Sequence[Taken], seconds: float) -> dict[str, Any] | None:
    if any(taken.counts is None for taken in turns):
        return None
    counts: stages.Counts = defaultdict(float)
    for taken in turns:
        for key, count in (taken.counts or {}).items():
            counts[key] += count
    return stages.told(counts, seconds)


def _several(what: str, reasons: Sequence[str | None]) -> list[str]:
    """One note for all turns: how many, and the first reason."""
    found = [reason for reason in reasons if reason]
    count = f" in {len(found)} of {len(reasons)} turns" if len(reasons) > 1 else ""
    return [f"{what}{count}: {found[0]}"] if found else []


def _bottleneck(result: dict[str, Any]) -> list[str]:
    generator, found = result["generator"], []
    if generator["cores"] > BUSY:
        more = 2 * generator["processes"]
        found.append(
            f"the load generator is the bottleneck: {generator['cores']:.0%} of a core each process; --processes {more}"
        )
    if generator["late_p99"] > max(LATE, LATE_SHARE * (result["p99"] or 0)):
        found.append(
            f"the load generator itself is late, by {generator['late_p99']:.1f} ms (p99): it lacks processor time"
        )
    return found
