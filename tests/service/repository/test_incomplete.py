"""Folders without a model that can be served: named in the log and in the index, and not ready with ready_when=all."""

import logging

import pytest

from tests.support import graphs
from tests.support.application import running
from tests.support.server import started
from tests.support.waiting import until

NO_VERSION = {
    "an empty folder": ([], "it has no version's folder, 1/model.onnx"),
    "files without a version": (["notes/a.txt"], "it has no version's folder, 1/model.onnx; there are notes"),
    "no version's folder": (["model.onnx"], "model.onnx is in it, but must be in a version's folder: 1/model.onnx"),
    "another file's name": (["2/net.onnx"], "version 2 has no model.onnx, but net.onnx"),
    "an empty version": (["2/"], "version 2 has no model.onnx"),
    "a leading zero": (["01/model.onnx"], "it has no version's folder, 1/model.onnx; there are 01"),
    "a folder above": (
        ["adder/1/model.onnx"],
        "it has no version's folder, but models: adder; it may be meant as the repository",
    ),
}


def lay(folder, files):
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        if file.endswith("/"):
            (folder / file).mkdir()
        else:
            (folder / file).write_bytes(b"")


def is_ready(client):
    return client.get("/v2/health/ready").status_code == 200


def line(client, name):
    """Of the index."""
    (found,) = [found for found in client.post("/v2/repository/index").json() if found["name"] == name]
    return found


@pytest.mark.parametrize("kind", NO_VERSION)
def test_a_folder_without_a_version(tmp_path, caplog, kind):
    files, reason = NO_VERSION[kind]
    graphs.adder(tmp_path / "good" / "1")
    lay(tmp_path / "bad", files)
    with caplog.at_level(logging.INFO, "heed"), running(tmp_path) as client:
        assert not is_ready(client)
        assert line(client, "bad") == {"name": "bad", "state": "UNAVAILABLE", "reason": reason}
        assert line(client, "good")["state"] == "READY"
        assert f"model bad from {tmp_path / 'bad'} cannot be served: {reason}" in caplog.text
        assert f"not ready: bad failed to load from {tmp_path} (HEED_READY_WHEN=all); loaded good" in caplog.text
        assert client.get("/v2/models/bad/ready").status_code == 503 or client.get("/v2/models/bad").status_code == 404
    with running(tmp_path, ready_when="any") as client:
        assert is_ready(client)


def test_relative_paths_are_logged_as_absolute_ones(tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lay(tmp_path / "models" / "bad", ["model.onnx"])
    with caplog.at_level(logging.INFO, "heed"), running("models"):
        assert f"model bad from {tmp_path / 'models' / 'bad'} cannot be served" in caplog.text


def test_a_link_that_leads_nowhere(tmp_path):
    graphs.adder(tmp_path / "good" / "1")
    (tmp_path / "bad").symlink_to(tmp_path / "unmounted")
    with running(tmp_path) as client:
        assert line(client, "bad")["reason"] == "it cannot be read: No such file or directory"


def test_a_version_that_the_settings_do_not_select(tmp_path):
    graphs.adder(tmp_path / "good" / "2")
    graphs.adder(tmp_path / "old" / "1")
    with running(tmp_path, versions="2,3") as client:
        assert not is_ready(client)
        assert line(client, "old")["reason"] == "HEED_VERSIONS=2,3 selects none of its versions: 1"


def test_what_is_no_model(tmp_path):
    """Hidden folders, files, the file system's own folder, and a model that an export is writing."""
    graphs.adder(tmp_path / "good" / "1")
    for name in (".git", "lost+found"):
        lay(tmp_path / name, ["model.onnx"])
    lay(tmp_path / "exported", [".new-1/model.onnx"])
    (tmp_path / "README.md").write_text("")
    with running(tmp_path) as client:
        assert is_ready(client)
        assert [found["name"] for found in client.post("/v2/repository/index").json()] == ["good"]


def test_a_poll_sees_the_version_that_comes_and_goes(tmp_path, caplog):
    lay(tmp_path / "adder", [])
    with running(tmp_path, model_control_mode="poll", model_poll_seconds=0.05) as client:
        assert not is_ready(client)
        graphs.adder(tmp_path / "adder" / "1")
        until(lambda: is_ready(client))
        assert line(client, "adder")["state"] == "READY"
        graphs.adder(tmp_path / "other" / "1")
        until(lambda: line(client, "other").get("state") == "READY")
        caplog.clear()
        (tmp_path / "adder" / "1").rename(tmp_path / "adder" / "old")
        until(lambda: line(client, "adder")["state"] == "UNAVAILABLE")
        assert is_ready(client)  # as later failures do not change it
        until(lambda: caplog.text.count(f"model adder from {tmp_path / 'adder'} cannot be served") == 1)
        (tmp_path / "adder" / "old").rename(tmp_path / "adder" / "1")
        until(lambda: line(client, "adder")["state"] == "READY")


def test_a_repaired_model_is_loaded_by_request(tmp_path):
    lay(tmp_path / "adder", [])
    with running(tmp_path, model_control_mode="explicit") as client:
        assert client.post("/v2/repository/models/adder/load").status_code == 404
        assert not is_ready(client)
        graphs.adder(tmp_path / "adder" / "1")
        assert client.post("/v2/repository/models/adder/load").status_code == 200
        assert is_ready(client)
        assert line(client, "adder")["state"] == "READY"


@pytest.mark.parametrize("workers", [1, 2])
def test_the_process_ends_where_a_setting_asks_for_it(tmp_path, workers):
    graphs.adder(tmp_path / "models" / "good" / "1")
    lay(tmp_path / "models" / "bad", ["model.onnx"])
    flags = ["--workers", str(workers), "--exit-unless-ready"]
    with started(tmp_path / "models", tmp_path / "log", *flags, becomes_ready=False) as service:
        assert service.ended() == 3
        log = service.log.read_text()
    assert "the service is not ready (HEED_EXIT_UNLESS_READY)" in log
    assert f"not ready: bad failed to load from {tmp_path / 'models'}" in log


@pytest.mark.parametrize("workers", [1, 2])
def test_a_ready_service_stays(tmp_path, workers):
    """Whatever fails later: a worker that comes later may lack a model."""
    graphs.adder(tmp_path / "models" / "good" / "1")
    flags = ["--workers", str(workers), "--exit-unless-ready"]
    with started(tmp_path / "models", tmp_path / "log", *flags) as service:
        if workers > 1:
            lay(tmp_path / "models" / "bad", ["model.onnx"])
            service.process.send_signal(1)  # SIGHUP: new workers, which are not complete
            until(lambda: service.log.read_text().count("not ready: bad failed to load") >= workers)
        assert service.process.poll() is None
        service.process.terminate()
        assert service.ended() == 0
