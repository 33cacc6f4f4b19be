"""What is expected of work that was done, that is smaller or larger than any done, and that was disturbed once."""

import math
import sys
import threading

import pytest

from service.base.cost import LEARN_EVERY, LEARN_FIRST, LEARN_FIRST_NS, AssumedCost, CostModel


def test_larger_work_takes_as_much_for_a_unit_and_smaller_as_much_in_all():
    cost = CostModel()
    assert cost.expected(10) == math.inf
    cost.learn(1 << 20, 4e6)
    assert [cost.expected(1 << power) for power in (20, 22, 10)] == [4e6, 16e6, 4e6]
    cost.learn(1 << 10, 3000)
    assert [cost.expected(1 << power) for power in (22, 10)] == [16e6, 3000]
    cost.learn(1 << 11, 12e6)
    assert cost.expected(1 << 13) == 4e6  # no longer than the larger one


def test_a_disturbance_counts_for_little_and_is_forgotten_but_a_change_is_learned():
    cost = CostModel()
    for nanoseconds in (100, 100, 5000):
        cost.learn(64, nanoseconds)
    assert cost.expected(64) < 400
    for expected in (100, 1000):
        for _ in range(200):
            cost.learn(64, expected)
        assert cost.expected(64) == pytest.approx(expected, rel=0.01)


def test_what_is_larger_than_all_measured_takes_at_least_as_long_as_if_its_rate_went_on_to_fall():
    cost = CostModel()
    cost.learn(1 << 20, 4e6)
    assert cost.least(1 << 40) == 0  # one order says nothing
    cost.learn(1 << 21, 8e6)  # nor do two that are close, however much one was disturbed
    assert cost.least(1 << 40) == 0
    cost.learn(1 << 23, 32e6)  # as much for a unit
    assert cost.least(1 << 30) == pytest.approx(cost.expected(1 << 30))
    assert cost.least(1 << 23) == 0
    cost.learn(1 << 26, 128e6)  # half as much as six orders before
    assert cost.least(1 << 32) == pytest.approx(cost.expected(1 << 32) / 2)


def test_one_slow_measurement_of_small_work_does_not_make_large_work_seem_short():
    cost = CostModel()
    for order in (10, 14, 16, 18):
        cost.learn(1 << order, 1000 + (1 << order))
    undisturbed = cost.least(1 << 55)
    disturbed = CostModel()
    for order in (10, 14, 16, 18):
        disturbed.learn(1 << order, (1000 + (1 << order)) * (100 if order == 16 else 1))
    assert disturbed.least(1 << 55) >= undisturbed / 100 > 1e12


def test_a_disturbed_measurement_does_not_make_larger_work_take_longer():
    cost = CostModel()
    cost.learn(1 << 20, 4e6)
    cost.learn(1 << 24, 640e6)  # ten times as much for a unit
    assert cost.least(1 << 30) == pytest.approx(4e6 * (1 << 10))


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


def test_a_failure_only_makes_work_more_expensive():
    cost = CostModel()
    cost.learn_failure(1000, 10)
    assert cost.expected(1000) == float("inf")
    cost.learn(1000, 10_000)
    cost.learn_failure(1000, 10)
    assert cost.expected(1000) == 10_000
    cost.learn_failure(1000, 10_000_000)
    assert cost.expected(1000) > 100_000


def test_no_measurement_undercuts_the_least_rate():
    cost = CostModel(min_rate=2.0)
    cost.learn(1000, 1)
    assert cost.expected(1000) == 2000
    assert cost.least(1 << 40) == 2 << 40


def test_bounds_correct_only_what_is_beyond_them():
    cost = CostModel()
    cost.learn(1000, 10_000)
    cost.learn_bounds(1000, 5000, 20_000)
    assert cost.expected(1000) == 10_000
    cost.learn_bounds(1000, 500, 1000)
    expected = cost.expected(1000)
    assert 1000 < expected < 10_000
    cost.learn_bounds(1000, 40_000, 80_000)
    assert expected < cost.expected(1000) < 40_000


def test_refusals_lower_what_is_expected_until_work_is_tried_again():
    cost = CostModel(min_rate=1.0)
    cost.learn_refusal(1000)  # of work that was never measured
    cost.learn_end(1000, 5000)  # by a client that left, perhaps at once
    assert not cost.knows(1000)
    cost.learn(1000, 4000)
    cost.learn_end(1000, 5000)
    assert cost.expected(1000) == 10_000
    for _ in range(60):
        cost.learn_refusal(1000)
    expected = cost.expected(1000)
    assert 2000 < expected < 5000
    cost.learn_end(1000, expected / 4)  # it was ended before it took as long as expected
    assert cost.expected(1000) == expected
    cost.learn_end(1000, 5000)
    assert cost.expected(1000) == 10_000
    for _ in range(1000):
        cost.learn_refusal(1000)
    assert cost.expected(1000) == 1000


def test_only_work_of_nearly_the_size_says_how_long_other_work_takes():
    cost = CostModel()
    assert not cost.knows(1)
    cost.learn(1 << 10, 1000)
    assert [power for power in range(64) if cost.knows(1 << power)] == [*range(14)]


def test_threads_may_learn_new_orders_while_others_ask():
    """As the event loop does, which otherwise finds that a dictionary changed its size."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            cost = CostModel()
            learning = threading.Thread(target=lambda of: [of.learn(1 << n, 100) for n in range(200)], args=[cost])
            learning.start()
            while learning.is_alive():
                for ask in (cost.knows, cost.expected, cost.least):
                    ask(1 << 300)
            learning.join()
    finally:
        sys.setswitchinterval(interval)


def test_an_assumed_cost_stays_whatever_was_measured():
    cost = AssumedCost(5e6)
    for _ in range(300):
        cost.learn(1, 10)
    assert cost.expected(1) == cost.expected(1000) == 5e6


def test_an_assumed_cost_with_a_rate_grows_with_the_size():
    cost = AssumedCost(5e6, 10)
    assert (cost.expected(1), cost.expected(10**6)) == (5e6, 1e7)
