"""Counting requests: every one lands in one bucket of each stage, and only what was answered does."""

import numpy as np
from starlette.requests import ClientDisconnect

from service.counts import BOUNDS, HUNG_UP, Counts, histograms
from service.errors import Invalid, NotFound, TooLarge, TooMuchMemory
from service.timing import STAGES, Timing


def timing(**spent: int) -> Timing:
    made = Timing()
    assert spent.keys() <= made.spent.keys()
    made.spent.update(spent)
    return made


def test_every_request_is_in_one_bucket_of_each_stage():
    counts, rng = Counts(), np.random.default_rng(0)
    spent = (10 ** rng.uniform(0, 12, (1000, len(STAGES)))).astype(int)
    spent[: len(BOUNDS)] = np.array(BOUNDS)[:, None]
    spent[len(BOUNDS)] = 0
    for row in spent.tolist():
        counts.observe("model", "v2", timing(**dict(zip(STAGES, row, strict=True))))
    *stages, total = histograms(counts.answered["model", "v2"])
    for place, histogram in enumerate(stages):
        below = [(spent[:, place] < bound).sum() for bound in BOUNDS]
        assert np.cumsum(histogram[:-1]).tolist() == [*below, len(spent)]
        assert histogram[-1] == spent[:, place].sum()
    assert sum(total[:-1]) == len(spent)
    assert 0 < total[-1] < 60e9


def test_series_are_apart():
    counts = Counts()
    for model, face in (("a", "v1"), ("a", "v2"), ("b", "v2"), ("b", "v2")):
        counts.observe(model, face, timing(compute=5))
    assert {key: sum(histograms(of)[-1][:-1]) for key, of in counts.answered.items()} == {
        ("a", "v1"): 1,
        ("a", "v2"): 1,
        ("b", "v2"): 2,
    }


def test_failures_have_the_status_of_their_face_and_the_limit_that_said_no():
    counts = Counts()
    for error in (Invalid("x"), TooLarge("x"), TooMuchMemory("x"), NotFound("x"), KeyError("x"), ClientDisconnect()):
        for face in ("v1", "v2"):
            counts.observe_failure("m", face, error)
    of_face = {face: {s: n for (_, of, s), n in counts.failed.items() if of == face} for face in ("v1", "v2")}
    assert of_face == {
        "v1": {422: 1, 413: 2, 404: 1, 500: 1, HUNG_UP: 1},
        "v2": {400: 3, 404: 1, 500: 1, HUNG_UP: 1},
    }
    assert counts.refused == {"max_body_bytes": 2, "max_memory_bytes": 2}
    assert not counts.answered
