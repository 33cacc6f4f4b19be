"""The engine under load: the numbers, what shares a run, the order."""

import asyncio
import threading

import numpy as np
import pytest

from models.catalogue import BLOCKS
from service.cost import CostModel
from service.engine.engine import MAX_SHARED_HOPS
from service.engine.task import InferenceTask
from service.errors import Invalid
from tests.support import graphs
from tests.support.attending import assert_close
from tests.support.engine import MANY, SELF, Gate, engine, simple
from tests.support.tasks import drawn, opened, options_of
from tests.support.waiting import until_async


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


async def queued_behind_the_first(works, gate):
    """The answers of all works but the first, which were queued while it ran; and the counts of runs."""
    async with engine(MANY) as made:
        async with gate.shut(made, works[0]):
            waiting = [asyncio.create_task(made.run(work)) for work in works[1:]]
            await until_async(lambda: made.queued == len(waiting))
        return await asyncio.gather(*waiting), made.counts.runs


def test_equal_shapes_share_a_run_and_answer_to_the_last_bit(models, monkeypatch):
    model = models[SELF]
    works = [simple(model, seed=seed) for seed in range(9)]
    alone = [work.model.run(work.graph, work.inputs, work.outputs) for work in works]
    gate = Gate(model, monkeypatch)

    answers, runs = asyncio.run(queued_behind_the_first(works, gate))
    assert runs == {1: 1, 8: 1}
    assert [work.run_rows for work in works] == [1] + [8] * 8
    assert [work.counts_run for work in works] == [True, True] + [False] * 7
    assert all(work.queue_ns > 0 and work.compute_ns > 0 for work in works[1:])
    for answer, expected in zip(answers, alone[1:], strict=True):
        assert {name: array.tobytes() for name, array in answer.items()} == {
            name: array.tobytes() for name, array in expected.items()
        }


def test_different_lengths_share_a_padded_run(models, monkeypatch):
    model = models[SELF]
    works = [simple(model, length, seed=length) for length in (9, 8, 9, 10, 11, 12)]
    works[-1].graph.cost.learn(1, 1)  # known, so that it may be expected
    gate = Gate(model, monkeypatch)

    answers, runs = asyncio.run(queued_behind_the_first(works, gate))
    assert runs == {1: 1, 5: 1}
    assert gate.ran[1]["x"].shape == (5, 12, 64)
    for work, answer in zip(works[1:], answers, strict=True):
        assert_close(SELF, answer, work.inputs)


@pytest.mark.parametrize(("settings", "hop"), [({"batching": "off"}, MANY), ({}, 0.0)])
def test_nothing_is_shared_where_it_is_off_or_does_not_pay(models, monkeypatch, settings, hop):
    model = models[SELF]
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine(hop, **settings) as made:
            async with gate.shut(made, simple(model)):
                waiting = [asyncio.create_task(made.run(simple(model, seed=seed))) for seed in range(4)]
                await until_async(lambda: made.queued == 4)
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
                await until_async(lambda: made.queued == len(works))
            await asyncio.gather(*waiting)

    asyncio.run(go())
    assert [inputs["x"].shape[1] for inputs in gate.ran[1:]] == [8, 11, 10, 5, 7, 9, 6]


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
                await until_async(lambda: made.queued == 3)
            return await asyncio.gather(*waiting, return_exceptions=True)

    good, bad, other = asyncio.run(go())
    assert good["y"].tolist() == [[10.0]]
    assert other["y"].tolist() == [[20.0]]
    assert isinstance(bad, Invalid)
    assert [len(inputs["ids"]) for inputs in gate.ran] == [1, 1, 3, 1, 1, 1]


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
                await asyncio.wait_for(made.run(simple(model)), 60)
                assert made.running == 1
                assert not made.can_run_inline(work)
        async with engine() as made:
            fresh = opened(tmp_path / "adder" / "1")
            assert not made.can_run_inline(adding(fresh))
            for _ in range(50):  # a run that took long as the machine stood still is outweighed by others
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
            for size in (*(10 for _ in range(20)), 10_000_000):
                await made.offload.inline_or_offload(cost, size, lambda: where.append(threading.current_thread().name))
            assert await made.offload(divmod, 7, 2) == (3, 1)
            with pytest.raises(ZeroDivisionError):
                await made.offload(divmod, 7, 0)

    asyncio.run(go())
    assert where[0].startswith("heed-aside")
    assert "MainThread" in where
