"""The engine under load and under abuse: the numbers, the order, the bounds, and that nothing is left behind."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager

import numpy as np
import pytest

from models.catalogue import BLOCKS
from service.cost import CostModel
from service.engine.engine import MAX_SHARED_HOPS, Engine
from service.engine.run import run_alone
from service.engine.task import InferenceTask
from service.errors import Invalid, NotReady, Overloaded, TimedOut
from service.settings import Settings
from tests.service.engine.test_batch import drawn, opened, options_of
from tests.support import graphs
from tests.support.attending import assert_close

SELF = "multi_head_self_attention"
MANY = 1e7  # nanoseconds of a hop, with which all that can share a run does


@pytest.fixture(scope="module")
def models(repository):
    return {name: opened(repository / name / "1") for name in BLOCKS}


@asynccontextmanager
async def engine(hop=None, **settings):
    made = Engine(Settings(**{"max_concurrent_runs": 1, **settings}).sized())
    try:
        await made.open()
        made._hop_ns = made._hop_ns if hop is None else hop
        yield made
        await until(lambda: not made.running)
        assert made.queued == 0
        assert made._run_bytes == 0
        assert all(not lane.waiting._candidates and lane.waiting.forecast_ns() == 0 for lane in made._lanes)
    finally:
        made.close()
    assert not any(thread.is_alive() for thread in made._threads)


async def until(true, seconds=10):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.001)


class Gate:
    """Lets a model's runs wait, so that what comes meanwhile is queued; the runs themselves are real."""

    def __init__(self, model, monkeypatch):
        self.open, self.ran = threading.Event(), []
        real = model.run

        def run(graph, inputs, outputs, options=None):
            self.ran.append(inputs)
            assert self.open.wait(30)
            return real(graph, inputs, outputs, options)

        monkeypatch.setattr(model, "run", run)

    @asynccontextmanager
    async def shut(self, made, work):
        """With one work in the only thread, until the block ends."""
        running = asyncio.create_task(made.run(work))
        await until(lambda: made.running)
        try:
            yield
        finally:
            self.open.set()
            await running


def simple(model, length=4, seed=0, **urgency):
    work = drawn(model, length, length, 1, "plain", seed, ["output", "weights"])
    return InferenceTask(model, work.estimate, work.inputs, work.outputs, **urgency)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("hop", [None, MANY])
def test_under_load_each_gets_its_own_answer(models, threads, hop):
    """All blocks and options at once, of many lengths: what shares a run and what does not."""
    rng = np.random.default_rng(threads)
    works = []
    for name in BLOCKS:
        for option in ("plain", "is_causal", "attn_mask", "nonpad"):
            if option in options_of(name):
                for seed, length in enumerate([3, 3, 3, *map(int, rng.integers(1, 20, 4))]):
                    rows = 1 + seed % 2
                    works.append(drawn(models[name], length, length, rows, option, seed, ["output", "weights"]))
    works = [works[i] for i in rng.permutation(len(works))]

    async def go():
        async with engine(hop, max_concurrent_runs=threads) as made:
            found = await asyncio.gather(*map(made.run, works))
            return found, made.counts

    found, counts = asyncio.run(go())
    assert sum(size * runs for size, runs in counts.runs.items()) == len(works)
    if hop:
        assert max(counts.runs) > 2
    assert sum(work.counts_run for work in works) == counts.runs.total()
    for work, answer in zip(works, found, strict=True):
        alone = work.model.run(work.graph, work.inputs, work.outputs)
        if not all(answer[name].tobytes() == alone[name].tobytes() for name in alone):
            assert work.pad_key is not None, "only what is padded may differ in a bit"
            assert_close(work.model.name, answer, work.inputs)


def test_equal_shapes_share_a_run_and_answer_to_the_last_bit(models, monkeypatch):
    model = models[SELF]
    works = [simple(model, seed=seed) for seed in range(9)]
    alone = [work.model.run(work.graph, work.inputs, work.outputs) for work in works]
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine(MANY) as made:
            async with gate.shut(made, works[0]):
                waiting = [asyncio.create_task(made.run(work)) for work in works[1:]]
                await until(lambda: made.queued == 8)
            return await asyncio.gather(*waiting), made.counts.runs

    found, runs = asyncio.run(go())
    assert runs == {1: 1, 8: 1}
    assert [work.run_rows for work in works] == [1] + [8] * 8
    assert [work.counts_run for work in works] == [True, True] + [False] * 7
    assert all(work.queue_ns > 0 and work.compute_ns > 0 for work in works[1:])
    for answer, expected in zip(found, alone[1:], strict=True):
        assert {name: array.tobytes() for name, array in answer.items()} == {
            name: array.tobytes() for name, array in expected.items()
        }


def test_different_lengths_share_a_padded_run(models, monkeypatch):
    model = models[SELF]
    works = [simple(model, length, seed=length) for length in (9, 8, 9, 10, 11, 12)]
    works[-1].graph.cost.learn(1, 1)  # known, so that it may be expected
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine(MANY) as made:
            async with gate.shut(made, works[0]):
                waiting = [asyncio.create_task(made.run(work)) for work in works[1:]]
                await until(lambda: made.queued == 5)
            return await asyncio.gather(*waiting), made.counts.runs

    found, runs = asyncio.run(go())
    assert runs == {1: 1, 5: 1}
    assert gate.ran[1]["x"].shape == (5, 12, 64)
    for work, answer in zip(works[1:], found, strict=True):
        assert_close(SELF, answer, work.inputs)


@pytest.mark.parametrize(("settings", "hop"), [({"batching": "off"}, MANY), ({}, 0.0)])
def test_nothing_is_shared_where_it_is_off_or_does_not_pay(models, monkeypatch, settings, hop):
    model = models[SELF]
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine(hop, **settings) as made:
            async with gate.shut(made, simple(model)):
                waiting = [asyncio.create_task(made.run(simple(model, seed=seed))) for seed in range(4)]
                await until(lambda: made.queued == 4)
            await asyncio.gather(*waiting)
            return made.counts.runs

    assert asyncio.run(go()) == {1: 5}


def test_what_is_long_beside_a_hop_does_not_wait_for_others(models):
    model = models[SELF]
    work = simple(model)
    work.prepare(MAX_SHARED_HOPS * MANY)
    assert work.stack_key is not None
    work = simple(model)
    work.prepare(work.expected_ns / 2)
    assert work.stack_key is None


def test_the_urgent_go_first_then_the_earlier(models, monkeypatch):
    model = models[SELF]
    gate = Gate(model, monkeypatch)
    priorities = [0, 200, 100, 1, 0, 99, 1]
    works = [simple(model, length, priority=p) for length, p in zip(range(5, 12), priorities, strict=True)]

    async def go():
        async with engine(batching="off") as made:
            async with gate.shut(made, simple(model)):
                waiting = [asyncio.create_task(made.run(work)) for work in works]
                await until(lambda: made.queued == len(works))
            await asyncio.gather(*waiting)

    asyncio.run(go())
    assert [inputs["x"].shape[1] for inputs in gate.ran[1:]] == [8, 11, 10, 5, 7, 9, 6]


def test_a_deadline_that_passes_in_the_queue_is_answered_then(models, monkeypatch):
    """While the thread is still busy, and without a run."""
    model = models[SELF]
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine() as made, gate.shut(made, simple(model)):
            late = simple(model, deadline=time.perf_counter_ns() + 10_000_000)
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
                late = asyncio.create_task(made.run(simple(model, deadline=time.perf_counter_ns() + 20_000_000)))
                await until(lambda: made.queued == 1)
                time.sleep(0.03)
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
        async with engine() as made, gate.shut(made, simple(model, deadline=time.perf_counter_ns() + 50_000_000)):
            await asyncio.sleep(0.06)

    asyncio.run(go())
    assert len(gate.ran) == 1


def test_more_than_may_wait_are_refused_at_once(models, monkeypatch):
    model = models[SELF]
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine(max_queue=3) as made:
            async with gate.shut(made, simple(model)):
                waiting = [asyncio.create_task(made.run(simple(model))) for _ in range(3)]
                await until(lambda: made.queued == 3)
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
            await until(lambda: made.running)
            waiting = [asyncio.create_task(made.run(work)) for work in works[1:]]
            await until(lambda: made.queued == 3)
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


def test_a_member_that_fails_harms_no_neighbour(tmp_path, monkeypatch):
    """A number that is in no table makes the shared run fail; alone, only its own does."""
    graphs.lookup(tmp_path / "lookup" / "1")
    model = opened(tmp_path / "lookup" / "1", "all")
    gate = Gate(model, monkeypatch)

    def asking(*rows):
        inputs = {"ids": np.array([[row] for row in rows])}
        return InferenceTask(model, model.estimate(inputs, ["y"], {}), inputs, ["y"], len(rows))

    async def go():
        async with engine(MANY) as made:
            gate.open.set()
            await made.run(asking(0))  # what it takes is known from here
            gate.open.clear()
            async with gate.shut(made, asking(0)):
                waiting = [asyncio.create_task(made.run(asking(row))) for row in (1, 99, 2)]
                await until(lambda: made.queued == 3)
            return await asyncio.gather(*waiting, return_exceptions=True)

    good, bad, other = asyncio.run(go())
    assert good["y"].tolist() == [[10.0]]
    assert other["y"].tolist() == [[20.0]]
    assert isinstance(bad, Invalid)
    assert [len(inputs["ids"]) for inputs in gate.ran] == [1, 1, 3, 1, 1, 1]


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
                await asyncio.sleep(0.05)
                assert made.running == 1
                assert made.queued == 2
            return await asyncio.gather(*waiting)

    assert [answer["output"].shape[1] for answer in asyncio.run(go())] == [16, 30]


def test_short_work_does_not_stand_behind_long(tmp_path, models):
    """A foreign model nothing is known of has a lane of its own, and known small work runs where it is."""
    graphs.adder(tmp_path / "adder" / "1")
    unknown, model = opened(tmp_path / "adder" / "1"), models[SELF]
    x = np.ones((1, 3), np.float32)

    def adding(model):
        return InferenceTask(model, model.estimate({"x": x, "z": x}, ["y"], {}), {"x": x, "z": x}, ["y"])

    async def go():
        work = adding(unknown)
        with pytest.MonkeyPatch.context() as monkeypatch:
            gate = Gate(unknown, monkeypatch)
            async with engine() as made, gate.shut(made, work):
                assert made.is_idle
                assert made.can_run_inline(simple(model))
                await asyncio.wait_for(made.run(simple(model)), 10)
                assert made.running == 1
                assert not made.can_run_inline(work)
        async with engine() as made:
            fresh = opened(tmp_path / "adder" / "1")
            assert not made.can_run_inline(adding(fresh))
            for _ in range(5):
                await made.run(adding(fresh))
            assert made.can_run_inline(adding(fresh))
            assert made.run_inline(adding(fresh))["y"].tolist() == [[3.0] * 3]
            assert made.counts.inline_runs == 1

    asyncio.run(go())


def test_a_busy_engine_is_not_idle(models, monkeypatch):
    model = models[SELF]
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine() as made, gate.shut(made, simple(model)):
            assert not made.is_idle
            assert not made.can_run_inline(simple(model))

    asyncio.run(go())


def test_other_work_leaves_the_loop_until_it_is_known_to_be_short():
    cost, where = CostModel(), []

    async def go():
        async with engine() as made:
            for size in (10, 10, 10_000_000):
                await made.offload.inline_or_offload(cost, size, lambda: where.append(threading.current_thread().name))
            assert await made.offload(divmod, 7, 2) == (3, 1)
            with pytest.raises(ZeroDivisionError):
                await made.offload(divmod, 7, 0)

    asyncio.run(go())
    assert where[0].startswith("heed-aside")
    assert where[1] == "MainThread"


def test_after_closing_nothing_is_taken_and_what_waits_is_cancelled(models, monkeypatch):
    model = models[SELF]
    gate = Gate(model, monkeypatch)

    async def go():
        made = Engine(Settings(max_concurrent_runs=1).sized())
        running = asyncio.create_task(made.run(simple(model)))
        await until(lambda: made.running)
        waiting = asyncio.create_task(made.run(simple(model)))
        await until(lambda: made.queued)
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
