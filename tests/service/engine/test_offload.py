"""Work on the event loop is spread over its turns, between which other requests are served."""

import asyncio
import threading
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest

from service.base.cost import CostModel
from service.engine import offload as offload_module
from service.engine.offload import MAX_COOPERATIVE, MAX_TURN_NS, Offload, run_cooperatively

STEPS = 5
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
    long = [asyncio.create_task(offload.inline_or_offload(*call, partial(release.wait, 60))) for call in calls]
    try:
        await asyncio.sleep(0)
        short = await asyncio.wait_for(offload.inline_or_offload(cost, 1, threading.current_thread), 30)
        assert short is not threading.main_thread()
        assert not any(task.done() for task in long)
    finally:
        release.set()
    assert await asyncio.gather(*long) == [True, True]


@pytest.fixture
def busy(monkeypatch):
    """Steps of which each takes long enough to be a turn of its own, and the clock that says so."""
    clock = SimpleNamespace(now=0, thread_time_ns=lambda: clock.now)
    monkeypatch.setattr(offload_module, "time", clock)

    def take(fails=False):
        for _ in range(STEPS):
            clock.now += 2 * MAX_TURN_NS
            yield
        if fails:
            raise ValueError("at the end")
        return "done"

    take.clock = clock
    return take


async def test_others_go_on_between_the_steps(busy):
    turns, cost = [], CostModel()

    async def other():
        while True:
            turns.append(None)
            busy.clock.now += 100 * MAX_TURN_NS  # which is not learned as a time of the steps
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    assert await run_cooperatively(cost, 1, busy()) == "done"
    task.cancel()
    assert (len(turns), cost.expected(1)) == (STEPS, 2 * STEPS * MAX_TURN_NS)


async def test_a_step_that_fails_ends_the_work(busy):
    with pytest.raises(ValueError, match="at the end"):
        await run_cooperatively(CostModel(), 1, busy(fails=True))
