"""What is served, and ``/v2/health/ready``: 200 once the models are loaded that the operator expects."""

import logging
import shutil
import signal

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.base.errors import NotFound, NotReady
from service.settings import Settings
from tests.support import graphs
from tests.support.application import opened, running
from tests.support.probing import probe
from tests.support.server import started
from tests.support.v2 import error
from tests.support.waiting import until


def good(folder):
    graphs.adder(folder / "adder" / "1")


def broken(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(b"not onnx")


def good_and_broken(folder):
    good(folder)
    broken(folder / "bad" / "1")


REPOSITORIES = {  # what fills the folder, and the model that fails
    "good": (good, None),
    "good and broken": (good_and_broken, "bad"),
    "a broken version": (lambda folder: (good(folder), broken(folder / "adder" / "2")), "adder"),
    "broken": (lambda folder: broken(folder / "bad" / "1"), "bad"),
    "empty": (lambda folder: folder.mkdir(), None),
    "a folder above": (lambda folder: good(folder / "models"), "models"),
    "missing": (str, None),  # which creates nothing
}
READY = {"all": {"good"}, "any": {"good", "good and broken", "a broken version"}, "live": set(REPOSITORIES)}


def status(client):
    answer = client.get("/v2/health/ready")
    assert answer.json() == {"ready": answer.status_code == 200}
    assert client.get("/v2/health/live").json() == {"live": True}
    return answer.status_code


def entries(client):
    """Those of the index."""
    return client.post("/v2/repository/index").json()


def state(client, name, version=None):
    """What the index says about a model."""
    return next((of["state"] for of in entries(client) if (of["name"], of.get("version")) == (name, version)), None)


@pytest.mark.parametrize("setting", READY)
@pytest.mark.parametrize("kind", REPOSITORIES)
def test_at_the_start(tmp_path, caplog, kind, setting):
    folder, (fill, bad) = tmp_path / "repository", REPOSITORIES[kind]
    fill(folder)
    with caplog.at_level(logging.INFO, "heed"), running(folder, versions="all", ready_when=setting) as client:
        is_ready = kind in READY[setting]
        assert status(client) == (200 if is_ready else 503)
        (line,) = (text for text in caplog.messages if text.startswith(("ready: ", "not ready: ")))
        assert line.startswith("ready: ") == is_ready
        assert is_ready or (str(folder) in line and f"HEED_READY_WHEN={setting}" in line)
        failed = [entry["name"] for entry in entries(client) if entry["state"] == "UNAVAILABLE"]
        assert failed == ([bad] if bad else [])
        assert is_ready or not bad or bad in line
        assert f"model {bad} from {folder / str(bad)}" in caplog.text or not bad
        if kind.startswith("good"):
            assert client.get("/v2/models/adder/ready").status_code == 200  # what loads is served meanwhile


def test_an_empty_repository_says_how_to_fill_it(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "heed"):
        assert opened(tmp_path / "nowhere").blocks == {}
    assert "heed export" in caplog.text


def test_the_highest_version_is_served_and_other_models_are_no_blocks(repository, tmp_path, caplog):
    for version in ("1", "2", "10", "old", "3.bak"):
        shutil.copytree(repository / "dot_product" / "1", tmp_path / "dot_product" / version)
    graphs.adder(tmp_path / "adder" / "1")
    broken(tmp_path / "broken" / "1")
    with caplog.at_level(logging.ERROR, "heed"):
        served = opened(tmp_path)
    assert list(served.blocks) == ["dot_product"]
    assert served.block("dot_product").version == 10
    with pytest.raises(NotFound, match="unknown block 'adder'; available: dot_product"):
        served.block("adder")
    assert "model broken" in caplog.text
    with pytest.raises(NotReady, match="broken failed to load"):
        served.block("broken")


def test_live_but_not_ready_while_loading(two_blocks):
    """Liveness answers before the models are loaded; readiness and the blocks say 503 until then."""
    client = TestClient(create_app(Settings(model_repository=two_blocks)))  # without its lifespan, which loads
    assert client.get("/v2/health/live").json() == {"live": True}
    ready = client.get("/v2/health/ready")
    assert (ready.status_code, ready.json()) == (503, {"ready": False})
    for response in (client.get("/v1/attention"), client.post("/v1/attention/dot_product", json={})):
        assert response.status_code == 503
        assert "being loaded" in response.json()["detail"]
        assert response.headers["retry-after"] == "1"


NO_VERSION = {  # a file in a folder, or a folder, and why no model can be served from there
    "empty": ("", "it has no version's folder, 1/model.onnx"),
    "notes": ("notes/a.txt", "it has no version's folder, 1/model.onnx; there are notes"),
    "flat": ("model.onnx", "model.onnx is in it, but must be in a version's folder: 1/model.onnx"),
    "other_name": ("2/net.onnx", "version 2 has no model.onnx, but net.onnx"),
    "empty_version": ("2/", "version 2 has no model.onnx"),
    "leading_zero": ("01/model.onnx", "it has no version's folder, 1/model.onnx; there are 01"),
    "above": ("m/1/model.onnx", "it has no version's folder, but models: m; did you mean it as the repository?"),
}


def lay(folder, path):
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.endswith((".onnx", ".txt")):
        place.touch()
    else:
        place.mkdir()


def test_each_folder_without_a_model_is_named_with_its_reason(tmp_path, caplog, monkeypatch):
    """Not those that are hidden, are the file system's own, or are being written by an export."""
    monkeypatch.chdir(tmp_path)
    models = tmp_path / "models"
    graphs.adder(models / "good" / "2")
    reasons = {name: reason for name, (_, reason) in NO_VERSION.items()}
    for name, (path, _) in NO_VERSION.items():
        lay(models / name, path)
    (models / "unmounted").symlink_to(tmp_path / "nowhere")
    reasons["unmounted"] = "it cannot be read: No such file or directory"
    graphs.adder(models / "old" / "1")
    reasons["old"] = "HEED_VERSIONS=2,3 selects none of its versions: 1"
    for name, file in ((".git", "model.onnx"), ("lost+found", "model.onnx"), ("exported", ".new-1/model.onnx")):
        lay(models / name, file)
    (models / "README.md").write_text("")
    with caplog.at_level(logging.INFO, "heed"), running("models", versions="2,3") as client:
        assert status(client) == 503
        assert {entry["name"]: entry.get("reason", "") for entry in entries(client)} == {"good": "", **reasons}
        for name, reason in reasons.items():
            assert f"model {name} from {models / name} cannot be served: {reason}" in caplog.text
        assert client.get("/v2/models/empty").status_code in (404, 503)
    with running(models, versions="2,3", ready_when="any", model_control_mode="explicit") as client:
        assert status(client) == 200
        assert client.post("/v2/repository/models/empty/load").status_code == 404


@pytest.fixture
def explicit(tmp_path):
    """A client of an application whose models a client loads, and the function that asks for it."""
    good_and_broken(tmp_path)
    with running(tmp_path, versions="all", model_control_mode="explicit") as client:
        yield client, lambda name, action="load": client.post(f"/v2/repository/models/{name}/{action}")


def test_loads_by_request(tmp_path, explicit):
    """A mended model makes it ready; what fails or goes afterwards does not matter any more."""
    client, ask = explicit
    error(ask("bad"), 400, "failed to load 'bad'")
    assert status(client) == 503
    graphs.adder(tmp_path / "bad" / "1")
    assert ask("bad").status_code == 200
    assert status(client) == 200
    for name in ("bad", "new"):
        broken(tmp_path / name / "1")
        error(ask(name), 400, f"failed to load '{name}'")
    assert status(client) == 200
    for name in ("adder", "bad"):
        assert ask(name, "unload").status_code == 200
    assert client.get("/v2/models").json() == {"models": []}
    assert status(client) == 200


def test_a_broken_model_that_is_unloaded_is_not_waited_for(explicit):
    client, ask = explicit
    assert ask("bad", "unload").status_code == 200
    assert status(client) == 200


def test_an_empty_repository_is_ready_after_a_load_whatever_failed_before(tmp_path):
    with running(tmp_path, model_control_mode="explicit") as client:
        good_and_broken(tmp_path)
        for name, loaded, ready in (("bad", 400, 503), ("adder", 200, 200)):
            assert client.post(f"/v2/repository/models/{name}/load").status_code == loaded
            assert status(client) == ready


def test_polls(tmp_path, caplog):
    folder = tmp_path / "repository"
    good_and_broken(folder)
    with running(folder, versions="all", model_control_mode="poll:0.05") as client:
        assert status(client) == 503
        graphs.adder(folder / "bad" / "1")
        until(lambda: status(client) == 200)
        broken(folder / "bad" / "2")
        broken(folder / "new" / "1")
        until(lambda: state(client, "bad", "2") == state(client, "new", "1") == "UNAVAILABLE")
        assert status(client) == 200
        (folder / "adder" / "1").rename(folder / "adder" / "old")
        until(lambda: state(client, "adder") == "UNAVAILABLE")
        until(lambda: caplog.text.count(f"model adder from {folder / 'adder'} cannot be served") == 1)
        assert status(client) == 200
        (folder / "adder" / "old").rename(folder / "adder" / "1")
        until(lambda: state(client, "adder", "1") == "READY")


TWO = pytest.param(2, marks=pytest.mark.extended)


@pytest.mark.parametrize("workers", [1, TWO])
def test_a_server_with_a_broken_model(tmp_path, workers):
    """Each worker says so, and the container's health check; good models are served."""
    good_and_broken(tmp_path / "models")
    flags = ["--workers", str(workers)]
    with started(tmp_path / "models", tmp_path / "log", *flags, becomes_ready=False) as service:
        assert not any(service.is_ready() for _ in range(4))
        assert probe(service.port).returncode == 1
        service.add()
        said = f"not ready: bad failed to load from {tmp_path / 'models'} (HEED_READY_WHEN=all); loaded adder"
        assert service.logged(said) == workers


@pytest.mark.parametrize("workers", [1, TWO])
def test_the_process_ends_where_a_setting_asks_for_it(tmp_path, workers):
    good_and_broken(tmp_path / "models")
    flags = ["--workers", str(workers), "--ready-when", "all-or-exit"]
    with started(tmp_path / "models", tmp_path / "log", *flags, becomes_ready=False) as service:
        assert service.ended() == 3
        log = service.log.read_text()
    assert "the service is not ready (HEED_READY_WHEN)" in log
    assert (
        f"not ready: bad failed to load from {tmp_path / 'models'} (HEED_READY_WHEN=all-or-exit); loaded adder" in log
    )


@pytest.mark.parametrize("workers", [1, TWO])
def test_a_ready_service_stays(tmp_path, workers):
    """And is ready, whatever fails later: a worker that comes later may lack a model."""
    good(tmp_path / "models")
    flags = ["--workers", str(workers), "--ready-when", "all-or-exit"]
    with started(tmp_path / "models", tmp_path / "log", *flags) as service:
        if workers > 1:
            broken(tmp_path / "models" / "bad" / "1")
            service.process.send_signal(signal.SIGHUP)  # new workers, which are not complete
            until(lambda: service.logged("not ready: bad failed to load") >= workers)
        assert all(service.is_ready() for _ in range(8))
        assert service.process.poll() is None
        service.process.terminate()
        assert service.ended() == 0
