"""``/v2/health/ready``: 200 once the models are loaded that the operator expects, whatever fails later."""

import logging
import os
import shutil
import signal
from contextlib import closing, contextmanager

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.support import graphs
from tests.support.http_client import Connection
from tests.support.probing import probe
from tests.support.server import started
from tests.support.v2 import error
from tests.support.waiting import until


def broken(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(b"not onnx")


def good_and_broken(folder):
    graphs.adder(folder / "adder" / "1")
    broken(folder / "bad" / "1")


REPOSITORIES = {
    "good": lambda folder: graphs.adder(folder / "adder" / "1"),
    "good and broken": good_and_broken,
    "a broken version": lambda folder: (graphs.adder(folder / "adder" / "1"), broken(folder / "adder" / "2")),
    "broken": lambda folder: broken(folder / "bad" / "1"),
    "empty": lambda folder: folder.mkdir(),
    "a folder above": lambda folder: graphs.adder(folder / "models" / "adder" / "1"),
    "missing": str,  # which creates nothing
}
READY = {"all": {"good"}, "any": {"good", "good and broken", "a broken version"}, "live": set(REPOSITORIES)}


@contextmanager
def running(folder, **settings):
    """A client of the service in this process, once it has tried to load every model."""
    app = create_app(Settings(model_repository=folder, provider="cpu", versions="all", **settings))
    with TestClient(app) as client:
        assert app.repository.ready.wait(60)
        yield client


def status(client):
    answer = client.get("/v2/health/ready")
    assert answer.json() == {"ready": answer.status_code == 200}
    assert client.get("/v2/health/live").status_code == 200
    return answer.status_code


@pytest.mark.parametrize("setting", READY)
@pytest.mark.parametrize("kind", REPOSITORIES)
def test_at_the_start(tmp_path, caplog, kind, setting):
    folder = tmp_path / "repository"
    REPOSITORIES[kind](folder)
    with caplog.at_level(logging.INFO, "heed"), running(folder, ready_when=setting) as client:
        is_ready = kind in READY[setting]
        assert status(client) == (200 if is_ready else 503)
        lines = [record.message for record in caplog.records if record.message.startswith(("ready: ", "not ready: "))]
        assert len(lines) == 1
        assert lines[0].startswith("ready: ") == is_ready
        assert is_ready or (str(folder) in lines[0] and f"HEED_READY_WHEN={setting}" in lines[0])
        index = client.post("/v2/repository/index").json()
        failed = [of for of in index if of.get("state") == "UNAVAILABLE"]
        assert len(failed) == (kind in ("good and broken", "a broken version", "broken", "a folder above"))
        for of in failed:
            assert of["reason"]
            assert of["name"] in lines[0] or is_ready
            path = folder / of["name"] / of.get("version", "")
            assert f"model {of['name']} from {path} cannot be served" in caplog.text
        if kind.startswith("good"):
            assert client.get("/v2/models/adder/ready").status_code == 200  # what loads is served meanwhile


def test_loads_by_request(tmp_path):
    """A mended model makes it ready; what fails or goes afterwards does not matter any more."""
    good_and_broken(tmp_path)
    with running(tmp_path, model_control_mode="explicit") as client:
        assert status(client) == 503
        error(client.post("/v2/repository/models/bad/load"), 400, "failed to load 'bad'")
        assert status(client) == 503
        graphs.adder(tmp_path / "bad" / "1")
        assert client.post("/v2/repository/models/bad/load").status_code == 200
        assert status(client) == 200
        broken(tmp_path / "bad" / "1")
        broken(tmp_path / "new" / "1")
        for name in ("bad", "new"):
            error(client.post(f"/v2/repository/models/{name}/load"), 400, f"failed to load '{name}'")
        assert status(client) == 200
        for name in ("adder", "bad"):
            assert client.post(f"/v2/repository/models/{name}/unload").status_code == 200
        assert client.get("/v2/models").json() == {"models": []}
        assert status(client) == 200


def test_a_broken_model_that_is_unloaded_is_not_waited_for(tmp_path):
    good_and_broken(tmp_path)
    with running(tmp_path, model_control_mode="explicit") as client:
        assert client.post("/v2/repository/models/bad/unload").status_code == 200
        assert status(client) == 200


def test_an_empty_repository_is_ready_after_a_load_whatever_failed_before(tmp_path):
    with running(tmp_path, model_control_mode="explicit") as client:
        broken(tmp_path / "bad" / "1")
        error(client.post("/v2/repository/models/bad/load"), 400, "failed to load 'bad'")
        assert status(client) == 503
        graphs.adder(tmp_path / "adder" / "1")
        assert client.post("/v2/repository/models/adder/load").status_code == 200
        assert status(client) == 200


def test_polls(tmp_path, caplog):
    folder = tmp_path / "repository"
    good_and_broken(folder)
    with running(folder, model_control_mode="poll", model_poll_seconds=0.05) as client:

        def index():
            return {
                (of["name"], of.get("version")): of.get("state") for of in client.post("/v2/repository/index").json()
            }

        assert status(client) == 503
        graphs.adder(folder / "bad" / "1")
        until(lambda: status(client) == 200)
        broken(folder / "bad" / "2")
        broken(folder / "new" / "1")
        until(lambda: index().get(("bad", "2")) == index().get(("new", "1")) == "UNAVAILABLE")
        assert status(client) == 200
        shutil.move(folder, tmp_path / "elsewhere")
        until(lambda: f"the model repository {folder} cannot be read" in caplog.text)
        assert client.get("/v2/models").json() == {"models": ["adder", "bad"]}  # a mount that is lost for a moment
        shutil.move(tmp_path / "elsewhere", folder)


def statuses(service, count=4):
    """What the workers in turn say."""
    found = set()
    for _ in range(count):
        with closing(Connection(service.port)) as connection:
            connection.request("GET", "/v2/health/ready")
            found.add(connection.getresponse().status)
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_with_a_broken_model(tmp_path, workers):
    """Each worker says so, and the container's health check; good models are served."""
    good_and_broken(tmp_path / "models")
    flags = ["--workers", str(workers)]
    with started(tmp_path / "models", tmp_path / "log", *flags, becomes_ready=False) as service:
        assert statuses(service) == {503}
        assert probe(service.port).returncode == 1
        with closing(Connection(service.port)) as connection:
            connection.add()
        said = f"not ready: bad failed to load from {tmp_path / 'models'} (HEED_READY_WHEN=all); loaded adder"
        assert service.log.read_text().count(said) == workers


def test_a_worker_that_comes_later_may_lack_what_has_failed_since(tmp_path):
    """As the service was ready: it is not taken out for a file that was broken later."""
    good_and_broken(tmp_path / "models")
    graphs.adder(tmp_path / "models" / "bad" / "1")
    flags = ["--workers", "2", "--model-control-mode", "poll", "--model-poll-seconds", "0.2"]
    with started(tmp_path / "models", tmp_path / "log", *flags) as service:
        broken(tmp_path / "models" / "bad" / "1")
        os.kill(min(service.workers()), signal.SIGKILL)
        until(lambda: "not ready: bad failed to load" in service.log.read_text())
        until(lambda: len(service.workers()) == 2)
        assert statuses(service, 8) == {200}
