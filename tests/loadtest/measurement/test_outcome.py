"""What is made of windows and of the server's counters: a level's numbers, and whether they are steady."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest

from loadtest.generator.load import Sample
from loadtest.measurement.measure import Measurement
from loadtest.measurement.outcome import Level, outcome, ratios
from loadtest.measurement.stages import between, summarize
from loadtest.measurement.thresholds import parse, violations
from loadtest.measurement.window import disagreement
from loadtest.report.plots import BARS, _bar_ms


def window(
    phase="measured", latencies=(1.0,) * 99 + (9.0,), arrived=None, cores=0.3, late=0.1, errors=0, kind=0, tokens=()
):  # fmt: skip
    count = len(latencies)
    return Sample(
        phase, 2.0, count if arrived is None else arrived, count, np.array(latencies, np.float32),
        np.full(count, kind, np.uint16), Counter({"status 503": errors} if errors else {}), cores,
        np.full(50, late, np.float32), first_ms=np.array(tokens[:1], np.float32),
        gaps_ms=np.array(tokens[1:], np.float32),
    )  # fmt: skip


def alike(answered, median=1.0, arrived=None):
    """A window of so many requests, which took equally long."""
    return window(latencies=[median] * answered, arrived=arrived)


def taken(*windows, warmed=None, steady=None, counters=None):
    return Measurement(list(windows), warmed, steady, counters, 1)


def counts(n):
    """``n`` requests: half within 1 ms, half between 1 and 2 ms."""
    counters = defaultdict(float)
    for metric, stages in (
        ("heed_stage_duration_seconds", ("decode", "queue", "compute", "encode")),
        ("heed_request_duration_seconds", ("",)),
    ):
        for stage in stages:
            counters |= {
                (f"{metric}_bucket", stage, of): n * share for of, share in (("0.001", 0.5), ("0.002", 1), ("+Inf", 1))
            }
            counters |= {(f"{metric}_count", stage, ""): n, (f"{metric}_sum", stage, ""): n * 0.001}
    return counters | {
        ("heed_batch_size_count", "", ""): n / 2, ("heed_batch_size_sum", "", ""): n,
        ("process_cpu_seconds_total", "", ""): n / 100, ("process_resident_memory_bytes", "", ""): n * 1e6,
    }  # fmt: skip


def test_what_counts():
    """Not the warm-up; what came late counts as latency and not as rate."""
    turn = taken(window("warm-up", [500.0]), window(errors=25), window(kind=1), window("late", [80.0] * 50))
    found = outcome(Level(concurrency=2), "A", ["x", "y"], [turn, turn])
    assert found["rate"] == 50
    assert found["requests"] == 500
    assert found["errors"] == {"status 503": 50}
    assert found["failed"] == pytest.approx(50 / 550)
    assert (found["p50"], found["max"]) == (1, 80)
    assert [of["requests"] for of in found["kinds"]] == [300, 200]
    assert found["steady"]
    assert found["notes"] == ["times are those of the 500 requests answered with 200; 50 failed"]


def test_a_server_that_answered_only_what_was_due_before():
    found = outcome(Level(rate=900), "A", ["x"], [taken(replace(window(latencies=()), answered=300))])
    said = "no request due in the measurement was answered in time; the 150.0/s answered were due before it"
    assert (found["requests"], found["rate"], found["notes"]) == (0, 150, [said])


def test_tokens_are_counted_and_timed():
    """Those of the warm-up are not; those that come late have times, and are not in the rate."""
    turn = taken(
        window("warm-up", tokens=[900, 900]), window(tokens=[30, *range(1, 101)]), window("late", tokens=[50, 7])
    )
    found = outcome(Level(concurrency=2), "A", ["x"], [turn, turn])["generation"]
    assert (found["tokens"], found["rate"]) == (206, 101 / 2)
    assert (found["first_token"]["p50"], found["first_token"]["max"]) == (40, 50)
    gaps = np.tile([*range(1, 101), 7], 2)
    for percent in (50, 90, 99):
        assert found["per_token"][f"p{percent}"] == pytest.approx(np.percentile(gaps, percent))
    assert outcome(Level(concurrency=2), "A", ["x"], [taken(window())])["generation"] is None


def test_windows_of_tokens_are_compared_by_their_tokens():
    """A request may take longer than a window."""
    windows = [window(latencies=[], tokens=[2.0] * count) for count in (100, 102, 98)]
    assert disagreement(windows, is_open=False) is None
    slower = [*windows, window(latencies=[], tokens=[2.0] * 60)]
    assert disagreement(slower, is_open=False) == "rate from 30 to 51"


@pytest.mark.parametrize(
    ("windows", "notes"),
    [
        ({"cores": 0.97}, ["the load generator is the bottleneck: each process uses 97% of a core; use --processes 2"]),
        ({"late": 4.5}, ["the load generator is late by 4.5 ms (p99): it needs more CPU time"]),
        ({"late": 4.5, "latencies": [100.0] * 9}, []),  # late by little beside what is measured
    ],
)
def test_the_generator_is_the_limit(windows, notes):
    found = outcome(Level(rate=5), "A", ["x"], [taken(window(**windows))])
    assert found["bottleneck"] == bool(notes)
    assert found["notes"] == notes


def test_each_window_has_its_own_numbers():
    """Of the warm-up and what was measured; the percentiles are in milliseconds."""
    latencies = np.arange(1.0, 101)
    turn = taken(window("warm-up", [500.0]), window(latencies=latencies), window("late", [80.0]))
    found = outcome(Level(concurrency=2), "A", ["x"], [turn])["windows"]
    assert [of["phase"] for of in found] == ["warm-up", "measured"]
    assert found[1] == {"phase": "measured", "seconds": 2, "rate": 50} | {
        f"p{share}": pytest.approx(np.percentile(latencies, share)) for share in (50, 99)
    }


def test_unsteady_turns_are_counted():
    turns = [taken(window(), steady="because"), taken(window(), warmed="so"), taken(window(), steady="not")]
    found = outcome(Level(rate=1000), "A", ["x"], turns)
    assert found["notes"] == [
        "not steady in 2 of 3 turns: because",
        "measured before it was steady in 1 of 3 turns: so",
    ]
    assert not found["steady"]


def test_where_nothing_was_measured_nothing_is_known_to_have_failed():
    """As of a server that stands still: no answer and no error. Without the server's metrics no growth is known."""
    result = outcome(Level(concurrency=1), "A", ["x"], [taken(window(latencies=[]))])
    assert result["failed"] is result["server_side"] is result["growth"] is None
    assert violations([parse("failed>50%")], [result], {}) == ["1 connection: failed>50%: nothing was measured"]


def test_ratios_are_of_adjacent_turns():
    mine = [taken(window(latencies=[1.0] * n)) for n in (100, 300, 50)]
    theirs = [taken(window(latencies=[2.0] * n)) for n in (100, 100, 100)]
    found = ratios(mine, theirs)
    assert found["rate"] == {"median": 1, "low": 0.5, "high": 3}
    assert found["p99"] == {"median": 0.5, "low": 0.5, "high": 0.5}
    assert ratios([taken(window(latencies=[]))], theirs[:1])["p50"]["median"] is None


@pytest.mark.parametrize(("latency_ms", "rest_ms"), [(1.5, 0.5), (0.75, 0.0)])
def test_rest_is_what_the_client_waits_outside_the_server(latency_ms, rest_ms):
    """The server's mean is 1 ms; where its metrics are of other requests, rest is not below zero."""
    turn = taken(window(latencies=[latency_ms] * 100), counters=counts(100))
    found = outcome(Level(concurrency=1), "A", ["x"], [turn])
    assert found["server_side"]["rest"]["mean"] == pytest.approx(rest_ms)
    assert found["growth"] == 100e6
    assert _bar_ms(found["server_side"], "rest") == pytest.approx(rest_ms)
    assert _bar_ms(found["server_side"], "compute") == pytest.approx(1)
    assert list(BARS) == ["rest", "decode", "queue", "compute", "encode", "other"]


def test_the_servers_counters_between_two_looks():
    stages = summarize(between(counts(100), counts(300)), seconds=4)
    assert stages["requests"] == 200
    assert stages["stages"]["compute"]["mean"] == pytest.approx(1)
    assert stages["total"]["p99"] == pytest.approx(1.98)
    assert stages["requests_per_run"] == 2
    assert stages["cores"] == pytest.approx(0.5)
    assert stages["growth"] == 200e6
    assert between(None, None) is summarize(defaultdict(float), 1) is None


@pytest.mark.parametrize(
    ("windows", "is_open", "said"),
    [
        ([alike(100), alike(105), alike(95)], False, None),
        ([alike(100), alike(100), alike(130)], False, "rate from 50 to 65"),
        ([alike(100), alike(100), alike(130)], True, None),
        ([alike(100), alike(100, 1.3), alike(100)], False, "median from 1 to 1.3 ms"),
        ([alike(100), alike(100, arrived=130)], True, "answered / offered from 0.7692 to 1"),
        ([alike(50, arrived=100)] * 3, True, "answered only 50% of the offered load"),
        ([alike(100), alike(0)], False, "a window without an answer"),
        ([], False, "a window without an answer"),
    ],
)
def test_disagreement(windows, is_open, said):
    assert disagreement(windows, is_open) == said
