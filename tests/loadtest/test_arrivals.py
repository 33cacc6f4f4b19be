"""Arrivals are as random as they should be, and none is left out when the loop stands still."""

import asyncio
import time
from random import Random

import numpy as np
import pytest

from loadtest.arrivals import Arrivals


def test_poisson_through_a_stall():
    async def listen() -> tuple[list[float], float]:
        due: list[float] = []
        arrivals = Arrivals(asyncio.get_running_loop(), 2000, Random(0), due.append)
        start = time.perf_counter()
        arrivals.start()
        await asyncio.sleep(0.2)
        time.sleep(0.3)  # as a loop that is busy
        await asyncio.sleep(0.2)
        arrivals.stop()
        took = time.perf_counter() - start
        await asyncio.sleep(0)
        return due, took

    due, took = asyncio.run(listen())
    gaps = np.diff(due)
    assert len(due) == pytest.approx(2000 * took, rel=0.15)
    assert gaps.max() < 0.02  # the stall is in no gap
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.2)  # exponential


def test_a_slow_one_ends_at_once():
    async def listen() -> float:
        arrivals = Arrivals(asyncio.get_running_loop(), 0.001, Random(0), [].append)
        arrivals.start()
        start = time.perf_counter()
        arrivals.stop()
        return time.perf_counter() - start

    assert asyncio.run(listen()) < 5
