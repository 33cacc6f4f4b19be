import asyncio
import time

import pytest

from service.codec.steps import MAX_TURN_NS, drain, run_cooperatively
from service.cost import CostModel

STEPS = 5


def busy(steps=STEPS, fails=False):
    """Each step is long enough to be a turn of its own."""
    for _ in range(steps):
        until = time.thread_time_ns() + 2 * MAX_TURN_NS
        while time.thread_time_ns() < until:
            pass
        yield
    if fails:
        raise ValueError("at the end")
    return "done"


def test_others_go_on_between_the_steps():
    async def both():
        seen = []

        async def other():
            while True:
                seen.append(None)
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        cost = CostModel()
        result = await run_cooperatively(cost, 1, busy())
        task.cancel()
        return result, len(seen), cost.expected(1)

    result, seen, expected = asyncio.run(both())
    assert result == "done" == drain(busy())
    assert seen >= STEPS - 1
    assert 2 * STEPS * MAX_TURN_NS <= expected < 20 * STEPS * MAX_TURN_NS, "its own time, and none of the others'"


@pytest.mark.parametrize("whole", [drain, lambda steps: asyncio.run(run_cooperatively(CostModel(), 1, steps))])
def test_what_fails_says_so(whole):
    with pytest.raises(ValueError, match="at the end"):
        whole(busy(fails=True))
