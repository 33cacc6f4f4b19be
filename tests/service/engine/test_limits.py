"""The engine's limits: deadlines, a full queue, memory, clients that go, and its end; nothing is left behind."""

import asyncio
import time

import pytest

from service.engine.engine import Engine
from service.engine.run import run_alone
from service.errors import NotReady, Overloaded, TimedOut
from service.settings import Settings
from tests.support.engine import MANY, SELF, Gate, engine, simple
from tests.support.waiting import until_async


def test_a_deadline_that_passes_in_the_queue_is_answered_then(models, monkeypatch):
    """While the thread is still busy, and without a run."""
    model = models[SELF]
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine() as made, gate.shut(made, simple(model)):
            late = simple(model, deadline=time.perf_counter_ns() + 500_000_000)
            with pytest.raises(TimedOut, match=r"Request timeout expired: it waited [\d,]+ microseconds in the queue"):
                await made.run(late)
            past = simple(model, deadline=time.perf_counter_ns() - 1)
            with pytest.raises(TimedOut):
                await made.run(past)
            assert made.counts.refused == {"deadline": 2}
            assert late.queue_ns >= 10_000_000
        return late

    asyncio.run(go())
    assert len(gate.ran) == 1


def test_a_thread_begins_nothing_that_is_late(models, monkeypatch):
    """Where the event loop was too busy to say so first."""
    model = models[SELF]
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine() as made:
            async with gate.shut(made, simple(model)):
                late = asyncio.create_task(made.run(simple(model, deadline=time.perf_counter_ns() + 1_000_000_000)))
                await until_async(lambda: made.queued == 1)
                time.sleep(1.01)  # the event loop, too, stands still until the deadline has passed
                gate.open.set()
                while made.queued:
                    time.sleep(0.001)
            with pytest.raises(TimedOut):
                await late

    asyncio.run(go())
    assert len(gate.ran) == 1


def test_work_that_began_in_time_is_finished(models, monkeypatch):
    model = models[SELF]
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine() as made, gate.shut(made, simple(model, deadline=time.perf_counter_ns() + 1_000_000_000)):
            await asyncio.sleep(1.01)

    asyncio.run(go())
    assert len(gate.ran) == 1


def test_more_than_may_wait_are_refused_at_once(models, monkeypatch):
    model = models[SELF]
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine(max_queue=3) as made:
            async with gate.shut(made, simple(model)):
                waiting = [asyncio.create_task(made.run(simple(model))) for _ in range(3)]
                await until_async(lambda: made.queued == 3)
                with pytest.raises(Overloaded, match=r"3 requests wait, the most there may \(max_queue\)") as refused:
                    await made.run(simple(model))
                assert int(refused.value.headers["Retry-After"]) >= 1
                assert made.counts.refused == {"max_queue": 1}
            await asyncio.gather(*waiting)
            await made.run(simple(model))

    asyncio.run(go())


def test_who_hangs_up_is_dropped_from_the_queue_and_started_work_finishes(models, monkeypatch):
    model = models[SELF]
    works = [simple(model, seed=seed) for seed in range(4)]
    alone = run_alone(works[3])
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine(MANY) as made:
            started = asyncio.create_task(made.run(works[0]))
            await until_async(lambda: made.running)
            waiting = [asyncio.create_task(made.run(work)) for work in works[1:]]
            await until_async(lambda: made.queued == 3)
            for task in (started, waiting[0], waiting[1]):
                task.cancel()
            gone = await asyncio.gather(started, waiting[0], waiting[1], return_exceptions=True)
            assert [type(error) for error in gone] == [asyncio.CancelledError] * 3
            assert made.queued == 1
            assert made.counts.cancelled == 2
            gate.open.set()
            return await waiting[2]

    found = asyncio.run(go())
    assert found["output"].tobytes() == alone["output"].tobytes()
    assert len(gate.ran) == 2


def test_memory_bounds_what_runs_together(models, monkeypatch):
    """One at a time, and the larger one waits for its turn; one that is larger than the limit runs alone."""
    model = models[SELF]
    works = [simple(model, length) for length in (16, 16, 30)]
    works[0].prepare(0)
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine(max_concurrent_runs=2, memory_budget_bytes=works[0].memory * 3) as made:
            async with gate.shut(made, works[0]):
                waiting = [asyncio.create_task(made.run(work)) for work in works[1:]]
                await until_async(lambda: made.queued == 2)
                await asyncio.sleep(0.05)
                assert made.running == 1
                assert made.queued == 2
            return await asyncio.gather(*waiting)

    assert [answer["output"].shape[1] for answer in asyncio.run(go())] == [16, 30]


def test_after_closing_nothing_is_taken_and_what_waits_is_cancelled(models, monkeypatch):
    model = models[SELF]
    gate = Gate(model, monkeypatch)

    async def go():
        made = Engine(Settings(max_concurrent_runs=1).sized())
        running = asyncio.create_task(made.run(simple(model)))
        await until_async(lambda: made.running)
        waiting = asyncio.create_task(made.run(simple(model)))
        await until_async(lambda: made.queued)
        closing = asyncio.create_task(asyncio.to_thread(made.close))
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.open.set()
        await closing
        assert (await running)["output"].shape == (1, 4, 64)
        with pytest.raises(NotReady):
            await made.run(simple(model))

    asyncio.run(go())
    assert len(gate.ran) == 1
