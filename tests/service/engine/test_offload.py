"""Work on the event loop is spread over its turns, between which other requests are served."""

import asyncio
import threading

from service.cost import CostModel
from service.engine.offload import MAX_COOPERATIVE, Offload


def test_many_requests_of_one_step_are_not_done_in_one_turn():
    done, offload = [], Offload(1)

    def steps():
        done.append(None)
        return
        yield

    async def done_by_turn():
        tasks = [asyncio.create_task(offload.run_cooperatively(CostModel(), 1, steps())) for _ in range(40)]
        counts = []
        while not all(task.done() for task in tasks):
            before = len(done)
            await asyncio.sleep(0)
            counts.append(len(done) - before)
        return counts

    counts = asyncio.run(done_by_turn())
    offload.close()
    assert sum(counts) == 40
    assert max(counts) <= MAX_COOPERATIVE


def test_short_work_does_not_wait_for_long_work():
    offload, release, cost = Offload(1), threading.Event(), CostModel()
    cost.learn(1, 1e6)
    cost.learn(1 << 20, 1e9)

    async def run():
        long = [
            asyncio.create_task(offload.inline_or_offload(cost, 1 << 20, release.wait, 60)),
            asyncio.create_task(offload.inline_or_offload(CostModel(), 1, release.wait, 60)),
        ]
        await asyncio.sleep(0)
        short = await asyncio.wait_for(offload.inline_or_offload(cost, 1, threading.current_thread), 30)
        assert not any(task.done() for task in long)
        release.set()
        assert await asyncio.gather(*long) == [True, True]
        return short

    try:
        assert asyncio.run(run()) is not threading.main_thread()
    finally:
        release.set()
        offload.close()
