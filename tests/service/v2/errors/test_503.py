"""503: not now. A full queue is in ``test_schedule``."""

import json
import threading

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.repository.repository import Repository
from service.settings import Settings
from tests.support import graphs
from tests.support.server import serving
from tests.support.v2 import ADD, error, infer
from tests.support.waiting import until


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_control_that_is_not_allowed(tmp_path, mode):
    graphs.adder(tmp_path / "adder" / "1")
    with serving(tmp_path, "--model-control-mode", mode) as client:
        for what in ("load", "unload"):
            response = client.post(f"/v2/repository/models/adder/{what}")
            error(response, 503, "explicit model load / unload is not allowed if polling is enabled")
        error(client.post("/v2/logging", json={"log_info": False}), 503, "not allowed")
        assert client.post("/v2/repository/index").status_code == 200
        assert {"model_repository", "logging"}.isdisjoint(client.get("/v2").json()["extensions"])


def test_while_models_are_being_loaded(tmp_path):
    graphs.adder(tmp_path / "adder" / "1")
    client = TestClient(create_app(Settings(model_repository=tmp_path)))  # its lifespan, which loads, never runs
    error(client.get("/v2/models/adder"), 503, "Server not ready")
    error(client.get("/v2/models/adder/ready"), 503, "Server not ready")
    error(client.post("/v2/models/adder/infer", json={}), 503, "Server not ready")
    ready = client.get("/v2/health/ready")
    assert (ready.status_code, ready.json()) == (503, {"ready": False})
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2").status_code == 200


def test_a_version_that_is_being_loaded(tmp_path, monkeypatch):
    graphs.adder(tmp_path / "adder" / "1")
    begun, allowed, real = threading.Event(), threading.Event(), Repository._open

    def slowly(self, folder, terms):
        if folder.name == "2":
            begun.set()
            assert allowed.wait(30)
        return real(self, folder, terms)

    monkeypatch.setattr(Repository, "_open", slowly)
    settings = Settings(model_repository=tmp_path, versions="all", model_control_mode="explicit")
    with TestClient(create_app(settings)) as client:
        until(lambda: client.get("/v2/health/ready").status_code == 200)
        graphs.adder(tmp_path / "adder" / "2", 2.0)
        loading = threading.Thread(target=client.post, args=("/v2/repository/models/adder/load",))
        loading.start()
        assert begun.wait(30)
        for path in ("", "/ready", "/config", "/stats"):
            said = client.get(f"/v2/models/adder/versions/2{path}")
            error(said, 503, "Request for unknown model: 'adder' version 2 is not at ready state")
        assert infer(client, "adder", ADD).json()["model_version"] == "1"
        allowed.set()
        loading.join()
        assert infer(client, "adder", ADD, 2).json()["outputs"][0]["data"] == [4, 6, 8]


def test_a_version_that_failed(repository, tmp_path):
    graphs.adder(tmp_path / "adder" / "1")
    (tmp_path / "adder" / "2").mkdir()
    (tmp_path / "adder" / "2" / "model.onnx").write_bytes(b"not onnx")
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"not onnx")
    flags = ("--versions", "all", "--model-control-mode", "explicit", "--ready-when", "any")
    with serving(tmp_path, *flags) as client:
        error(client.get("/v2/models/adder/versions/2"), 503, "'adder' version 2 is not at ready state")
        error(client.get("/v2/models/broken"), 404, "'broken' has no available versions")
        assert infer(client, "adder", ADD).json()["model_version"] == "1"
        states = {(of["name"], of.get("version")): of for of in client.post("/v2/repository/index").json()}
        assert states["adder", "1"]["state"] == "READY"
        assert states["adder", "2"]["state"] == "UNAVAILABLE"
        assert str(tmp_path) not in json.dumps(list(states.values()))
        ready = client.post("/v2/repository/index", json={"ready": True}).json()
        assert ready == [{"name": "adder", "version": "1", "state": "READY"}]
        response = client.post("/v2/repository/models/broken/load")
        error(response, 400, "failed to load 'broken'")
        assert str(tmp_path) not in response.text
