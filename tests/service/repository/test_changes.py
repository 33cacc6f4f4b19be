"""The line of each model version that is loaded, replaced or unloaded: what, how large, how long, and who asked."""

import logging

import pytest

from tests.support import graphs
from tests.support.application import running
from tests.support.waiting import until


@pytest.fixture
def changes(caplog):
    """The lines since the last call."""

    def read():
        found = [record for record in caplog.records if record.message.startswith("model ") and hasattr(record, "by")]
        caplog.clear()
        return found

    with caplog.at_level(logging.INFO, "heed"):
        yield read


def words(record):
    return record.message, record.model, record.version, record.by


def size(folder):
    return sum(file.stat().st_size for file in folder.iterdir())


def test_the_start_and_polls(tmp_path, changes):
    graphs.adder(tmp_path / "adder" / "1")
    with running(tmp_path, model_control_mode="poll", model_poll_seconds=0.05) as client:
        (line,) = changes()
        assert words(line) == ("model loaded", "adder", 1, "start")
        assert line.levelname == "INFO"
        assert line.bytes == size(tmp_path / "adder" / "1")
        assert 0 < line.seconds < 60

        graphs.adder(tmp_path / "adder" / "2")
        until(lambda: client.get("/v2/models/adder").json()["versions"] == ["2"])
        assert [words(line) for line in changes()] == [
            ("model loaded", "adder", 2, "poll"),
            ("model unloaded", "adder", 1, "poll"),
        ]
        (tmp_path / "adder" / "2" / "labels.txt").write_text("a")
        found = []
        until(lambda: found.extend(changes()) or found)
        assert [words(line) for line in found] == [("model replaced", "adder", 2, "poll")]
        assert found[0].bytes == size(tmp_path / "adder" / "2")
        until(lambda: client.get("/v2/models").json() == {"models": ["adder"]})
        assert not changes()  # a poll that finds no change writes nothing


def test_a_client(tmp_path, changes):
    graphs.adder(tmp_path / "models" / "adder" / "1")
    (tmp_path / "admin").write_text("# of the operators\nfirst\nhidden\n")
    settings = {"model_control_mode": "explicit", "admin_keys_file": tmp_path / "admin"}
    with running(tmp_path / "models", **settings) as client:
        changes()
        headers = {"X-API-Key": "hidden", "X-Request-ID": "deploy-7"}
        for action in ("load", "unload"):
            assert client.post(f"/v2/repository/models/adder/{action}", headers=headers).status_code == 200
        replaced, unloaded = changes()
        assert words(replaced) == ("model replaced", "adder", 1, "client")
        assert words(unloaded) == ("model unloaded", "adder", 1, "client")
        for line in (replaced, unloaded):
            assert (line.key, line.request_id, line.peer) == ("admin:3", "deploy-7", "testclient:50000")
            assert "hidden" not in str(vars(line))
        (tmp_path / "models" / "adder" / "1" / "model.onnx").write_bytes(b"not onnx")
        assert client.post("/v2/repository/models/adder/load", headers=headers).status_code == 400
        (failed,) = changes()
        assert failed.message.startswith("model adder failed to load")
        assert (failed.levelname, failed.request_id) == ("ERROR", "deploy-7")


def test_a_client_without_a_key(tmp_path, changes):
    graphs.adder(tmp_path / "adder" / "1")
    with running(tmp_path, model_control_mode="explicit") as client:
        changes()
        assert client.post("/v2/repository/models/adder/unload").status_code == 200
        (line,) = changes()
        assert line.by == "client"
        assert not hasattr(line, "key")
        assert line.request_id
