"""What is expected of work that was done, that is smaller or larger than any done, and that was disturbed once."""

import math

from service.cost import LEARN_EVERY, LEARN_FIRST, LEARN_FIRST_NS, CostModel


def test_nothing_is_known_at_first():
    assert CostModel().expected(10) == math.inf


def test_what_was_done_is_expected_again():
    cost = CostModel()
    cost.learn(1000, 5000)
    assert cost.expected(1000) == 5000


def test_larger_work_takes_as_much_for_a_unit_and_smaller_as_much_in_all():
    cost = CostModel()
    cost.learn(1 << 20, 4e6)
    assert cost.expected(1 << 22) == 16e6
    assert cost.expected(1 << 10) == 4e6
    cost.learn(1 << 10, 3000)
    assert cost.expected(1 << 10) == 3000
    assert cost.expected(1 << 22) == 16e6


def test_a_disturbance_counts_for_little_and_is_forgotten():
    cost = CostModel()
    for nanoseconds in (100, 100, 5000):
        cost.learn(64, nanoseconds)
    assert cost.expected(64) < 400
    for _ in range(50):
        cost.learn(64, 100)
    assert cost.expected(64) < 101


def test_work_that_became_slower_is_learned():
    cost = CostModel()
    cost.learn(64, 100)
    for _ in range(200):
        cost.learn(64, 1000)
    assert cost.expected(64) > 990


def test_nothing_takes_time_too():
    cost = CostModel()
    cost.learn(0, 700)
    assert cost.expected(0) == 700
    assert cost.expected(1) >= 0


def test_short_work_is_timed_at_first_and_long_work_less_often():
    assert timed_of(LEARN_FIRST, nanoseconds=1_000) == LEARN_FIRST - 1
    assert timed_of(LEARN_FIRST, nanoseconds=LEARN_FIRST_NS / 4) <= LEARN_EVERY + LEARN_FIRST / LEARN_EVERY


def timed_of(runs: int, *, nanoseconds: float) -> int:
    """How many of the first ``runs`` are timed, all of one size that takes as long as given."""
    cost, timed = CostModel(), 0
    for _ in range(runs):
        if cost.is_due(1000):
            cost.learn(1000, nanoseconds)
            timed += 1
    return timed
