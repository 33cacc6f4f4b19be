"""When windows agree."""

from collections import Counter

import numpy as np
import pytest

from loadtest.window import Window, disagreement


def made(answered, median=1.0, arrived=None):
    latencies = np.full(answered, median, np.float32)
    arrived = answered if arrived is None else arrived
    return Window("measured", 1.0, arrived, answered, latencies, latencies, Counter(), 0.1, latencies, 0)


@pytest.mark.parametrize(
    ("windows", "is_open", "said"),
    [
        ([made(100), made(105), made(95)], False, None),
        ([made(100), made(100), made(130)], False, "rate from 100 to 130"),
        ([made(100), made(100), made(130)], True, None),
        ([made(100), made(100, 1.3), made(100)], False, "median from 1 to 1.3 ms"),
        ([made(100), made(100, arrived=130)], True, "answered / offered from 0.7692 to 1"),
        ([made(50, arrived=100)] * 3, True, "answers only 50% of the offered load"),
        ([made(100), made(0)], False, "a window without an answer"),
        ([], False, "a window without an answer"),
    ],
)
def test_disagreement(windows, is_open, said):
    assert disagreement(windows, is_open) == said
