"""What is left of memories when processes are killed, disks are full, and several workers share them."""

import os
import resource
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from tests.support.application import running
from tests.support.attending import attend
from tests.support.memories import append, lengths, normal, send, store
from tests.support.server import serving, started
from tests.support.waiting import until

MIB = 1 << 20
ROW = normal(1, 2, 1, 64)


def scores(client, memory):
    return attend(client, query=ROW, memory=memory, outputs=["scores", "output"])


def connected(service):
    return httpx.Client(base_url=service.url, timeout=60)


def append_until(memory, service, ended):
    """The status of each append of a row by one client; 0 where the connection broke."""
    statuses = []
    while not ended():
        try:
            with connected(service) as client:
                statuses.append(append(client, memory, key=ROW, value=ROW).status_code)
        except httpx.TransportError:
            statuses.append(0)
    return statuses


@pytest.mark.extended
def test_a_killed_server_loses_nothing_that_it_confirmed(two_blocks, tmp_path):
    """It is killed while a client appends; what was confirmed is there, what was not is there whole or not at all."""
    folder = tmp_path / "memories"
    key, value = normal(1, 2, 300, 64), normal(1, 2, 300, 64, seed=1)
    with started(two_blocks, tmp_path / "first", "--memories", str(folder)) as service:
        with connected(service) as client:
            memory, other = (store(client, key=key, value=value) for _ in range(2))
        with ThreadPoolExecutor(1) as threads:
            appending = threads.submit(append_until, memory["id"], service, lambda: service.process.poll() is not None)
            with connected(service) as client:
                until(lambda: lengths(client, memory["id"])[0] > 310)
            os.kill(service.process.pid, signal.SIGKILL)
            confirmed = appending.result().count(200)
    unfinished = folder / f".{'x' * 24}"
    unfinished.mkdir()
    with serving(two_blocks, "--memories", str(folder)) as client:
        (length,) = lengths(client, memory["id"])
        assert length in (300 + confirmed, 301 + confirmed)
        again = send(client, "/v1/memories", key=key, value=value, headers={"If-None-Match": f'"{other["content"]}"'})
        assert (again.status_code, again.json()["id"]) == (200, other["id"])
        more = [ROW] * (length - 300)
        whole = {"key": np.concatenate([key, *more], 2), "value": np.concatenate([value, *more], 2)}
        expected = attend(client, query=ROW, **whole, outputs=["scores", "output"])
        for name, array in scores(client, memory["id"]).items():
            np.testing.assert_array_equal(array, expected[name])
        assert not unfinished.exists()


@pytest.mark.extended
def test_a_worker_killed_while_it_appends_leaves_the_memory_before_or_after(two_blocks, tmp_path):
    flags = ("--memories", str(tmp_path / "memories"), "--workers", "2")
    with started(two_blocks, tmp_path / "log", *flags) as service, ThreadPoolExecutor(3) as threads:
        with connected(service) as client:
            memory = store(client, key=ROW, value=ROW)["id"]
        done = threading.Event()
        try:
            appending = [threads.submit(append_until, memory, service, done.is_set) for _ in range(3)]
            for _ in range(3):
                with connected(service) as client:
                    before = lengths(client, memory)[0]
                    until(lambda client=client, before=before: lengths(client, memory)[0] > before + 5)
                os.kill(min(service.workers()), signal.SIGKILL)
                until(lambda: len(service.workers()) == 2)
        finally:
            done.set()
        statuses = [status for each in appending for status in each.result()]
        until(lambda: service.gauge("workers_ready") == 2)
        with connected(service) as client:
            (length,) = lengths(client, memory)
            assert statuses.count(200) <= length - 1 <= statuses.count(200) + statuses.count(0)
            assert np.unique(scores(client, memory)["scores"][0, 0]).size == 1


def test_a_full_disk_is_refused_and_nothing_is_lost(two_blocks, tmp_path):
    """No file may be longer than 4 MiB, as if that was all the room left."""
    large, limits = normal(1, 2, 9000, 64), resource.getrlimit(resource.RLIMIT_FSIZE)
    with running(two_blocks, memories=tmp_path) as client:
        memory = store(client, key=normal(1, 2, 5000, 64), value=normal(1, 2, 5000, 64))["id"]
        expected, files = scores(client, memory), sorted(tmp_path.rglob("*"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MIB, limits[1]))
        try:
            refused = [send(client, "/v1/memories", key=large, value=large)]
            refused.append(append(client, memory, key=large, value=large))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        for response in refused:
            assert (response.status_code, "disk" in response.json()["detail"]) == (507, True), response.text
        assert sorted(tmp_path.rglob("*")) == files
        assert lengths(client, memory) == [5000]
        np.testing.assert_array_equal(scores(client, memory)["output"], expected["output"])
        assert append(client, memory, key=ROW, value=ROW).status_code == 200


@pytest.mark.extended
def test_a_temporary_folder_is_deleted_at_the_end(two_blocks, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for sent, before, left in ((signal.SIGTERM, 0, 0), (signal.SIGKILL, 0, 1), (signal.SIGTERM, 1, 0)):
        with started(two_blocks, tmp_path / "log") as service:
            until(service.is_ready)
            assert len([*tmp_path.glob("heed-memories-*")]) == before
            with connected(service) as client:
                store(client, key=ROW, value=ROW)  # now it makes its own, and deletes what others left
            assert len([*tmp_path.glob("heed-memories-*")]) == 1
            service.process.send_signal(sent)
            until(lambda service=service: service.process.poll() is not None)
        assert len([*tmp_path.glob("heed-memories-*")]) == left


def test_without_a_place_to_write_it_serves_and_stores_nothing(two_blocks, monkeypatch):
    """As in a container whose root cannot be written: no temporary folder can be made."""
    monkeypatch.setenv("TMPDIR", "/proc")
    with running(two_blocks) as client:
        assert "output" in attend(client, query=[[1.0]], key=[[1.0]], value=[[1.0]])
        response = send(client, "/v1/memories", key=ROW, value=ROW)
        assert (response.status_code, "HEED_MEMORIES" in response.json()["detail"]) == (507, True)
        assert client.get("/v1/memories").json()["memories"] == []
