"""Work on the event loop is spread over its turns, between which other requests are served."""

import asyncio

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
