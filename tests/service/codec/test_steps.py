"""Steps on the event loop: others are served between them, and what they take is learned."""

import asyncio
from types import SimpleNamespace

import pytest

from service.codec import steps
from service.codec.steps import MAX_TURN_NS, drain, run_cooperatively
from service.cost import CostModel

STEPS = 5


@pytest.fixture
def busy(monkeypatch):
    """Steps of which each takes long enough to be a turn of its own, and the clock that says so."""
    clock = SimpleNamespace(now=0, thread_time_ns=lambda: clock.now)
    monkeypatch.setattr(steps, "time", clock)

    def take(fails=False):
        for _ in range(STEPS):
            clock.now += 2 * MAX_TURN_NS
            yield
        if fails:
            raise ValueError("at the end")
        return "done"

    take.clock = clock
    return take


def test_others_go_on_between_the_steps(busy):
    async def both():
        turns, cost = [], CostModel()

        async def other():
            while True:
                turns.append(None)
                busy.clock.now += 100 * MAX_TURN_NS  # which is not learned as a time of the steps
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        result = await run_cooperatively(cost, 1, busy())
        task.cancel()
        return result, len(turns), cost.expected(1)

    assert asyncio.run(both()) == ("done", STEPS, 2 * STEPS * MAX_TURN_NS)
    assert drain(busy()) == "done"


@pytest.mark.parametrize("whole", [drain, lambda steps: asyncio.run(run_cooperatively(CostModel(), 1, steps))])
def test_what_fails_says_so(busy, whole):
    with pytest.raises(ValueError, match="at the end"):
        whole(busy(fails=True))
