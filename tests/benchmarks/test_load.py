"""What wrk adds to its histogram is taken out again."""

from benchmarks.serving.load import percentile_ms, without_correction


def corrected(counts: dict[int, int], interval: int) -> dict[int, int]:
    """As wrk 4 corrects for coordinated omission (stats.c, stats_correct)."""
    data = dict(counts)
    for n in range(2 * interval, max(counts) + 1):
        if count := data.get(n):
            m = n - interval
            while m > interval:
                data[m] = data.get(m, 0) + count
                m -= interval
    return data


def test_the_correction_is_undone():
    real = {3: 5, 10: 100, 11: 7, 35: 4, 36: 1, 90: 2, 200: 1}
    added = corrected(real, 10)
    assert sum(added.values()) > sum(real.values())
    assert without_correction(added, 10) == real


def test_percentiles():
    times = {1000: 98, 2000: 1, 9000: 1}
    assert [percentile_ms(times, share) for share in (0.5, 0.99, 1.0)] == [1.0, 2.0, 9.0]
    assert percentile_ms({}, 0.5) is None
