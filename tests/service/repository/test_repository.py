"""Loading: versions, models that are no blocks, broken files, readiness."""

import logging
import shutil

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.errors import NotFound, NotReady
from service.repository.repository import Repository
from service.settings import Settings
from tests.support import graphs


def loaded(folder):
    repository = Repository(Settings(model_repository=folder).sized())
    repository.open()
    repository.load()
    return repository


def test_the_highest_version_is_served_and_other_models_are_no_blocks(repository, tmp_path, caplog):
    for version in ("1", "2", "10", "old", "3.bak"):
        shutil.copytree(repository / "dot_product" / "1", tmp_path / "dot_product" / version)
    graphs.adder(tmp_path / "adder" / "1")
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"not onnx")
    with caplog.at_level(logging.ERROR, "heed"):
        served = loaded(tmp_path)
    assert list(served.blocks) == ["dot_product"]
    assert served.block("dot_product").version == 10
    with pytest.raises(NotFound, match="unknown block 'adder'; there are dot_product"):
        served.block("adder")
    assert "model broken" in caplog.text
    with pytest.raises(NotReady, match="broken failed to load"):
        served.block("broken")


def test_an_empty_repository_says_how_to_fill_it(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "heed"):
        assert loaded(tmp_path / "nowhere").blocks == {}
    assert "heed export" in caplog.text


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
