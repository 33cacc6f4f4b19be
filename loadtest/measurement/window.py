"""Time windows of a turn, and the test for a steady state."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from loadtest.generator.load import Sample

TOLERANCE = 0.1  # windows are steady if each is within this fraction of the mean of all


def join(samples: Sequence[Sample], processes: int = 1) -> Sample:
    """Join windows, or the samples of ``processes`` processes, about the same number of each."""
    seconds = sum(sample.seconds for sample in samples)
    return Sample(
        samples[-1].phase if samples else "",
        seconds / processes,
        sum(sample.arrived for sample in samples),
        sum(sample.answered for sample in samples),
        np.concatenate([np.empty(0, np.float32), *(sample.latencies_ms for sample in samples)]),
        np.concatenate([np.empty(0, np.uint16), *(sample.kinds for sample in samples)]),
        sum((sample.errors for sample in samples), Counter[str]()),
        sum(sample.cores * sample.seconds for sample in samples) / seconds if seconds else 0.0,
        np.concatenate([np.empty(0, np.float32), *(sample.lags_ms for sample in samples)]),
        first_ms=np.concatenate([np.empty(0, np.float32), *(sample.first_ms for sample in samples)]),
        gaps_ms=np.concatenate([np.empty(0, np.float32), *(sample.gaps_ms for sample in samples)]),
    )


def disagreement(windows: Sequence[Sample], is_open: bool) -> str | None:
    """Why these windows are not in a steady state; None if they are.

    A closed loop must keep its rate. An open loop must answer as fast as requests arrive, whose rate varies at random.
    Both must keep their median latency. If tokens are generated, of which a window has many, the rate of a closed loop
    and the median are those of tokens.
    """
    has_tokens = any(len(window.gaps_ms) for window in windows)
    times = [window.gaps_ms if has_tokens else window.latencies_ms for window in windows]
    medians_ms = [float(np.median(of)) for of in times if len(of)]
    if not windows or len(medians_ms) < len(windows):
        return "a window without an answer"
    if is_open:
        rates = [window.answered / max(1, window.arrived) for window in windows]
    else:
        rates = [window.token_rate if has_tokens else window.rate for window in windows]
    metrics = (("answered / offered" if is_open else "rate", rates, ""), ("median", medians_ms, " ms"))
    for metric, values, unit in metrics:
        mean = sum(values) / len(values)
        if any(abs(value - mean) > TOLERANCE * mean for value in values):
            return f"{metric} from {min(values):.4g} to {max(values):.4g}{unit}"
    if is_open and np.mean(rates) < 1 - TOLERANCE:
        return f"answered only {np.mean(rates):.0%} of the offered load"
    return None
