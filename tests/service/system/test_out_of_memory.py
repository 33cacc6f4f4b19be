"""A process that is given no more memory: requests are refused with 503, none is a 500, and afterwards all is well."""

import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn
from onnxruntime.capi.onnxruntime_pybind11_state import RuntimeException

from heed_client.v2 import binary_request
from service.base.errors import NotEnoughMemory, OutOfMemory
from service.http import fast_path as protocol
from service.http.response import error_response, failure
from service.ort.provider import Provider
from tests.support import graphs
from tests.support.attending import coded
from tests.support.in_process import Client, known, serving_in_process
from tests.support.scripts import run_script
from tests.support.server import MIB, command, launched
from tests.support.v2 import tensor
from tests.support.waiting import until

SDPA = "/v1/attention/scaled_dot_product"
INFER = "/v2/models/scaled_dot_product/infer"
NAMES = ("query", "key", "value")
NOTATIONS = ["lists", "flat", "base64", "v2", "binary"]
ROWS = 2000  # queries and keys: 16 MB of weights, 60 MB of JSON


@pytest.fixture(scope="module")
def service(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "scaled_dot_product").symlink_to(repository / "scaled_dot_product")
    graphs.adder(folder / "adder" / "1")
    root = Path(__file__).parents[3]
    arguments = [sys.executable, Path(__file__).with_name("inline.py"), *command(folder, "--workers", "1")[3:]]
    environment = {"PYTHONPATH": f"{root}{os.pathsep}{root / 'clients'}"}
    with launched(arguments, tmp_path_factory.mktemp("log") / "log", environment=environment) as service:
        until(service.is_ready)
        for notation in NOTATIONS * 2:  # glibc ends a process that has no memory for a new thread's own data
            path, body, headers = request(notation, ROWS)
            httpx.post(service.url + path, content=body, headers=headers, timeout=60)
        yield service


def request(notation: str, rows: int) -> tuple[str, bytes, dict[str, str]]:
    """Path, body and headers."""
    numbers = np.linspace(-1, 1, rows, dtype=np.float32)[:, None]
    if notation == "binary":
        headers, pieces = binary_request(dict.fromkeys(NAMES, numbers[None, None]))
        return INFER, b"".join(pieces), headers
    if notation == "v2":
        return INFER, json.dumps({"inputs": [tensor(name, numbers[None, None]) for name in NAMES]}).encode(), {}
    form = {
        "lists": numbers.tolist(),
        "flat": {"shape": [rows, 1], "data": numbers.ravel().tolist()},
        "base64": coded(numbers),
    }[notation]
    return SDPA, json.dumps(dict.fromkeys(NAMES, form)).encode(), {}


@pytest.mark.extended
@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("room", [8, 40])  # MiB
def test_what_finds_no_memory_is_503(service, notation, room):
    """Wherever it runs out: for the body, the arrays, the run, or the answer."""
    path, body, headers = request(notation, ROWS)
    large = request(notation, 200_000 if notation == "lists" else 400_000)
    before = resource.prlimit(service.process.pid, resource.RLIMIT_AS)
    resource.prlimit(service.process.pid, resource.RLIMIT_AS, (service.resident("VmSize") + room * MIB, before[1]))
    try:
        with httpx.Client(base_url=service.url, timeout=60) as client:
            answers = []
            for target, content, fields in [(path, body, headers), large] * 2:
                with suppress(httpx.TransportError):  # an answer that had begun can only be cut off
                    answers.append(client.post(target, content=content, headers=fields))
    finally:
        resource.prlimit(service.process.pid, resource.RLIMIT_AS, before)
    assert answers
    for response in answers:
        assert response.status_code in (200, 400, 413, 503), response.text
        if response.status_code == 503:
            assert ("memory" in response.text, response.headers["Retry-After"]) == (True, "1")
    service.add()
    assert httpx.post(service.url + path, content=body, headers=headers, timeout=60).status_code == 200
    log = service.log.read_text()  # the event loop's own buffers may fail, too; its traceback has none of these files
    assert str(Path(protocol.__file__).parent) not in log, log[-3000:]
    metrics = httpx.get(f"{service.url}/metrics").text
    assert 'heed_requests_rejected_total{reason="memory"}' in metrics
    assert 'status="500"' not in metrics


def test_every_way_to_say_it_is_503():
    bad_alloc = RuntimeException("Exception: std::bad_alloc")
    arena = RuntimeError("Failed to allocate memory for requested buffer of size 4096")
    on_cpu, on_cuda = Provider("cpu", "requested"), Provider("cuda", "requested")
    with pytest.raises(MemoryError) as of_numpy:
        np.empty(1 << 60, np.uint8)
    translated = [on_cpu.translate(bad_alloc), on_cpu.translate(arena), on_cuda.translate(bad_alloc)]
    for error in (MemoryError(), of_numpy.value, *translated):
        for path, api in (("/v1/attention/x", "native"), ("/v2/models/x/infer", "v2")):
            response = error_response(path, error)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert b"too little free memory" in response.body
            assert failure(error, api == "v2") == (503, "memory")
    assert isinstance(on_cuda.translate(arena), OutOfMemory)
    assert isinstance(on_cpu.translate(arena), NotEnoughMemory)


def failing(*_, **__):
    raise MemoryError


@pytest.fixture
def running(adder):
    with serving_in_process(adder) as running:
        yield running


def test_a_run_that_finds_none_and_an_answer_of_the_fast_path_where_it_is_joined(running, monkeypatch):
    with Client(running) as client, monkeypatch.context() as patch:
        request = known(client)
        patch.setattr(running.server._repository.model("adder"), "run", failing)
        assert client.ask(request).status == 503
    with Client(running) as client:
        request = known(client)
        monkeypatch.setattr(protocol, "join", failing)
        answer = client.ask_quick(request)
        assert (answer.status, answer.fields["retry-after"]) == (503, "1")
        assert client.is_closed()
    assert running.server.protocol.keywords["counts"].refused["memory"] == 2


def test_a_tick_that_finds_none_does_not_end_the_server(running, monkeypatch):
    ticks = []

    async def without_memory(server, counter):
        ticks.append(counter)
        raise MemoryError

    with Client(running) as client, monkeypatch.context() as patch:
        request = known(client)
        patch.setattr(uvicorn.Server, "on_tick", without_memory)
        until(lambda: len(ticks) > 2)
        assert client.ask(request).status == 200


LAST_RESORT = """
import resource
import sys
from pathlib import Path
from service.workers.last_resort import end_unless_called_again

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), -1))
end_unless_called_again(100)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
end_unless_called_again(0.1)
while True:
    pass
"""


def test_there_may_be_none_for_the_thread_of_the_last_resort():
    with pytest.raises(AssertionError, match="Timeout"):
        run_script(LAST_RESORT)
