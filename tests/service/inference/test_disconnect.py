"""A request ends once its client has gone or its deadline has passed, whatever is done for it then."""

import asyncio
import fcntl
import json
import shutil
import time

import pytest
from starlette.requests import ClientDisconnect

from service.base.cost import CostModel
from service.base.errors import CLIENT_CLOSED_REQUEST
from service.engine.offload import Offload
from service.inference.disconnect import ClientWatch
from service.inference.stages import Stage, run_stages
from tests.support import graphs
from tests.support.http_requests import SDPA, http, slow
from tests.support.in_process import Client, serving_in_process
from tests.support.waiting import until

SDPA_V2 = "/v2/models/scaled_dot_product/infer"
ROWS = 1 << 12
LONG = "[" + ",".join(["0.1234567890123456789012345"] * (64 * ROWS)) + "]"  # some 7 MB, which take a second to read
BROKEN = LONG[:-1] + ", x]"
TENSOR = f'{{"shape": [{ROWS}, 64], "data": {LONG}}}'
NATIVE = f'{{"query": {TENSOR}, "key": {TENSOR}, "value": {TENSOR}}}'.encode()
INPUT = f'{{"name": "%s", "datatype": "FP32", "shape": [1, 1, {ROWS}, 64], "data": {LONG}}}'
V2 = ('{"inputs": [' + ", ".join(INPUT % name for name in ("query", "key", "value")) + "]}").encode()


@pytest.fixture(scope="module")
def memories(tmp_path_factory):
    return tmp_path_factory.mktemp("memories")


@pytest.fixture(scope="module")
def service(repository, memories, tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    for name in ("scaled_dot_product", "decoder"):
        shutil.copytree(repository / name, models / name)
    graphs.slow(models / "slow" / "1", 2000)
    with serving_in_process(models, inline_ns=0, memories=memories) as service:
        yield service


@pytest.fixture
def engine(service):
    return service.server.config.app.fast_path.routes.find_url(SDPA.encode()).endpoint.engine


@pytest.fixture(params=[(SDPA, NATIVE), (SDPA_V2, V2)], ids=["native", "v2"])
def request_of(request):
    path, body = request.param
    return lambda *lines: http(body, path, *lines)


def test_a_disconnect_ends_the_decoding(service, request_of):
    counts = service.server.config.app.counts
    runs, failed = counts.inline_runs + sum(counts.runs.values()), _closed(counts)
    with Client(service) as client:
        client.send(request_of())
        until(lambda: counts.in_flight)
    until(lambda: not counts.in_flight)
    assert _closed(counts) == failed + 1
    assert counts.inline_runs + sum(counts.runs.values()) == runs
    until(lambda: not service.budget.used)


def test_the_deadline_ends_the_decoding(service, request_of):
    with Client(service) as client:
        answer = client.ask(request_of("X-Request-Timeout: 0.05"))
    assert answer.status == 504
    assert b"the deadline passed before the request was run" in answer.body


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [(SDPA, f'{{"query": {BROKEN}, "value": {BROKEN}}}', 422), (SDPA_V2, f'{{"inputs": [{INPUT % "query"}]}}', 400)],
    ids=["native", "v2"],
)
def test_a_missing_input_is_found_before_the_others_are_read(service, path, body, status):
    with Client(service) as client:
        answer = client.ask(http(body.replace(LONG, BROKEN).encode(), path))
    assert (answer.status, b"missing" in answer.body) == (status, True)


def test_a_disconnect_is_seen_behind_bytes_that_are_not_read_yet(service, engine):
    """Such as the line break that some clients send after a body."""
    counts = service.server.config.app.counts
    failed = _closed(counts)
    with Client(service) as client:
        own = client.connection
        client.send(slow() + b"\r\n")
        until(lambda: own._reading.is_blocked)
    own.loop.call_soon_threadsafe(own.close_if_overdue, time.monotonic())
    until(lambda: not counts.in_flight)
    assert _closed(counts) == failed + 1
    until(lambda: not engine.running)  # its run is counted at its end, which would be in another test


def test_a_memory_whose_client_has_gone_is_not_stored(service, engine, memories):
    ids = str([[1] * 510] * 256)  # whose keys take a second
    stored = {*memories.iterdir()}
    with Client(service) as client:
        client.send(http(f'{{"block": "decoder", "input_ids": {ids}}}'.encode(), "/v1/memories"))
        until(lambda: engine.running or engine.queued)
    until(lambda: not (service.budget.used or engine.running or engine.queued))
    assert {*memories.iterdir()} == stored


def test_the_deadline_ends_an_append_that_waits_for_another(service, memories):
    row = b'{"key": [[1.0]], "value": [[1.0]]}'
    with Client(service) as client:
        id = json.loads(client.ask(http(row, "/v1/memories")).body)["id"]
        append = f"/v1/memories/{id}/append"
        with (memories / id / "state").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert client.ask(http(row, append, "X-Request-Timeout: 0.05")).status == 504
        assert client.ask(http(row, append)).status == 200


def test_the_deadline_of_a_memory_is_that_of_its_run(service):
    body = b'{"block": "decoder", "input_ids": [[1, 2]]}'
    with Client(service) as client:
        statuses = [
            client.ask(http(body, "/v1/memories", f"X-Request-Timeout: {value}")).status for value in (0, "abc")
        ]
    assert statuses == [504, 400]


@pytest.mark.anyio
async def test_what_begins_after_the_disconnect_is_cancelled():
    is_gone = asyncio.Event()

    async def receive() -> dict[str, str]:
        is_gone.set()
        return {"type": "http.disconnect"}

    client = ClientWatch(receive)
    client.start()
    await is_gone.wait()
    work = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(ClientDisconnect):
        await client.cancel_on_disconnect(work, work.cancel)
    assert work.cancelled()


@pytest.mark.anyio
async def test_a_disconnect_during_a_stage_in_a_thread_ends_the_stages():
    done = []

    def check() -> None:
        if done:
            raise ClientDisconnect

    def stages():
        yield Stage(CostModel(), 1, lambda: done.append("first"))
        yield Stage(CostModel(), 1, lambda: done.append("second"))

    offload = Offload(1)
    with pytest.raises(ClientDisconnect):
        await run_stages(stages(), offload, check)
    offload.close()
    assert done == ["first"]


def _closed(counts) -> int:
    return sum(count for (_, _, status), count in counts.failed.items() if status == CLIENT_CLOSED_REQUEST)
