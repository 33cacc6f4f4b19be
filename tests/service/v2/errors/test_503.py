"""503: not now. A full queue is in ``test_schedule``."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.repository.repository import Repository
from service.settings import Settings
from tests.support import graphs
from tests.support.application import running
from tests.support.v2 import ADD, error, infer


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_control_that_is_not_allowed(adder, mode):
    with running(adder, model_control_mode=mode) as client:
        for what in ("load", "unload"):
            response = client.post(f"/v2/repository/models/adder/{what}")
            error(response, 503, "explicit model load / unload is not allowed if polling is enabled")
        error(client.post("/v2/logging", json={"log_info": False}), 503, "not allowed")
        assert client.post("/v2/repository/index").status_code == 200
        assert {"model_repository", "logging"}.isdisjoint(client.get("/v2").json()["extensions"])


def test_while_models_are_being_loaded(adder):
    client = TestClient(create_app(Settings(model_repository=adder)))  # its lifespan, which loads, never runs
    for path in ("", "/ready"):
        error(client.get(f"/v2/models/adder{path}"), 503, "Server not ready")
    refused = client.post("/v2/models/adder/infer", json={})
    error(refused, 503, "Server not ready")
    assert refused.headers["X-Error-Code"] == "not_ready"
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
    with running(tmp_path, versions="all", model_control_mode="explicit") as client, ThreadPoolExecutor() as threads:
        graphs.adder(tmp_path / "adder" / "2", 2.0)
        loading = threads.submit(client.post, "/v2/repository/models/adder/load")
        assert begun.wait(30)
        for path in ("", "/ready", "/config", "/stats"):
            said = client.get(f"/v2/models/adder/versions/2{path}")
            error(said, 503, "Request for unknown model: 'adder' version 2 is not at ready state")
        assert infer(client, "adder", ADD).json()["model_version"] == "1"
        allowed.set()
        assert loading.result().status_code == 200
        assert infer(client, "adder", ADD, 2).json()["outputs"][0]["data"] == [4, 6, 8]


def test_a_version_that_failed(tmp_path):
    graphs.adder(tmp_path / "adder" / "1")
    for folder in ("adder/2", "broken/1"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.onnx").write_bytes(b"not onnx")
    with running(tmp_path, versions="all", model_control_mode="explicit", ready_when="any") as client:
        error(client.get("/v2/models/adder/versions/2"), 503, "'adder' version 2 is not at ready state")
        error(client.get("/v2/models/broken"), 404, "'broken' has no available versions")
        assert infer(client, "adder", ADD).json()["model_version"] == "1"
        index = client.post("/v2/repository/index")
        assert str(tmp_path) not in index.text
        states = {(of["name"], of.get("version")): of["state"] for of in index.json()}
        assert (states["adder", "1"], states["adder", "2"]) == ("READY", "UNAVAILABLE")
        ready = client.post("/v2/repository/index", json={"ready": True}).json()
        assert ready == [{"name": "adder", "version": "1", "state": "READY"}]
        response = client.post("/v2/repository/models/broken/load")
        error(response, 400, "failed to load 'broken'")
        assert str(tmp_path) not in response.text
