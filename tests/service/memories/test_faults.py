"""What is left of memories when processes are killed, disks are full, and several workers share them."""

import os
import re
import signal
import tempfile
import threading
from pathlib import Path

import httpx
import numpy as np

from tests.support.attending import attend
from tests.support.in_process import serving_in_process
from tests.support.memories import append, lengths, normal, send, store
from tests.support.server import command, launched, serving, started
from tests.support.waiting import until

MIB = 1 << 20
ROW = normal(1, 2, 1, 64)


def scores(client, memory):
    return attend(client, query=normal(1, 2, 1, 64), memory=memory, outputs=["scores", "output"])


def test_a_killed_server_loses_nothing_that_it_confirmed(few_blocks, tmp_path):
    """It is killed while clients append; what was confirmed is there, what was not is there whole or not at all."""
    folder = tmp_path / "memories"
    key, value = normal(1, 2, 300, 64), normal(1, 2, 300, 64, seed=1)
    confirmed = 0
    with started(few_blocks, tmp_path / "first", "--memories", str(folder)) as service:
        with httpx.Client(base_url=service.url, timeout=60) as client:
            memory, other = (store(client, key=key, value=value) for _ in range(2))
            killer = threading.Timer(0.5, os.kill, (service.process.pid, signal.SIGKILL))
            killer.start()
            try:
                while append(client, memory["id"], key=ROW, value=ROW, at=300 + confirmed).status_code == 200:
                    confirmed += 1
            except httpx.TransportError:
                pass
            killer.join()
        until(lambda: service.process.poll() is not None)
    unfinished = folder / f".{'x' * 24}"
    unfinished.mkdir()
    with serving(few_blocks, "--memories", str(folder)) as client:
        assert confirmed > 0
        assert lengths(client, memory["id"])[0] in (300 + confirmed, 301 + confirmed)
        again = send(client, "/v1/memories", key=key, value=value, headers={"If-None-Match": f'"{other["content"]}"'})
        assert (again.status_code, again.json()["id"]) == (200, other["id"])
        length = lengths(client, memory["id"])[0]
        whole = [np.concatenate([part, *[ROW] * (length - 300)], 2) for part in (key, value)]
        expected = attend(client, query=normal(1, 2, 1, 64), key=whole[0], value=whole[1], outputs=["scores", "output"])
        for name, array in scores(client, memory["id"]).items():
            np.testing.assert_array_equal(array, expected[name])
        assert not unfinished.exists()


def test_a_worker_killed_while_it_appends_leaves_the_memory_before_or_after(few_blocks, tmp_path):
    flags = ("--memories", str(tmp_path / "memories"), "--workers", "2")
    with started(few_blocks, tmp_path / "log", *flags) as service:
        with httpx.Client(base_url=service.url, timeout=60) as client:
            memory = store(client, key=ROW, value=ROW)["id"]
        confirmed, rows, done = [], np.repeat(ROW, 500, 2), threading.Event()

        def append_often():
            while not done.is_set():
                try:
                    with httpx.Client(base_url=service.url, timeout=60) as own:
                        confirmed.append(append(own, memory, key=rows, value=rows).status_code)
                except httpx.TransportError:
                    confirmed.append(0)

        threads = [threading.Thread(target=append_often) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            before = len(confirmed)
            until(lambda before=before: len(confirmed) > before + 5)
            os.kill(min(service.workers()), signal.SIGKILL)
            until(lambda: len(service.workers()) == 2)
        done.set()
        for thread in threads:
            thread.join()
        until(lambda: service.gauge("workers_ready") == 2)
        with httpx.Client(base_url=service.url, timeout=60) as client:
            (length,) = lengths(client, memory)
            assert (length - 1) % 500 == 0
            assert confirmed.count(200) <= (length - 1) // 500 <= confirmed.count(200) + confirmed.count(0)
            assert np.unique(scores(client, memory)["scores"][0, 0]).size == 1


def test_a_full_disk_is_refused_and_nothing_is_lost(few_blocks, tmp_path):
    """No file may be longer than 4 MiB, as if that was all the room left."""
    limited = [
        "bash",
        "-c",
        'ulimit -f 4096 && exec "$@"',
        "bash",
        *command(few_blocks, "--memories", str(tmp_path / "m")),
    ]
    with launched(limited, tmp_path / "log") as service:
        until(service.is_ready)
        with httpx.Client(base_url=service.url, timeout=60) as client:
            memory = store(client, key=normal(1, 2, 5000, 64), value=normal(1, 2, 5000, 64))["id"]
            expected = scores(client, memory)
            large = normal(1, 2, 9000, 64)
            for response in (
                send(client, "/v1/memories", key=large, value=large),
                append(client, memory, key=large, value=large),
            ):
                assert (response.status_code, "disk" in response.json()["detail"]) == (507, True), response.text
            assert lengths(client, memory) == [5000]
            np.testing.assert_array_equal(scores(client, memory)["output"], expected["output"])
            assert append(client, memory, key=ROW, value=ROW).status_code == 200
            assert not [path for path in (tmp_path / "m").iterdir() if path.is_dir() and path.name.startswith(".")]


def test_workers_share_one_copy(few_blocks, tmp_path):
    """Proportional memory of 4 workers grows by the size of the memory, once."""
    size = 2 * 32 * MIB
    array = np.zeros((1, 1, 32 * MIB // 256, 64), np.float32)
    with started(few_blocks, tmp_path / "log", "--workers", "4", "--memories", str(tmp_path / "m")) as service:
        until(lambda: service.gauge("workers_ready") == 4)
        before, seen = proportional(service), set()
        with httpx.Client(base_url=service.url, timeout=120) as client:
            memory = store(client, key=array[:, :, :100], value=array[:, :, :100])["id"]
            for _ in range(4):
                append(client, memory, key=array[:, :, : array.shape[2] // 4], value=array[:, :, : array.shape[2] // 4])

        def all_have_used_it():
            with httpx.Client(base_url=service.url, timeout=120) as client:
                attend(client, query=[[1.0] * 64], memory=memory, outputs=["output"])
                seen.update(service.worker_of().values())
            return len(seen) == 4

        until(all_have_used_it)
        assert proportional(service) - before < 2.5 * size


def proportional(service):
    """Bytes of all processes of the service; what several map counts in parts."""
    smaps = [Path(f"/proc/{worker}/smaps_rollup").read_text() for worker in service.workers()]
    return 1024 * sum(int(re.search(r"Pss:\s+(\d+) kB", text)[1]) for text in smaps)


def test_a_temporary_folder_is_deleted_at_the_end(few_blocks, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for sent, before, left in ((signal.SIGTERM, 0, 0), (signal.SIGKILL, 0, 1), (signal.SIGTERM, 1, 0)):
        with started(few_blocks, tmp_path / "log") as service:
            until(service.is_ready)
            assert len([*tmp_path.glob("heed-memories-*")]) == before
            with httpx.Client(base_url=service.url) as client:
                store(client, key=ROW, value=ROW)  # now it makes its own, and deletes what others left
            assert len([*tmp_path.glob("heed-memories-*")]) == 1
            service.process.send_signal(sent)
            until(lambda service=service: service.process.poll() is not None)
        assert len([*tmp_path.glob("heed-memories-*")]) == left


def test_without_a_place_to_write_it_serves_and_stores_nothing(few_blocks, monkeypatch):
    """As in a container whose root cannot be written: no temporary folder can be made."""
    monkeypatch.setattr(tempfile, "mkdtemp", no_room)
    with serving_in_process(few_blocks) as service, httpx.Client(base_url=f"http://127.0.0.1:{service.port}") as client:
        assert "output" in attend(client, query=[[1.0]], key=[[1.0]], value=[[1.0]])
        response = send(client, "/v1/memories", key=ROW, value=ROW)
        assert (response.status_code, "HEED_MEMORIES" in response.json()["detail"]) == (507, True)
        assert client.get("/v1/memories").json()["memories"] == []


def no_room(**_):
    raise FileNotFoundError(2, "No usable temporary directory")
