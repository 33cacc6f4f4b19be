"""The memory budget: what is reserved is counted, refused past the limit, and released."""

import asyncio
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from service.budget import MemoryBudget, Reservation
from service.engine.engine import Engine
from service.engine.task import InferenceTask
from service.errors import Malformed, Overloaded, TimedOut, TooLarge, TooLong, TooMuchMemory
from service.http.compression import STEP_BYTES, inflate
from service.model.loader import open_version
from service.model.model import Model
from service.ort.provider import choose
from service.settings import Settings
from tests.support import graphs
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
        with pytest.raises(Malformed, match="the body is not deflate"):
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
    with pytest.raises(TooLong, match=r"forecast to take 61 s, longer than allowed \(max_run_seconds\), 60 s"):
        asyncio.run(engine.run(of_block))
    end_run(engine, foreign, "client")


def test_what_a_foreign_model_answers_is_bounded(tmp_path):
    """Nothing tells before the run how much it is; the arena on the CPU has no room for it."""
    script = """
import sys
from pathlib import Path
import numpy as np
from service.errors import NotEnoughMemory
from service.model.loader import open_version
from service.ort.provider import choose
model = open_version(Path(sys.argv[1]), choose("cpu", host_memory=240 << 20), 1)
def run(n):
    return model.run(model.graphs[0], {"a": np.ones((n, 1), np.float32), "b": np.ones((1, n), np.float32)}, ["y"])["y"]
assert run(3000).shape == (3000, 3000)
try:
    run(8000)
except NotEnoughMemory:
    assert run(6000).sum() == 6000**2
else:
    raise SystemExit("8,000 times 8,000 numbers had room")
"""
    node = graphs.helper.make_node("MatMul", ["a", "b"], ["y"])
    vectors = [(name, "FP32", [None, None]) for name in ("a", "b")]
    graphs.write(tmp_path / "outer" / "1", [node], vectors, [("y", "FP32", [None, None])])
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "outer" / "1")], check=True, cwd=Path(__file__).parents[3]
    )
