"""No room left on the disk: what needs room is refused in words, all else is served on."""

import base64
import json
import os
import socket
import subprocess
from contextlib import closing, contextmanager, suppress

import httpx
import pytest

from tests.support import graphs
from tests.support.http_client import ADD, ADDED, Connection
from tests.support.server import command, launched, listening_port
from tests.support.waiting import until

INFER = "/v2/models/adder/infer"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    graphs.adder(folder / "adder" / "1")
    return folder


@contextmanager
def ready_client(process):
    """A client of a server whose log cannot be read, once it is ready."""
    port = until(lambda: listening_port(process))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        until(lambda: client.get("/v2/health/ready").status_code == 200)
        yield client


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_log_without_room_stops_nobody(models, workers):
    with open("/dev/full", "w") as full:
        arguments = command(models, "--workers", workers, "--access-log", "all")
        process = subprocess.Popen(arguments, stdout=full, stderr=full)
    try:
        with ready_client(process) as client:
            for _ in range(3):
                assert client.post(INFER, content=ADD).json()["outputs"][0]["data"] == ADDED
                assert client.post("/v2/models/none/infer", content=ADD).status_code == 404
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_load_whose_files_find_no_room_is_refused(models, tmp_path):
    """What was served is served on, and a smaller one is loaded: no file may be longer than 16 KiB, the log neither."""
    limited = ["bash", "-c", 'ulimit -f 16 && exec "$@"', "bash", *command(models, "--model-control-mode", "explicit")]
    with launched(limited, tmp_path / "log") as service:
        until(service.is_ready)
        model = (models / "adder" / "1" / "model.onnx").read_bytes()
        for content, status in ((bytes(40_000), 503), (model, 200), (bytes(40_000), 503)):
            files = {"config": "{}", "file:1/model.onnx": base64.b64encode(content).decode()}
            with closing(Connection(service.port)) as connection:
                connection.request("POST", "/v2/repository/models/adder/load", json.dumps({"parameters": files}))
                response = connection.getresponse()
                said = response.read().decode()
                assert response.status == status, said
                if status == 503:
                    assert "failed to load 'adder', its files cannot be written: File too large" in said
                    assert response.headers["Retry-After"] == "1"
                connection.add()
        assert "Traceback" not in service.log.read_text()
        service.process.terminate()
        assert service.ended() == 0


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_log_that_nobody_reads_stops_nobody(models, workers, kind):
    """Lines that find no room are lost; once it is read again, the next line says how many."""
    flags = ["--workers", workers, "--access-log", "all", "--log-format", "json"]
    reading, writing = os.pipe() if kind == "pipe" else (end.detach() for end in socket.socketpair())
    process = subprocess.Popen(command(models, *flags), stdout=writing, stderr=writing)
    os.close(writing)
    try:
        with ready_client(process) as client:
            for _ in range(1500):
                assert client.post("/v2/models/none/infer", content=ADD).status_code == 404
            assert client.post(INFER, content=ADD).json()["outputs"][0]["data"] == ADDED
            lines = b""
            os.set_blocking(reading, False)

            def events() -> list[dict]:
                nonlocal lines
                with suppress(BlockingIOError):
                    while piece := os.read(reading, 1 << 16):
                        lines += piece
                client.post("/v2/models/none/infer", content=ADD)
                return [json.loads(line) for line in lines.splitlines() if line.endswith(b"}")]

            until(lambda: sum(event.get("lost", 0) for event in events()) > 100)
            assert len(events()) < 1500
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)
