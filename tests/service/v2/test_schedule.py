"""Triton's schedule_policy: priority and timeout, where one thread computes and others wait for it."""

import asyncio
import re
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest

from tests.support import graphs
from tests.support.server import serving
from tests.support.v2 import ADD, error, infer, tensor

QUEUE = 4
LONG, BRIEF = 480, 32  # rows: two seconds and more; a tenth of a second and more, which is long for the engine, too


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    graphs.slow(folder / "slow" / "1", 2000)
    graphs.adder(folder / "adder" / "1")
    flags = (
        "--intra-op-threads",
        "1",
        "--max-concurrent-runs",
        "1",
        "--max-queue",
        str(QUEUE),
        "--allow-timeout-override",
    )
    with serving(folder, *flags) as client:
        assert infer(client, "adder", ADD).status_code == 200  # what never ran is taken to be long
        yield client.base_url


class Crowd:
    """Requests to the slow model, each on a connection of its own; who was answered, in that order."""

    def __init__(self, client):
        self.client = client
        self.answered = []
        self.came = []

    async def ask(self, name, rows=BRIEF, **parameters):
        body = {"inputs": [tensor("x", np.ones((rows, 512)))], "parameters": parameters}
        response = await self.client.post("/v2/models/slow/infer", json=body)
        self.answered.append(name)
        return response

    async def come(self, *requests):
        """One after another: each is sent when the server has the one before, or has answered it."""
        tasks = []
        for request in requests:
            before = await self.arrived()
            task = asyncio.create_task(request)
            tasks.append(task)
            self.came.append(task)
            while not task.done() and await self.arrived() <= before:
                assert "long" not in self.answered, "the long run was too short"
                await asyncio.sleep(0.01)
        return tasks

    async def arrived(self):
        """How many requests the server has got: those in flight, and those it has answered, whatever the status."""
        metrics = (await self.client.get("/metrics")).text
        counts = r"^heed_(?:requests_in_flight|requests_total\{[^}]*model=\"slow\"[^}]*\}) (\S+)$"
        return sum(map(float, re.findall(counts, metrics, re.MULTILINE)))

    async def gauge(self, name):
        metrics = (await self.client.get("/metrics")).text
        return float(re.search(rf"^heed_{name} (\S+)$", metrics, re.MULTILINE)[1])


@asynccontextmanager
async def busy(address):
    """A crowd, the first of which keeps the only thread for long runs busy; in the end all have been answered."""
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        crowd = Crowd(client)
        (long,) = await crowd.come(crowd.ask("long", LONG))
        while not await crowd.gauge("runs_in_progress"):
            await asyncio.sleep(0.01)
        try:
            yield crowd
        finally:
            await asyncio.wait(crowd.came)
        assert long.result().status_code == 200


def test_the_urgent_overtake(address):
    async def asked():
        async with busy(address) as crowd:
            waiting = await crowd.come(
                crowd.ask("default"),
                crowd.ask("patient", priority=200),
                crowd.ask("as default", priority=100),
                crowd.ask("urgent", priority=1),
            )
            assert crowd.answered == []
        assert [one.result().status_code for one in waiting] == [200] * 4
        assert crowd.answered == ["long", "urgent", "default", "as default", "patient"]

    asyncio.run(asked())


def test_504_while_it_is_queued(address):
    async def asked():
        async with busy(address) as crowd:
            late, in_time = await crowd.come(
                crowd.ask("late", timeout=100_000), crowd.ask("in time", timeout=60_000_000)
            )
            error(await late, 504, "Request timeout expired: it waited ", "microseconds in the queue")
            assert crowd.answered == ["late"]
        assert in_time.result().status_code == 200

    asyncio.run(asked())


def test_503_when_the_queue_is_full(address):
    async def asked():
        async with busy(address) as crowd:
            waiting = await crowd.come(*(crowd.ask(f"waits {number}") for number in range(QUEUE)))
            refused = await crowd.ask("refused", priority=1)
            error(refused, 503, f"{QUEUE} requests wait, the most there may (max_queue)")
            assert int(refused.headers["retry-after"]) >= 1
            assert crowd.answered == ["refused"]
        assert [one.result().status_code for one in waiting] == [200] * QUEUE

    asyncio.run(asked())


def test_short_work_passes_by(address):
    async def asked():
        async with busy(address) as crowd:
            added = await crowd.client.post("/v2/models/adder/infer", json=ADD)
            assert added.json()["outputs"][0]["data"] == [3, 5, 7]
            assert crowd.answered == []

    asyncio.run(asked())


def test_who_was_refused_counts_as_failed(address):
    with httpx.Client(base_url=address) as client:

        def failed():
            return client.get("/v2/models/slow/stats").json()["model_stats"][0]["inference_stats"]["fail"]["count"]

        before = failed()

        async def asked():
            async with busy(address) as crowd:
                await crowd.ask("late", timeout=1000)

        asyncio.run(asked())
        assert failed() == before + 1
