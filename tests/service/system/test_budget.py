"""Memory: what is reserved is counted, refused past the limit, and released; what runs need is bounded."""

import asyncio
import zlib
from collections import Counter

import numpy as np
import pytest

from service.base.budget import MemoryBudget, Reservation
from service.base.errors import Malformed, Overloaded, TimedOut, TooLarge, TooLong, TooMuchMemory
from service.engine.engine import Engine
from service.engine.task import InferenceTask
from service.http.compression import STEP_BYTES, inflate
from service.model.loader import open_version
from service.model.model import Model
from service.ort.provider import choose
from service.settings import Settings
from tests.support import graphs
from tests.support.scripts import run_script
from tests.support.waiting import until_async


@pytest.fixture
def budget():
    return MemoryBudget(100, Overloaded, Counter())


def test_reserved_and_released(budget):
    one, other = Reservation(budget), Reservation(budget)
    one.add(60)
    other.add(30)
    one.add(10)
    assert (budget.used, one.bytes, other.bytes) == (100, 70, 30)
    one.release()
    one.release()
    assert (budget.used, one.bytes) == (30, 0)


def test_no_room_beside_others_or_for_one_alone(budget):
    one, other = Reservation(budget), Reservation(budget)
    one.add(60)
    beside = "requests hold 60 bytes of memory, and this one needs 41 bytes more; the limit is 100 bytes"
    with pytest.raises(Overloaded, match=beside):
        other.add(41)
    assert (budget.used, other.bytes, budget._refused["memory_budget_bytes"]) == (60, 0, 1)
    alone = r"about 101 bytes .* exceeds the maximum allowed, 100 bytes \(half of memory_budget_bytes\)"
    with pytest.raises(TooMuchMemory, match=alone):
        one.add(41)
    assert budget.used == 60


def test_a_body_is_inflated_within_the_budget():
    content = bytes(5 * STEP_BYTES)
    body = zlib.compress(content)
    engine = Engine(Settings(max_concurrent_runs=1).sized())

    def inflated(body, longest, limit):
        reservation = Reservation(MemoryBudget(limit, Overloaded, Counter()))
        return asyncio.run(inflate(body, "deflate", longest, reservation, engine)), reservation.bytes

    assert inflated(body, len(content), 20 * STEP_BYTES) == (content, 2 * len(content))
    with pytest.raises(TooMuchMemory):
        inflated(body, len(content), 4 * STEP_BYTES)
    with pytest.raises(TooLarge, match="decompressed body exceeds"):
        inflated(body, len(content) - 1, 20 * STEP_BYTES)
    for broken in (body[:-3], body + b"x", b"", b"x" + body):
        with pytest.raises(Malformed, match="deflate"):
            inflated(broken, len(content), 20 * STEP_BYTES)
    engine.close()


@pytest.fixture(scope="module")
def endless(tmp_path_factory) -> Model:
    """A foreign model of a loop without end, which ONNX Runtime can end between two of its turns."""
    folder = tmp_path_factory.mktemp("models") / "endless" / "1"
    graphs.endless(folder)
    return open_version(folder, choose("cpu"), 1)


def task(model: Model) -> InferenceTask:
    inputs = {"x": np.ones((1, 1), np.float32)}
    return InferenceTask(model, model.estimate(inputs, ["y"], model.bind(inputs)), inputs, ["y"])


def end_run(engine: Engine, endless: InferenceTask, reason: str) -> None:
    """Begin the run, and end it: its client has gone, or ``max_run_seconds`` are over; the thread is free again."""

    async def go():
        running = asyncio.ensure_future(engine.run(endless))
        await until_async(lambda: engine.running)
        if reason == "client":
            running.cancel()
        await until_async(lambda: engine.terminate_overdue() or running.done())  # as it is called once a second
        with pytest.raises(TimedOut if reason == "time" else asyncio.CancelledError):
            await running
        await until_async(lambda: not engine.running)
        engine.close()

    asyncio.run(go())
    assert engine.counts.refused["max_run_seconds"] == (reason == "time")


@pytest.mark.parametrize(("reason", "max_run_seconds"), [("time", 0.1), ("client", 60)])
def test_a_run_is_ended(endless, reason, max_run_seconds):
    end_run(Engine(Settings(max_concurrent_runs=1, max_run_seconds=max_run_seconds).sized()), task(endless), reason)


def test_only_a_block_whose_run_is_forecast_to_take_too_long_is_refused(repository, endless):
    """The first run of a foreign model may have been slow for reasons of its own."""
    model = open_version(repository / "scaled_dot_product" / "1", choose("cpu"), 1)
    inputs = {name: np.ones((1, 1, 64, 4), np.float32) for name in ("query", "key", "value")}
    of_block = InferenceTask(model, model.estimate(inputs, ["output"], model.bind(inputs)), inputs, ["output"])
    foreign = task(endless)
    engine = Engine(Settings(max_concurrent_runs=1, max_run_seconds=60).sized())
    for one in (of_block, foreign):
        one.graph.cost.learn(one.size, 61e9)
    with pytest.raises(TooLong, match=r"would take about 61 s, longer than the 60 s allowed \(max_run_seconds\)"):
        asyncio.run(engine.run(of_block))
    end_run(engine, foreign, "client")


def test_a_block_is_not_refused_by_what_far_smaller_runs_took(repository):
    """A tiny run takes the time of its operators, which says nothing of a large one; what a long run took bounds it."""
    model = open_version(repository / "scaled_dot_product" / "1", choose("cpu"), 2)
    inputs = {name: np.ones((1, 1, 1024, 4), np.float32) for name in ("query", "key", "value")}
    large = InferenceTask(model, model.estimate(inputs, ["output"], model.bind(inputs)), inputs, ["output"])
    large.graph.cost.learn(16, 1e6)  # the forecast is minutes
    engine = Engine(Settings(max_concurrent_runs=1, max_run_seconds=60).sized())
    asyncio.run(engine.run(large))
    assert large.expected_ns < 60e9
    engine.close()


FOREIGN = """
import sys
from pathlib import Path
import numpy as np
from service.base.errors import NotEnoughMemory
from service.model.loader import open_version
from service.ort.provider import choose
model = open_version(Path(sys.argv[1]), choose("cpu", host_memory=120 << 20), 1)
def run(n):
    return model.run(model.graphs[0], {"a": np.ones((n, 1), np.float32), "b": np.ones((1, n), np.float32)}, ["c"])["c"]
assert run(3000).shape == (3000, 3000)
try:
    run(8000)
except NotEnoughMemory:
    assert run(6000).sum() == 6000**2
else:
    raise SystemExit("8,000 times 8,000 numbers had room")
"""


def test_what_a_foreign_model_answers_is_bounded(tmp_path):
    """Nothing tells before the run how much it is; the arena on the CPU has no room for it."""
    graphs.product(tmp_path / "product" / "1")
    run_script(FOREIGN, tmp_path / "product" / "1")


CHANGING = """
import gc, random, sys
from pathlib import Path
import numpy as np
from service.base.machine import trim_heap
from service.ort.provider import shrink_arena
from service.repository.repository import Repository
from service.settings import Settings

MIB = 1 << 20
repository = Repository(Settings(model_repository=Path(sys.argv[1]), provider="cpu", intra_op_threads=1).sized())
repository.open()
repository.load()
draw = random.Random(1)

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // MIB

def ask(block, m, n, heads=1):
    model = repository.block(block)
    lengths = {"query": m, "key": n, "value": n}
    inputs = {name: np.ones((1, heads, length, 16), np.float32) for name, length in lengths.items()}
    need = model.estimate(inputs, ["output", "weights"], model.bind(inputs))
    model.run(need.graph, inputs, ["output", "weights"])

def changing(times):
    for _ in range(times):
        ask("scaled_dot_product", draw.randint(1, 200), draw.randint(1, 200), draw.choice([1, 2, 4, 8]))

changing(500)
settled = resident()
changing(3000)
assert resident() - settled < 8, ("changing shapes", settled, resident())
ask("scaled_dot_product", 2048, 2048, 8)
one = resident()
for block in ("dot_product", "cosine", "multiplicative"):
    ask(block, 2048, 2048, 8)
assert resident() - one < 0.3 * (one - settled), ("more models", settled, one, resident())
shrink_arena(repository.provider)
trim_heap()
assert resident() - settled < 32, ("freed", settled, one, resident())
"""


@pytest.mark.extended
def test_memory_does_not_grow_with_changing_shapes_or_with_models_and_is_given_back(repository):
    run_script(CHANGING, repository)
