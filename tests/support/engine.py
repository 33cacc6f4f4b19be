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
async def open_engine(hop=None, **settings):
    engine = Engine(Settings(**{"max_concurrent_runs": 1, **settings}).sized())
    try:
        await engine.open()
        engine._hop_ns = engine._hop_ns if hop is None else hop
        yield engine
        await until_async(lambda: not engine.running)
        assert engine.queued == 0
        assert engine._run_bytes == 0
        assert all(not lane.waiting._candidates and lane.waiting.forecast_ns() == 0 for lane in engine._lanes)
    finally:
        engine.close()
    assert not any(thread.is_alive() for thread in engine._threads)


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
    async def shut(self, engine, task):
        """With one task in the only thread, until the block ends."""
        running = asyncio.create_task(engine.run(task))
        await until_async(lambda: engine.running)
        try:
            yield
        finally:
            self.open.set()
            await running


async def queue(engine, tasks):
    """The runs of these tasks, once all wait behind the one that a gate holds."""
    waiting = [asyncio.create_task(engine.run(task)) for task in tasks]
    await until_async(lambda: engine.queued == len(waiting))
    return waiting


def run_behind(gate, first, others, hop=None, **settings):
    """The answers of tasks, or their errors, that were queued while the first one ran; and the counts of the engine."""

    async def go():
        async with open_engine(hop, **settings) as engine:
            async with gate.shut(engine, first):
                waiting = await queue(engine, others)
            return await asyncio.gather(*waiting, return_exceptions=True), engine.counts

    return asyncio.run(go())


def simple(model, length=4, seed=0, **urgency):
    task = drawn(model, length, length, 1, "plain", seed, ["output", "weights"])
    return InferenceTask(model, task.estimate, task.inputs, task.outputs, **urgency)
