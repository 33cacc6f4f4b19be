"""No room left on the disk: what needs room is refused in words, all else is served on."""

import base64
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.http_client import ADD, ADDED
from tests.support.server import command, launched, listening_port
from tests.support.waiting import until

INFER = "/v2/models/adder/infer"


WORKERS = pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.extended)])
UNKNOWN = "/v2/models/none/infer"


@contextmanager
def serving(models: Path, output: int, *flags: str) -> Iterator[httpx.Client]:
    """A client of a server whose log is ``output``, which cannot be read; it ends in good order."""
    process = subprocess.Popen(command(models, *flags, "--access-log", "all"), stdout=output, stderr=output)
    os.close(output)
    try:
        port = until(lambda: listening_port(process))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            until(lambda: client.get("/v2/health/ready").status_code == 200)
            yield client
            assert client.post(INFER, content=ADD).json()["outputs"][0]["data"] == ADDED
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@WORKERS
def test_a_log_without_room_stops_no_request(adder, workers):
    with serving(adder, os.open("/dev/full", os.O_WRONLY), "--workers", workers) as client:
        for _ in range(3):
            assert client.post(UNKNOWN, content=ADD).status_code == 404


def test_a_load_whose_files_find_no_room_is_refused(adder, tmp_path):
    """What was served is served on, and a smaller one is loaded: no file may be longer than 16 KiB, the log neither."""
    limited = ["bash", "-c", 'ulimit -f 16 && exec "$@"', "bash", *command(adder, "--model-control-mode", "explicit")]
    with launched(limited, tmp_path / "log") as service:
        until(service.is_ready)
        model = (adder / "adder" / "1" / "model.onnx").read_bytes()
        for content, status in ((bytes(40_000), 503), (model, 200), (bytes(40_000), 503)):
            files = {"config": "{}", "file:1/model.onnx": base64.b64encode(content).decode()}
            load = f"{service.url}/v2/repository/models/adder/load"
            answer = httpx.post(load, json={"parameters": files}, timeout=60)
            assert answer.status_code == status, answer.text
            if status == 503:
                assert "failed to load 'adder', its files cannot be written: File too large" in answer.text
                assert answer.headers["Retry-After"] == "1"
            service.add()
        assert "Traceback" not in service.log.read_text()
        service.process.terminate()
        assert service.ended() == 0


@WORKERS
@pytest.mark.parametrize("kind", ["pipe", pytest.param("socket", marks=pytest.mark.extended)])
def test_a_log_that_is_not_read_stops_no_request(adder, workers, kind):
    """Lines that find no room are lost; once it is read again, the next line says how many."""
    reading, writing = os.pipe() if kind == "pipe" else (end.detach() for end in socket.socketpair())
    flags = ["--workers", workers, "--log-format", "json"]
    with open(reading, "rb") as log, serving(adder, writing, *flags) as client:
        for _ in range(1500):
            assert client.post(UNKNOWN, content=ADD).status_code == 404
        assert client.post(INFER, content=ADD).json()["outputs"][0]["data"] == ADDED
        lines = b""
        os.set_blocking(reading, False)

        def events() -> list[dict]:
            nonlocal lines
            lines += log.read() or b""
            client.post(UNKNOWN, content=ADD)
            return [json.loads(line) for line in lines.splitlines() if line.endswith(b"}")]

        until(lambda: sum(event.get("lost", 0) for event in events()) > 100)
        counts = [event["lost"] for event in events() if "lost" in event]
        assert min(counts) > 0
        assert len(events()) < 1500
