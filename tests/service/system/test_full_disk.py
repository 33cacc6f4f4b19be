"""No room left on the disk: what needs room is refused in words, all else is served on."""

import base64
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress

import httpx
import pytest

from tests.conftest import until_ready
from tests.service.workers.test_workers import ADD, ADDED, Connection, Service, until
from tests.support import graphs

INFER = "/v2/models/adder/infer"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    graphs.adder(folder / "adder" / "1")
    return folder


def command(models, *flags: str) -> list[str]:
    return [sys.executable, "-m", "service", "--port", "0", "--model-repository", str(models), *flags]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_log_without_room_stops_nobody(models, workers, free_port):
    flags = ["--port", str(free_port), "--workers", workers, "--access-log", "all"]
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(command(models, *flags), stdout=full, stderr=full)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{free_port}") as client:
            until_ready(client, process)
            for _ in range(3):
                assert client.post(INFER, content=ADD).json()["outputs"][0]["data"] == ADDED
                assert client.post("/v2/models/none/infer", content=ADD).status_code == 404
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_a_load_whose_files_find_no_room_is_refused(models, tmp_path):
    """What was served is served on, and a smaller one is loaded: no file may be longer than 16 KiB, the log neither."""
    log = tmp_path / "log"
    limited = ["bash", "-c", 'ulimit -f 16 && exec "$@"', "bash", *command(models, "--model-control-mode", "explicit")]
    with log.open("w") as file:
        process = subprocess.Popen(limited, stdout=file, stderr=subprocess.STDOUT)
    try:
        service = Service(process, log)
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
        assert "Traceback" not in log.read_text()
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_log_that_nobody_reads_stops_nobody(models, workers, kind, free_port):
    """Lines that find no room are lost; once it is read again, the next line says how many."""
    flags = ["--port", str(free_port), "--workers", workers, "--access-log", "all", "--log-format", "json"]
    reading, writing = os.pipe() if kind == "pipe" else (end.detach() for end in socket.socketpair())
    process = subprocess.Popen(command(models, *flags), stdout=writing, stderr=writing)
    os.close(writing)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{free_port}", timeout=10) as client:
            until_ready(client, process)
            for _ in range(1500):
                assert client.post("/v2/models/none/infer", content=ADD).status_code == 404
            assert client.post(INFER, content=ADD).json()["outputs"][0]["data"] == ADDED
            lines = b""
            os.set_blocking(reading, False)
            for _ in range(20):
                with suppress(BlockingIOError):
                    while piece := os.read(reading, 1 << 16):
                        lines += piece
                client.post("/v2/models/none/infer", content=ADD)
                time.sleep(0.05)
            events = [json.loads(line) for line in lines.splitlines() if line.endswith(b"}")]
            assert len(events) < 1500
            assert sum(event.get("lost", 0) for event in events) > 100
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)
