"""Arrivals are as random as they should be, and none is left out when the loop stands still."""

import asyncio
import time
from random import Random

import numpy as np
import pytest

from loadtest.arrivals import Arrivals
from tests.support.waiting import until_async


def test_poisson_through_a_stall():
    async def listen() -> list[float]:
        due: list[float] = []
        arrivals = Arrivals(asyncio.get_running_loop(), 2000, Random(0), due.append)
        arrivals.start()
        await until_async(lambda: due and due[-1] - due[0] > 0.2)
        time.sleep(0.3)  # as a loop that is busy
        await until_async(lambda: due[-1] - due[0] > 0.7)
        arrivals.stop()
        await asyncio.sleep(0)
        return due

    due = asyncio.run(listen())
    gaps = np.diff(due)
    assert len(due) == pytest.approx(2000 * (due[-1] - due[0]), rel=0.15)
    assert gaps.max() < 0.02  # the stall is in no gap
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.2)  # exponential


def test_a_slow_one_ends_at_once():
    """And not with its next arrival, after a thousand seconds: longer than a test may take."""

    async def listen() -> None:
        arrivals = Arrivals(asyncio.get_running_loop(), 0.001, Random(0), [].append)
        arrivals.start()
        arrivals.stop()

    asyncio.run(listen())
