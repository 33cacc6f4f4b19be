"""Histograms of the server, between two looks."""

import pytest

from loadtest.stages import between, summarize


def counts(n):
    """``n`` requests: half within 1 ms, half between 1 and 2 ms."""
    found = {}
    for metric, stages in (
        ("heed_stage_duration_seconds", ("decode", "queue", "compute", "encode")),
        ("heed_request_duration_seconds", ("",)),
    ):
        for stage in stages:
            found |= {
                (f"{metric}_bucket", stage, of): n * share for of, share in (("0.001", 0.5), ("0.002", 1), ("+Inf", 1))
            }
            found |= {(f"{metric}_count", stage, ""): n, (f"{metric}_sum", stage, ""): n * 0.001}
    return found | {
        ("heed_batch_size_count", "", ""): n / 2, ("heed_batch_size_sum", "", ""): n,
        ("process_cpu_seconds_total", "", ""): n / 100, ("process_resident_memory_bytes", "", ""): n * 1e6,
    }  # fmt: skip


def test_told():
    from collections import defaultdict

    found = summarize(between(defaultdict(float, counts(100)), defaultdict(float, counts(300))), seconds=4)
    assert found["requests"] == 200
    assert found["stages"]["compute"]["mean"] == pytest.approx(1)
    assert found["total"]["p99"] == pytest.approx(1.98)
    assert found["requests_per_run"] == 2
    assert found["cores"] == pytest.approx(0.5)
    assert found["growth"] == 200e6


def test_nothing_to_tell():
    assert between(None, None) is None
    from collections import defaultdict

    assert summarize(defaultdict(float), 1) is None
