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
        lines = [record for record in caplog.records if record.message.startswith("model ") and hasattr(record, "by")]
        caplog.clear()
        return lines

    with caplog.at_level(logging.INFO, "heed"):
        yield read


def words(record):
    return record.message, record.model, record.version, record.by


def size(folder):
    return sum(file.stat().st_size for file in folder.iterdir())


def test_the_start_and_polls(tmp_path, changes):
    graphs.adder(tmp_path / "adder" / "1")
    with running(tmp_path, model_control_mode="poll:0.05") as client:
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
        (line,) = until(changes)
        assert words(line) == ("model replaced", "adder", 2, "poll")
        assert line.bytes == size(tmp_path / "adder" / "2")
        until(lambda: client.get("/v2/models").json() == {"models": ["adder"]})
        assert not changes()  # a poll that finds no change writes nothing


@pytest.mark.parametrize("key", [None, "hidden"])
def test_a_client(tmp_path, changes, key):
    folder = tmp_path / "models"
    graphs.adder(folder / "adder" / "1")
    (tmp_path / "admin").write_text("# of the operators\nfirst\nhidden\n")
    settings = {"admin_keys_file": tmp_path / "admin"} if key else {}
    headers = {"X-API-Key": key, "X-Request-ID": "deploy-7"} if key else {"X-Request-ID": "deploy-7"}
    with running(folder, model_control_mode="explicit", **settings) as client:
        changes()
        for action in ("load", "unload"):
            assert client.post(f"/v2/repository/models/adder/{action}", headers=headers).status_code == 200
        lines = changes()
        assert [words(line) for line in lines] == [
            ("model replaced", "adder", 1, "client"),
            ("model unloaded", "adder", 1, "client"),
        ]
        for line in lines:
            assert (line.request_id, line.peer) == ("deploy-7", "testclient:50000")
            assert getattr(line, "key", None) == (key and "admin:3")
            assert "hidden" not in str(vars(line))
        (folder / "adder" / "1" / "model.onnx").write_bytes(b"not onnx")
        assert client.post("/v2/repository/models/adder/load", headers=headers).status_code == 400
        (failed,) = changes()
        assert failed.message.startswith("model adder failed to load")
        assert (failed.levelname, failed.request_id) == ("ERROR", "deploy-7")
