"""Models come and go while requests go on: none is lost, each is answered by one version, whole."""

import errno
import json
import os
import shutil
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.repository.repository import Repository
from service.settings import Settings
from tests.support import graphs
from tests.support.server import serving
from tests.support.v2 import infer, tensor
from tests.support.waiting import until

BODY = {"inputs": [tensor("x", [[0, 0, 0]]), tensor("z", [[0, 0, 0]])]}


MIN_ANSWERS = 50


class Load(threading.Thread):
    """Requests without a pause, until it is told to stop; keeps what was answered."""

    def __init__(self, address):
        super().__init__()
        self.address, self.stopped, self.answers = address, threading.Event(), []
        self.began = threading.Event()

    def run(self):
        with httpx.Client(base_url=self.address, timeout=30) as client:
            while not self.stopped.is_set():
                response = infer(client, "adder", BODY)
                self.answers.append((response.status_code, response.json()))
                self.began.set()

    def __enter__(self):
        self.start()
        assert self.began.wait(60)
        return self

    def __exit__(self, *_):
        until(lambda: len(self.answers) > MIN_ANSWERS or not self.is_alive())
        self.stopped.set()
        self.join()

    def versions(self):
        return {answer.get("model_version") for _, answer in list(self.answers)}

    def check(self):
        """Every answer is right for the version it says answered it."""
        assert len(self.answers) > MIN_ANSWERS
        for status, answer in self.answers:
            assert status == 200, answer
            assert answer["outputs"][0]["data"] == [float(answer["model_version"])] * 3
        return self.versions()


def test_reload_under_load_loses_nothing(tmp_path):
    graphs.adder(tmp_path / "adder" / "1", 1.0)
    with serving(tmp_path, "--model-control-mode", "explicit") as client, Load(client.base_url) as load:
        for version in range(2, 12):
            graphs.adder(tmp_path / "adder" / str(version), float(version))
            assert client.post("/v2/repository/models/adder/load").status_code == 200
            assert infer(client, "adder", BODY).json()["model_version"] == str(version)
            until(lambda version=version: str(version) in load.versions())
        (tmp_path / "adder" / "12").mkdir()
        (tmp_path / "adder" / "12" / "model.onnx").write_bytes(b"not onnx")
        response = client.post("/v2/repository/models/adder/load")
        assert "failed to load 'adder'" in response.json()["error"]
        assert infer(client, "adder", BODY).json()["model_version"] == "11"
    assert len(load.check()) > 5


def test_poll_follows_the_folder(tmp_path):
    graphs.adder(tmp_path / "adder" / "1", 1.0)
    mode = ("--model-control-mode", "poll", "--model-poll-seconds", "0.1", "--versions", "latest:2")
    with serving(tmp_path, *mode) as client, Load(client.base_url) as load:
        for version in (2, 3):
            graphs.adder(tmp_path / "new", float(version))  # elsewhere first: a file is moved in whole
            (tmp_path / "adder" / str(version)).mkdir()
            os.replace(tmp_path / "new" / "model.onnx", tmp_path / "adder" / str(version) / "model.onnx")
            until(lambda version=version: infer(client, "adder", BODY, version).status_code == 200)
        assert infer(client, "adder", BODY, 1).status_code == 404  # latest:2
        shutil.rmtree(tmp_path / "adder" / "3")
        until(lambda: client.get("/v2/models/adder").json()["versions"] == ["1", "2"])
        graphs.adder(tmp_path / "other" / "1", 5.0)
        until(lambda: "other" in client.get("/v2/models").json()["models"])
        shutil.rmtree(tmp_path / "other")
        until(lambda: "other" not in client.get("/v2/models").json()["models"])
    assert load.check() == {"1", "2", "3"}


def test_a_request_in_flight_finishes_on_the_version_it_started_on(tmp_path):
    graphs.slow(tmp_path / "slow" / "1", 2000)
    rows = {"inputs": [tensor("x", np.ones((512, 512)))]}
    body = json.dumps(rows).encode()
    with serving(tmp_path, "--model-control-mode", "explicit") as client:
        answers = []

        def ask():
            with httpx.Client(base_url=client.base_url, timeout=60) as own:
                answers.append(infer(own, "slow", body))

        flying = threading.Thread(target=ask)
        flying.start()
        until(lambda: "\nheed_runs_in_progress 1.0\n" in client.get("/metrics").text)
        assert client.get("/v2/health/ready").status_code == 200
        assert flying.is_alive()  # the event loop is free while it computes
        assert client.post("/v2/repository/models/slow/unload").status_code == 200
        in_flight = flying.is_alive()
        assert client.get("/v2/models/slow/ready").status_code == 404
        flying.join()
    assert in_flight
    assert answers[0].status_code == 200
    assert answers[0].json()["model_version"] == "1"


@pytest.mark.parametrize(
    ("policy", "served"),
    [("all", ["1", "2", "10"]), ("latest:1", ["10"]), ("latest:2", ["2", "10"]), ("1,10,11", ["1", "10"])],
)
def test_version_policies(tmp_path, policy, served):
    for version in (1, 2, 10):
        graphs.adder(tmp_path / "adder" / str(version), float(version))
    repository = Repository(Settings(model_repository=tmp_path, versions=policy).sized())
    repository.open()
    repository.load()
    assert list(map(str, repository.models["adder"])) == served
    assert str(repository.model("adder").version) == served[-1]


def test_a_changed_file_that_fails_leaves_the_old(tmp_path):
    graphs.adder(tmp_path / "adder" / "1", 1.0)
    repository = Repository(Settings(model_repository=tmp_path).sized())
    repository.open()
    repository.load()
    old = repository.model("adder")
    repository.poll()
    assert repository.model("adder") is old
    (tmp_path / "adder" / "1" / "model.onnx").write_bytes(b"not onnx")
    repository.poll()
    assert repository.model("adder") is old
    assert repository.index()[-1].state == "UNAVAILABLE"
    repository.poll()
    graphs.adder(tmp_path / "adder" / "1", 3.0)
    repository.poll()
    assert repository.model("adder") is not old
    assert [line.state for line in repository.index()] == ["READY"]


@pytest.mark.parametrize("wrong", ["", "latest", "latest:0", "1,", "newest", "1;2"])
def test_wrong_policies_are_refused(wrong):
    with pytest.raises(ValueError, match="versions"):
        Settings(versions=wrong)


def test_explicit_control_needs_one_process():
    with pytest.raises(ValueError, match="explicit needs workers 1"):
        Settings(workers=2, model_control_mode="explicit")


def away(repository):
    """As an unmounted volume leaves it: without the folder, or with its empty mount point; and how it comes back."""
    aside = repository.with_name("aside")
    repository.rename(aside)
    return lambda: (shutil.rmtree(repository, ignore_errors=True), aside.rename(repository))


@pytest.mark.parametrize("mount_point", [False, True])
def test_a_repository_that_vanishes_unloads_nothing(tmp_path, mount_point):
    """All is served on, and said once, not at each look; what changed meanwhile is followed when it is back."""
    folder = tmp_path / "models"
    for name in ("adder", "other"):
        graphs.adder(folder / name / "1", 1.0)

    def readable(client):
        return "heed_model_repository_readable 1.0" in client.get("/metrics").text

    with serving(folder, "--model-control-mode", "poll", "--model-poll-seconds", "0.1") as client:
        before = infer(client, "adder", BODY).content
        assert readable(client)
        back = away(folder)
        if mount_point:
            folder.mkdir()
        until(lambda: not readable(client))
        time.sleep(0.5)
        assert client.get("/v2/models").json()["models"] == ["adder", "other"]
        assert infer(client, "adder", BODY).content == before
        assert client.get("/v2/health/ready").status_code == 200
        back()
        until(lambda: readable(client))
        shutil.rmtree(folder / "other")
        until(lambda: client.get("/v2/models").json()["models"] == ["adder"])


def opened(folder):
    repository = Repository(Settings(model_repository=folder).sized())
    repository.open()
    repository.load()
    return repository


@pytest.mark.parametrize("mount_point", [False, True])
def test_the_log_tells_once_that_a_repository_vanished(tmp_path, caplog, mount_point):
    graphs.adder(tmp_path / "models" / "adder" / "1")
    repository = opened(tmp_path / "models")
    back = away(tmp_path / "models")
    if mount_point:
        (tmp_path / "models").mkdir()
    caplog.set_level("INFO", "heed")
    caplog.clear()
    for _ in range(3):
        repository.poll()
    back()
    for _ in range(3):
        repository.poll()
    why = "holds no model any more" if mount_point else "cannot be read: No such file or directory"
    assert [record.getMessage() for record in caplog.records] == [
        f"the model repository {tmp_path / 'models'} {why}; what was loaded from it is served on, until a restart",
        "the model repository can be read again",
    ]
    assert list(repository.models) == ["adder"]


def test_a_model_on_a_volume_of_its_own_that_vanishes_stays(tmp_path):
    """It is linked into the repository: what the link leads to is gone, the link is not."""
    for name in ("adder", "other"):
        graphs.adder(tmp_path / "volume" / name / "1")
    (tmp_path / "models").mkdir()
    graphs.adder(tmp_path / "models" / "own" / "1")
    (tmp_path / "models" / "adder").symlink_to(tmp_path / "volume" / "adder")
    (tmp_path / "models" / "other").mkdir()
    (tmp_path / "models" / "other" / "1").symlink_to(tmp_path / "volume" / "other" / "1")
    repository = opened(tmp_path / "models")
    shutil.rmtree(tmp_path / "volume")
    shutil.rmtree(tmp_path / "models" / "own")
    graphs.adder(tmp_path / "models" / "new" / "1")
    repository.poll()
    assert list(repository.models) == ["adder", "new", "other"]
    assert not repository.is_readable
    (tmp_path / "models" / "adder").unlink()
    repository.poll()
    assert list(repository.models) == ["new", "other"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE])
def test_a_model_that_cannot_be_read_any_more_stays(tmp_path, monkeypatch, number):
    """Its folder may not be opened, or is on a network's file system that answers with an error."""
    for name in ("adder", "other"):
        graphs.adder(tmp_path / name / "1")
    repository = opened(tmp_path)
    scandir = os.scandir

    def failing(path="."):
        if Path(path).name == "adder":
            raise OSError(number, os.strerror(number))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", failing)
        patch.setattr(os, "listdir", lambda path: [entry.name for entry in failing(path)])
        repository.poll()
    assert list(repository.models) == ["adder", "other"]
    assert not repository.is_readable
    repository.poll()
    assert repository.is_readable
