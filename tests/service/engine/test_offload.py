"""Work on the event loop is spread over its turns, between which other requests are served."""

import asyncio
import threading
from itertools import pairwise

import pytest

from service.cost import CostModel
from service.engine.offload import MAX_COOPERATIVE, Offload

pytestmark = pytest.mark.anyio


@pytest.fixture
def offload():
    offload = Offload(1)
    yield offload
    offload.close()


async def test_many_requests_of_one_step_are_not_done_in_one_turn(offload):
    done = []

    def steps():
        done.append(None)
        return
        yield

    tasks = [asyncio.create_task(offload.run_cooperatively(CostModel(), 1, steps())) for _ in range(40)]
    counts = [0]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        counts.append(len(done))
    assert len(done) == 40
    assert max(after - before for before, after in pairwise(counts)) <= MAX_COOPERATIVE


async def test_short_work_does_not_wait_for_long_work(offload):
    release, cost = threading.Event(), CostModel()
    cost.learn(1, 1e6)
    cost.learn(1 << 20, 1e9)
    calls = ((cost, 1 << 20), (CostModel(), 1))
    long = [asyncio.create_task(offload.inline_or_offload(*call, release.wait, 60)) for call in calls]
    try:
        await asyncio.sleep(0)
        short = await asyncio.wait_for(offload.inline_or_offload(cost, 1, threading.current_thread), 30)
        assert short is not threading.main_thread()
        assert not any(task.done() for task in long)
    finally:
        release.set()
    assert await asyncio.gather(*long) == [True, True]
