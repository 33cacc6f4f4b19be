"""Counting requests: every one lands in one bucket of each stage, and only what was answered does."""

import numpy as np

from service.base.timing import STAGES, Timing
from service.telemetry.counters import BOUNDS, RequestCounters, histograms


def timing(**spent: int) -> Timing:
    request = Timing()
    assert spent.keys() <= request.spent_ns.keys()
    request.spent_ns.update(spent)
    return request


def test_every_request_is_in_one_bucket_of_each_stage_and_in_its_own_series():
    counts, rng = RequestCounters(), np.random.default_rng(0)
    spent = (10 ** rng.uniform(0, 12, (1000, len(STAGES)))).astype(int)
    spent[: len(BOUNDS)] = np.array(BOUNDS)[:, None]
    spent[len(BOUNDS)] = 0
    for row in spent.tolist():
        counts.observe(("model", 1), "v2", timing(**dict(zip(STAGES, row, strict=True))))
    others = [(("model", 1), "native"), (("model", 2), "v2"), (("other", 1), "v2")]
    for model, api in others:
        counts.observe(model, api, timing(compute=5))
    *stages, total = histograms(counts.answered[("model", 1), "v2"])
    for place, histogram in enumerate(stages):
        below = [(spent[:, place] < bound).sum() for bound in BOUNDS]
        assert np.cumsum(histogram[:-1]).tolist() == [*below, len(spent)]
        assert histogram[-1] == spent[:, place].sum()
    assert sum(total[:-1]) == len(spent)
    assert 0 < total[-1] < 60e9
    assert [sum(histograms(counts.answered[key])[-1][:-1]) for key in others] == [1, 1, 1]
    assert len(counts.answered) == 4


def test_failures_are_counted_by_status_and_limit():
    counts = RequestCounters()
    for status, limit in ((413, "max_body_bytes"), (404, ""), (413, "max_body_bytes")):
        counts.observe_failure(("m", 1), "v2", status, limit, 5)
    assert counts.failed == {(("m", 1), "v2", 413): 2, (("m", 1), "v2", 404): 1}
    assert counts.refused == {"max_body_bytes": 2}
    assert counts.failed_ns == {("m", 1): 15}
    assert not counts.answered
