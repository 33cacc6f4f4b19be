"""The engine: numbers, shared runs and their order; deadlines, a full queue, memory, clients that go, and its end."""

import asyncio
import threading
import time

import numpy as np
import pytest

from service.base.cost import CostModel
from service.base.errors import Invalid, NotReady, Overloaded, TimedOut
from service.engine.engine import MAX_SHARED_HOPS, Engine
from service.engine.run import Run, run_alone
from service.settings import Settings
from tests.support import graphs
from tests.support.batching import foreign_task
from tests.support.engine import MANY, SELF, Gate, open_engine, queue, run_behind, simple
from tests.support.tasks import drawn, opened, options_of
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio


def adding(model):
    x = np.ones((1, 3), np.float32)
    return foreign_task(model, {"x": x, "z": x}, ["y"])


@pytest.mark.parametrize(("threads", "hop"), [(1, MANY), (2, None), (2, MANY)])
async def test_under_load_each_gets_its_own_answer(block, threads, hop):
    """Many options at once, of many lengths: what shares a run and what does not."""
    rng = np.random.default_rng(threads)
    tasks = []
    for name in ("dot_product", "linear", "multi_head", SELF, "encoder"):
        for option in [of for of in ("plain", "is_causal", "attn_mask", "nonpad") if of in options_of(name)]:
            for seed, length in enumerate([3, 3, 3, *map(int, rng.integers(1, 20, 4))]):
                rows = 1 + seed % 2
                tasks.append(drawn(block(name), length, length, rows, option, seed, ["output", "weights"]))
    rng.shuffle(tasks)

    async with open_engine(hop, max_concurrent_runs=threads) as engine:
        results, counts = await asyncio.gather(*map(engine.run, tasks)), engine.counts
    assert sum(size * runs for size, runs in counts.runs.items()) == len(tasks)
    assert not hop or max(counts.runs) > 2
    assert sum(task.counts_run for task in tasks) == counts.runs.total()
    for task, answer in zip(tasks, results, strict=True):
        alone = task.model.run(task.graph, task.inputs, task.outputs)
        assert {name: x.tobytes() for name, x in answer.items()} == {name: x.tobytes() for name, x in alone.items()}


def test_equal_shapes_share_a_run_and_answer_to_the_last_bit(model, gate):
    first, *others = (simple(model, seed=seed) for seed in range(9))
    answers, counts = run_behind(gate, first, others, MANY)
    assert counts.runs == {1: 1, 8: 1}
    assert (first.run_rows, first.counts_run) == (1, True)
    assert [(task.run_rows, task.counts_run) for task in others] == [(8, True)] + [(8, False)] * 7
    assert all(task.queue_ns > 0 and task.compute_ns > 0 for task in others)
    for task, answer in zip(others, answers, strict=True):
        alone = model.run(task.graph, task.inputs, task.outputs)
        assert {name: x.tobytes() for name, x in answer.items()} == {name: x.tobytes() for name, x in alone.items()}


@pytest.mark.parametrize(("settings", "hop"), [({"batching": "off"}, MANY), ({}, 0.0)])
def test_nothing_is_shared_where_it_is_off_or_does_not_pay(model, gate, settings, hop):
    others = [simple(model, seed=seed) for seed in range(4)]
    _, counts = run_behind(gate, simple(model), others, hop, **settings)
    assert counts.runs == {1: 5}


def test_what_is_long_beside_a_hop_does_not_wait_for_others(model):
    task = simple(model)
    task.compute_queue_keys(MAX_SHARED_HOPS * MANY)
    assert task.stack_key is not None
    task = simple(model)
    task.compute_queue_keys(task.expected_ns / 2)
    assert task.stack_key is None


def test_the_urgent_go_first_then_the_earlier(model, gate):
    priorities = [0, 200, 100, 1, 0, 99, 1]
    tasks = [simple(model, length, priority=p) for length, p in zip(range(5, 12), priorities, strict=True)]
    run_behind(gate, simple(model), tasks, batching="off")
    assert [inputs["x"].shape[1] for inputs in gate.ran[1:]] == [8, 11, 10, 5, 7, 9, 6]


def test_new_requests_prompts_of_lists_and_steps_take_turns(model, gate):
    """Else a step would wait for all prompts of others, and a request for a list and a step of each generation."""
    new, further, step = {}, {"is_accepted": True}, {"is_accepted": True, "is_step": True}
    kinds = enumerate([new, new, further, further, further, step, step, new], start=5)
    tasks = [simple(model, length, **kind) for length, kind in kinds]
    run_behind(gate, simple(model), tasks, batching="off")
    assert [inputs["x"].shape[1] for inputs in gate.ran[1:]] == [7, 10, 5, 8, 11, 6, 9, 12]


def test_a_member_that_fails_harms_no_neighbour(tmp_path, monkeypatch):
    """A number that is in no table makes the shared run fail; alone, only its own does."""
    graphs.lookup(tmp_path / "lookup" / "1")
    model = opened(tmp_path / "lookup" / "1", "all")
    first, *others = (foreign_task(model, {"ids": np.array([[row]])}, ["y"]) for row in (0, 1, 99, 2))
    first.graph.cost.learn(first.size, 1000)  # known, so that it may be expected
    gate = Gate(model, monkeypatch)
    (good, bad, other), _ = run_behind(gate, first, others, MANY)
    assert (good["y"].tolist(), other["y"].tolist()) == ([[10.0]], [[20.0]])
    assert isinstance(bad, Invalid)
    assert [len(inputs["ids"]) for inputs in gate.ran] == [1, 3, 1, 1, 1]


@pytest.mark.parametrize("method", ["stack", "execute"])
async def test_an_error_of_the_engine_is_that_of_its_task_and_ends_no_thread(model, monkeypatch, caplog, method):
    """One that ended a thread would leave its lane without any, and the tasks there without an answer."""
    broken, real = simple(model), getattr(Run, method)

    def failing(run, *arguments):
        if broken in run.tasks:
            raise AssertionError("of a task's own method")
        return real(run, *arguments)

    monkeypatch.setattr(Run, method, failing)
    async with open_engine() as engine, asyncio.timeout(60):
        for _ in range(3):
            with pytest.raises(AssertionError):
                await engine.run(broken)
        answer = await engine.run(simple(model))
    assert answer.keys() == {"output", "weights"}
    assert caplog.text.count("Traceback") == 3


async def test_short_tasks_do_not_stand_behind_long(tmp_path, model, monkeypatch):
    """A foreign model nothing is known of has a lane of its own, and known small tasks run where they are."""
    graphs.adder(tmp_path / "adder" / "1")
    unknown = opened(tmp_path / "adder" / "1")
    async with open_engine() as engine, Gate(unknown, monkeypatch).shut(engine, adding(unknown)):
        assert engine.is_idle
        assert engine.can_run_inline(simple(model))
        await asyncio.wait_for(engine.run(simple(model)), 60)
        assert engine.running == 1
        assert not engine.can_run_inline(adding(unknown))


async def test_a_run_with_much_memory_is_not_made_on_the_event_loop(model, monkeypatch):
    """Its cost is learned by multiply-adds, which a client can have cheaper than the memory of as many."""
    async with open_engine() as engine:
        small = simple(model)
        monkeypatch.setattr("service.engine.task.MAX_INLINE_BYTES", small.memory)
        assert engine.can_run_inline(small)
        monkeypatch.setattr("service.engine.task.MAX_INLINE_BYTES", small.memory - 1)
        assert not engine.can_run_inline(small)


async def test_a_known_short_run_is_made_on_the_event_loop(tmp_path):
    graphs.adder(tmp_path / "adder" / "1")
    model = opened(tmp_path / "adder" / "1")
    async with open_engine() as engine:
        assert not engine.can_run_inline(adding(model))
        for _ in range(50):  # a run that took long as the machine stood still is outweighed by others
            await engine.run(adding(model))
        assert engine.can_run_inline(adding(model))
        assert engine.run_inline(adding(model))["y"].tolist() == [[3.0] * 3]
        assert engine.counts.inline_runs == 1


async def test_other_calls_leave_the_loop_until_they_are_known_to_be_short():
    cost, threads = CostModel(), []
    async with open_engine() as engine:
        for size in (*[10] * 20, 10_000_000):
            threads.append(await engine.offload.inline_or_offload(cost, size, threading.current_thread))
        assert await engine.offload(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await engine.offload(divmod, 7, 0)
    assert threads[0].name.startswith("heed-offload")
    assert threading.main_thread() in threads


async def test_a_deadline_that_passes_in_the_queue_is_answered_then(model, gate):
    """While the thread is still busy, and without a run."""
    async with open_engine() as engine, gate.shut(engine, simple(model)):
        for seconds in (0.05, -1):
            late = simple(model, deadline=time.perf_counter_ns() + int(seconds * 1e9))
            with pytest.raises(TimedOut, match=r"timeout expired: the request waited [\d,]+ µs in the queue"):
                await engine.run(late)
            assert late.queue_ns > 0
        assert engine.counts.refused == {"deadline": 2}
    assert len(gate.ran) == 1


async def test_a_thread_begins_nothing_that_is_late(model, gate):
    """Where the event loop was too busy to say so first."""
    late = simple(model)
    async with open_engine() as engine:
        async with gate.shut(engine, simple(model)):
            (waiting,) = await queue(engine, [late])
            late.deadline = time.perf_counter_ns() - 1
        with pytest.raises(TimedOut):
            await waiting
    assert len(gate.ran) == 1


async def test_a_run_that_began_in_time_is_finished(model, gate):
    task = simple(model, deadline=time.perf_counter_ns() + 60_000_000_000)
    async with open_engine() as engine, gate.shut(engine, task):
        task.deadline = time.perf_counter_ns() - 1
        for lane in engine._lanes:
            engine._expire(task, lane)  # as the event loop does then
    assert len(gate.ran) == 1


async def test_more_than_may_wait_are_refused_at_once(model, gate):
    async with open_engine(max_queue=3) as engine:
        async with gate.shut(engine, simple(model)):
            assert not engine.is_idle
            assert not engine.can_run_inline(simple(model))
            waiting = await queue(engine, [simple(model) for _ in range(3)])
            with pytest.raises(Overloaded, match=r"the queue is full \(max_queue: 3\)") as refused:
                await engine.run(simple(model))
            assert int(refused.value.headers["Retry-After"]) >= 1
            assert engine.counts.refused == {"max_queue": 1}
        await asyncio.gather(*waiting)
        await engine.run(simple(model))


async def test_who_hangs_up_is_dropped_from_the_queue_and_a_started_run_finishes(model, gate):
    first, *others = (simple(model, seed=seed) for seed in range(4))
    async with open_engine(MANY) as engine:
        started = asyncio.create_task(engine.run(first))
        await until_async(lambda: engine.running)
        *gone, waiting = await queue(engine, others)
        for task in (started, *gone):
            task.cancel()
        errors = await asyncio.gather(started, *gone, return_exceptions=True)
        assert [type(error) for error in errors] == [asyncio.CancelledError] * 3
        assert (engine.queued, engine.counts.cancelled) == (1, 2)
        gate.open.set()
        answer = await waiting
    assert len(gate.ran) == 2
    assert answer["output"].tobytes() == run_alone(others[2])["output"].tobytes()


async def test_memory_bounds_what_runs_together(model, gate):
    """One at a time, and the larger one waits for its turn; one that is larger than the limit runs alone."""
    first, *others = (simple(model, length) for length in (16, 16, 30))
    async with open_engine(max_concurrent_runs=2, memory_budget_bytes=first.memory * 3) as engine:
        async with gate.shut(engine, first):
            waiting = await queue(engine, others)
            await until_async(lambda: sum(lane.idle_threads for lane in engine._lanes) == 3)
            assert (engine.running, engine.queued) == (1, 2)
        answers = await asyncio.gather(*waiting)
    assert [answer["output"].shape[1] for answer in answers] == [16, 30]


async def test_after_closing_nothing_is_taken_and_what_waits_is_cancelled(model, gate):
    engine = Engine(Settings(max_concurrent_runs=1).sized())
    running = asyncio.create_task(engine.run(simple(model)))
    await until_async(lambda: engine.running)
    (waiting,) = await queue(engine, [simple(model)])
    closing = asyncio.create_task(asyncio.to_thread(engine.close))
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.open.set()
    await closing
    assert (await running)["output"].shape == (1, 4, 64)
    with pytest.raises(NotReady):
        await engine.run(simple(model))
    assert len(gate.ran) == 1
