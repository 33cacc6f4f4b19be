"""Models come and go while requests go on: none is lost, each is answered by one version, whole."""

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from service.settings import Settings
from tests.support import graphs
from tests.support.application import opened, running
from tests.support.engine import Gate
from tests.support.in_process import serving_in_process
from tests.support.server import serving
from tests.support.v2 import infer, tensor
from tests.support.waiting import until

BODY = {"inputs": [tensor("x", [[0, 0, 0]]), tensor("z", [[0, 0, 0]])]}
MIN_ANSWERS = 50


@contextmanager
def under_load(address):
    """Requests without a pause, each of which is answered rightly for the version that its answer names; yields a
    function that tells which versions have answered."""
    stop, answers = threading.Event(), []

    def ask():
        with httpx.Client(base_url=address, timeout=30) as client:
            while not stop.is_set():
                answers.append(infer(client, "adder", BODY))

    with ThreadPoolExecutor() as threads:
        asking = threads.submit(ask)
        try:
            yield lambda: {answer.json().get("model_version") for answer in list(answers)}
            until(lambda: len(answers) > MIN_ANSWERS or asking.done())
        finally:
            stop.set()
    asking.result()
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"][0]["data"] == [float(answer.json()["model_version"])] * 3


def test_reload_under_load_loses_nothing(tmp_path):
    graphs.adder(tmp_path / "adder" / "1", 1.0)
    with serving(tmp_path, "--model-control-mode", "explicit") as client, under_load(client.base_url) as versions:
        for version in range(2, 12):
            graphs.adder(tmp_path / "adder" / str(version), float(version))
            assert client.post("/v2/repository/models/adder/load").status_code == 200
            assert infer(client, "adder", BODY).json()["model_version"] == str(version)
            until(lambda version=version: str(version) in versions())


def test_poll_follows_the_folder(tmp_path):
    graphs.adder(tmp_path / "adder" / "1", 1.0)
    mode = ("--model-control-mode", "poll:0.1", "--versions", "latest:2")
    with serving(tmp_path, *mode) as client, under_load(client.base_url) as versions:
        until(versions)
        for version in (2, 3):
            graphs.adder(tmp_path / "new", float(version))  # elsewhere first: a file is moved in whole
            (tmp_path / "adder" / str(version)).mkdir()
            os.replace(tmp_path / "new" / "model.onnx", tmp_path / "adder" / str(version) / "model.onnx")
            until(lambda version=version: str(version) in versions())
        assert infer(client, "adder", BODY, 1).status_code == 404  # latest:2
        shutil.rmtree(tmp_path / "adder" / "3")
        until(lambda: client.get("/v2/models/adder").json()["versions"] == ["1", "2"])
        graphs.adder(tmp_path / "other" / "1", 5.0)
        until(lambda: "other" in client.get("/v2/models").json()["models"])


def test_a_request_in_flight_finishes_on_the_version_it_started_on(adder, monkeypatch):
    with (
        serving_in_process(adder, model_control_mode="explicit", inline_ns=0) as service,
        httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client,
        ThreadPoolExecutor() as threads,
    ):
        gate = Gate(service.server._repository.model("adder"), monkeypatch)
        in_flight = threads.submit(infer, client, "adder", BODY)
        try:
            until(lambda: gate.ran)
            assert client.get("/v2/health/ready").status_code == 200  # the event loop is free while it computes
            assert client.post("/v2/repository/models/adder/unload").status_code == 200
            assert client.get("/v2/models/adder/ready").status_code == 404
            assert not in_flight.done()
        finally:
            gate.open.set()
        assert in_flight.result().json()["model_version"] == "1"


@pytest.mark.parametrize(
    ("policy", "served"),
    [("all", ["1", "2", "10"]), ("latest:1", ["10"]), ("latest:2", ["2", "10"]), ("1,10,11", ["1", "10"])],
)
def test_version_policies(tmp_path, policy, served):
    for version in (1, 2, 10):
        graphs.adder(tmp_path / "adder" / str(version), float(version))
    repository = opened(tmp_path, versions=policy)
    assert list(map(str, repository.models["adder"])) == served
    assert str(repository.model("adder").version) == served[-1]


def test_a_changed_file_that_fails_leaves_the_old(tmp_path):
    graphs.adder(tmp_path / "adder" / "1", 1.0)
    repository = opened(tmp_path)
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


def test_a_failed_version_keeps_its_reason_while_another_one_comes(tmp_path):
    graphs.adder(tmp_path / "adder" / "1", 1.0)
    repository = opened(tmp_path, versions="all")
    (tmp_path / "adder" / "1" / "model.onnx").write_bytes(b"not onnx")
    repository.poll()
    graphs.adder(tmp_path / "adder" / "2", 2.0)
    repository.poll()
    states = [(line.version, line.state) for line in repository.index()]
    assert states == [(1, "READY"), (2, "READY"), (1, "UNAVAILABLE")]


@pytest.mark.parametrize("wrong", ["", "latest", "latest:0", "1,", "newest", "1;2"])
def test_wrong_policies_are_refused(wrong):
    with pytest.raises(ValueError, match="versions"):
        Settings(versions=wrong)


@pytest.fixture(params=["without its folder", "with an empty mount point"])
def vanish(request, tmp_path):
    """Takes ``models`` away as an unmounted volume leaves it; what it returns brings it back."""
    folder, aside = tmp_path / "models", tmp_path / "aside"
    for name in ("adder", "other"):
        graphs.adder(folder / name / "1")

    def vanish():
        folder.rename(aside)
        if "mount point" in request.param:
            folder.mkdir()
        return lambda: (shutil.rmtree(folder, ignore_errors=True), aside.rename(folder))

    return vanish


def test_a_repository_that_vanishes_unloads_nothing(tmp_path, caplog, vanish):
    """All is served on, and the log tells it once; what changed meanwhile is followed when it is back."""
    folder = tmp_path / "models"
    with running(folder) as client:
        repository = client.app.repository
        old = repository.model("adder")

        def polled():
            for _ in range(3):
                repository.poll()
            return "heed_model_repository_readable 1.0" in client.get("/metrics").text

        assert polled()
        caplog.set_level("INFO", "heed")
        caplog.clear()
        back = vanish()
        why = "contains no model any more" if folder.exists() else "cannot be read: No such file or directory"
        assert not polled()
        assert client.get("/v2/models").json()["models"] == ["adder", "other"]
        assert infer(client, "adder", BODY).status_code == 200
        assert client.get("/v2/health/ready").status_code == 200
        back()
        assert polled()
        assert caplog.messages == [
            f"the model repository {folder} {why}; models that were loaded from it are served until a restart",
            "the model repository can be read again",
        ]
        assert repository.model("adder") is old
        shutil.rmtree(folder / "other")
        assert polled()
        assert client.get("/v2/models").json()["models"] == ["adder"]


def test_a_model_on_a_volume_of_its_own_that_vanishes_stays(tmp_path):
    """It is linked into the repository: what the link leads to is gone, the link is not."""
    models, volume = tmp_path / "models", tmp_path / "volume"
    for folder in (volume / "adder", volume / "other", models / "own"):
        graphs.adder(folder / "1")
    (models / "adder").symlink_to(volume / "adder")
    (models / "other").mkdir()
    (models / "other" / "1").symlink_to(volume / "other" / "1")
    repository = opened(models)
    shutil.rmtree(volume)
    shutil.rmtree(models / "own")
    graphs.adder(models / "new" / "1")
    repository.poll()
    assert list(repository.models) == ["adder", "new", "other"]
    assert not repository.is_readable
    (models / "adder").unlink()
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
