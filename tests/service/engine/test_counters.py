"""Counting requests: every one lands in one bucket of each stage, and only what was answered does."""

import numpy as np
from starlette.requests import ClientDisconnect

from service.engine.counters import BOUNDS, HUNG_UP, RequestCounters, histograms
from service.errors import Invalid, NotFound, TooLarge, TooMuchMemory
from service.timing import STAGES, Timing


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


def test_failures_have_the_status_of_their_api_and_the_limit_that_rejected_them():
    counts = RequestCounters()
    for error in (Invalid("x"), TooLarge("x"), TooMuchMemory("x"), NotFound("x"), KeyError("x"), ClientDisconnect()):
        for api in ("native", "v2"):
            counts.observe_failure(("m", 1), api, error, 5)
    of_api = {api: {s: n for (_, of, s), n in counts.failed.items() if of == api} for api in ("native", "v2")}
    assert of_api == {
        "native": {422: 1, 413: 2, 404: 1, 500: 1, HUNG_UP: 1},
        "v2": {400: 3, 404: 1, 500: 1, HUNG_UP: 1},
    }
    assert counts.refused == {"max_body_bytes": 2, "max_memory_bytes": 2}
    assert counts.failed_ns == {("m", 1): 60}
    assert not counts.answered
