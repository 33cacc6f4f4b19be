"""An engine that is checked when it ends, runs that wait until a test lets them go on, and tasks for them."""

import asyncio
import threading
from contextlib import asynccontextmanager

from service.engine.engine import Engine
from service.engine.task import InferenceTask
from service.settings import Settings
from tests.support.tasks import drawn
from tests.support.waiting import until_async

SELF = "multi_head_self_attention"
MANY = 1e7  # nanoseconds of a hop, with which all that can share a run does


@asynccontextmanager
async def engine(hop=None, **settings):
    made = Engine(Settings(**{"max_concurrent_runs": 1, **settings}).sized())
    try:
        await made.open()
        made._hop_ns = made._hop_ns if hop is None else hop
        yield made
        await until_async(lambda: not made.running)
        assert made.queued == 0
        assert made._run_bytes == 0
        assert all(not lane.waiting._candidates and lane.waiting.forecast_ns() == 0 for lane in made._lanes)
    finally:
        made.close()
    assert not any(thread.is_alive() for thread in made._threads)


class Gate:
    """Lets a model's runs wait, so that what comes meanwhile is queued; the runs themselves are real."""

    def __init__(self, model, monkeypatch):
        self.open, self.ran, self.graphs = threading.Event(), [], []
        real = model.run

        def run(graph, inputs, outputs, options=None):
            self.ran.append(inputs)
            self.graphs.append(graph)
            assert self.open.wait(120)
            return real(graph, inputs, outputs, options)

        monkeypatch.setattr(model, "run", run)

    @asynccontextmanager
    async def shut(self, made, work):
        """With one work in the only thread, until the block ends."""
        running = asyncio.create_task(made.run(work))
        await until_async(lambda: made.running)
        try:
            yield
        finally:
            self.open.set()
            await running


def simple(model, length=4, seed=0, **urgency):
    work = drawn(model, length, length, 1, "plain", seed, ["output", "weights"])
    return InferenceTask(model, work.estimate, work.inputs, work.outputs, **urgency)
