"""Thresholds for the exit status: ``--fail-if 'p99>50ms'``."""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TIMES = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")
MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
BYTES = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
UNITS = {**dict.fromkeys(TIMES, MILLISECONDS), "rate": {"/s": 1.0}, "failed": {"%": 0.01}, "ratio": {"": 1.0}}
UNITS["growth"] = BYTES  # of the server's resident memory during the measurement
FLAGS = ("unsteady", "bottleneck")
SYNTAX = (
    f"p99>50ms ({', '.join(TIMES)}; us, ms, s), rate<1000/s, failed>0.1%, ratio<0.95, growth>50MB, {', '.join(FLAGS)}"
)
COMPARE = {"<": operator.lt, ">": operator.gt}


@dataclass(frozen=True)
class Threshold:
    """A condition of failure: ``metric`` is below or above ``limit``, in the unit of the results; or a flag is set."""

    text: str
    metric: str
    compare: str = ""
    limit: float = 0.0
    unit: str = ""  # in ``text``

    def violation(self, result: dict[str, Any], ratio: float | None) -> str | None:
        """The value that meets the condition, None if it is not met. A value that was not measured meets it."""
        if self.metric in FLAGS:
            is_set = result["bottleneck"] if self.metric == "bottleneck" else not result["steady"]
            return "; ".join(result["notes"]) if is_set else None
        value = ratio if self.metric == "ratio" else result[self.metric]
        if value is None:
            return "nothing was measured"
        return self._with_unit(value) if COMPARE[self.compare](value, self.limit) else None

    def _with_unit(self, value: float) -> str:
        """``value`` in the unit of ``text``: the value 1 of ``failed>0.1%`` is 100%."""
        number = value / UNITS[self.metric][self.unit]
        return f"{number:,.0f}{self.unit}" if number >= 1000 else f"{number:.4g}{self.unit}"


def parse(text: str) -> Threshold:
    """Parse a threshold.

    Raises:
        ValueError: the text is not a threshold.
    """
    if text in FLAGS:
        return Threshold(text, text)
    match = re.fullmatch(r"\s*([a-z][a-z0-9.]*)\s*([<>])\s*(\d+(?:\.\d+)?)\s*(us|ms|s|/s|%|kB|MB|GB)?\s*", text)
    if match is None or match[1] not in UNITS or (match[4] or "") not in UNITS[match[1]]:
        raise ValueError(f"expected a condition such as {SYNTAX}; got {text!r}")
    unit = match[4] or ""
    return Threshold(text, match[1], match[2], float(match[3]) * UNITS[match[1]][unit], unit)


def violations(thresholds: Sequence[Threshold], results: Sequence[dict[str, Any]], ratios: dict[str, Any]) -> list[str]:
    """A line for each level and threshold whose condition is met; ``ratios`` are by level."""
    lines = []
    for result in results:
        ratio = ratios.get(result["level"], {}).get("rate", {}).get("median")
        for threshold in thresholds:
            if value := threshold.violation(result, ratio):
                lines.append(f"{result['level']}: {threshold.text}: {value}")
    return lines
