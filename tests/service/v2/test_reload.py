"""Models come and go while requests go on: none is lost, each is answered by one version, whole."""

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from service.repository.repository import Repository
from service.settings import Settings
from tests.support import graphs
from tests.support.application import running
from tests.support.engine import Gate
from tests.support.in_process import serving_in_process
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

    def run(self):
        with httpx.Client(base_url=self.address, timeout=30) as client:
            while not self.stopped.is_set():
                response = infer(client, "adder", BODY)
                self.answers.append((response.status_code, response.json()))

    def __enter__(self):
        self.start()
        until(lambda: self.answers)
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


def test_a_request_in_flight_finishes_on_the_version_it_started_on(adder, monkeypatch):
    with (
        serving_in_process(adder, model_control_mode="explicit", inline_microseconds=0) as service,
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


def opened(folder, **settings):
    repository = Repository(Settings(model_repository=folder, **settings).sized())
    repository.open()
    repository.load()
    return repository


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


@pytest.mark.parametrize("wrong", ["", "latest", "latest:0", "1,", "newest", "1;2"])
def test_wrong_policies_are_refused(wrong):
    with pytest.raises(ValueError, match="versions"):
        Settings(versions=wrong)


def test_explicit_control_needs_one_process():
    with pytest.raises(ValueError, match="explicit needs workers 1"):
        Settings(workers=2, model_control_mode="explicit")


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


def test_a_repository_that_vanishes_unloads_nothing(tmp_path, vanish):
    """All is served on; what changed meanwhile is followed when it is back."""
    with running(tmp_path / "models", model_control_mode="poll", model_poll_seconds=0.05) as client:

        def readable():
            return "heed_model_repository_readable 1.0" in client.get("/metrics").text

        assert readable()
        back = vanish()
        until(lambda: not readable())
        assert client.get("/v2/models").json()["models"] == ["adder", "other"]
        assert infer(client, "adder", BODY).status_code == 200
        assert client.get("/v2/health/ready").status_code == 200
        back()
        until(readable)
        shutil.rmtree(tmp_path / "models" / "other")
        until(lambda: client.get("/v2/models").json()["models"] == ["adder"])


def test_the_log_tells_once_that_a_repository_vanished(tmp_path, caplog, vanish):
    repository = opened(tmp_path / "models")
    old = repository.model("adder")
    back = vanish()
    caplog.set_level("INFO", "heed")
    caplog.clear()
    for _ in range(3):
        repository.poll()
    why = "holds no model any more" if (tmp_path / "models").exists() else "cannot be read: No such file or directory"
    back()
    for _ in range(3):
        repository.poll()
    assert caplog.messages == [
        f"the model repository {tmp_path / 'models'} {why}; what was loaded from it is served on, until a restart",
        "the model repository can be read again",
    ]
    assert list(repository.models) == ["adder", "other"]
    assert repository.model("adder") is old


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
