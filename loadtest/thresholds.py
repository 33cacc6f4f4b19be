"""What must hold for the command to succeed: ``--fail-if 'p99>50ms'``."""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TIMES = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")
MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
UNITS = {**dict.fromkeys(TIMES, MILLISECONDS), "rate": {"/s": 1.0}, "failed": {"%": 0.01}, "ratio": {"": 1.0}}
FLAGS = ("unsteady", "bottleneck")
KNOWN = f"p99>50ms ({', '.join(TIMES)}; us, ms, s), rate<1000/s, failed>0.1%, ratio<0.95, {', '.join(FLAGS)}"
COMPARE = {"<": operator.lt, ">": operator.gt}


@dataclass(frozen=True)
class Threshold:
    """Fails when ``what`` is beyond ``limit``, in the unit of the results; of a flag, when it is so."""

    text: str
    what: str
    compare: str = ""
    limit: float = 0.0

    def broken(self, result: dict[str, Any], ratio: float | None) -> str | None:
        """What was found instead; None if it holds. What was not measured does not hold."""
        if self.what in FLAGS:
            broken = result["bottleneck"] if self.what == "bottleneck" else not result["steady"]
            return "; ".join(result["notes"]) if broken else None
        value = ratio if self.what == "ratio" else result[self.what]
        if value is None:
            return "nothing was measured"
        return f"{value:.4g}" if COMPARE[self.compare](value, self.limit) else None


def parse(text: str) -> Threshold:
    """Raises ValueError: not a threshold."""
    if text in FLAGS:
        return Threshold(text, text)
    found = re.fullmatch(r"\s*([a-z][a-z0-9.]*)\s*([<>])\s*(\d+(?:\.\d+)?)\s*(us|ms|s|/s|%)?\s*", text)
    if found is None or found[1] not in UNITS or (found[4] or "") not in UNITS[found[1]]:
        raise ValueError(f"expected something like {KNOWN}; got {text!r}")
    return Threshold(text, found[1], found[2], float(found[3]) * UNITS[found[1]][found[4] or ""])


def broken(thresholds: Sequence[Threshold], results: Sequence[dict[str, Any]], compared: dict[str, Any]) -> list[str]:
    """A line for each level at which a threshold does not hold; ``compared``: ratios by level."""
    found = []
    for result in results:
        ratio = compared.get(result["level"], {}).get("rate", {}).get("median")
        for threshold in thresholds:
            if why := threshold.broken(result, ratio):
                found.append(f"{result['level']}: {threshold.text}: {why}")
    return found
