"""Loading: versions, strangers, broken files, readiness; with graphs of one node that are computed by eye."""

import logging
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from service.errors import NotFound, NotReady
from service.repository.repository import Repository
from service.settings import Settings
from tests.support.attending import post
from tests.support.server import serving


def stranger(folder, addend=1.0):
    """x [n] -> y = x + addend, without a word about itself."""
    folder.mkdir(parents=True)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "c"], ["y"])],
        "stranger",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [onnx.numpy_helper.from_array(np.float32(addend), "c")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), folder / "model.onnx"
    )


def loaded(folder):
    repository = Repository(Settings(model_repository=folder).sized())
    repository.open()
    repository.load()
    return repository


def test_the_highest_version_is_served(repository, tmp_path):
    for version in ("1", "2", "10", "old", "3.bak"):
        shutil.copytree(repository / "dot_product" / "1", tmp_path / "dot_product" / version)
    assert loaded(tmp_path).block("dot_product").version == 10


def test_a_stranger_is_loaded_but_is_no_block(repository, tmp_path):
    stranger(tmp_path / "adder" / "1", 2.0)
    shutil.copytree(repository / "dot_product", tmp_path / "dot_product")
    served = loaded(tmp_path)
    assert list(served.blocks) == ["dot_product"]
    with pytest.raises(NotFound, match="unknown block 'adder'; there are dot_product"):
        served.block("adder")


def test_a_broken_file_harms_no_other(repository, tmp_path, caplog):
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"not onnx")
    shutil.copytree(repository / "dot_product", tmp_path / "dot_product")
    with caplog.at_level(logging.ERROR, "heed"):
        served = loaded(tmp_path)
    assert "model broken" in caplog.text
    assert list(served.blocks) == ["dot_product"]
    with pytest.raises(NotReady, match="broken failed to load"):
        served.block("broken")


def test_an_empty_repository_says_how_to_fill_it(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "heed"):
        assert loaded(tmp_path / "nowhere").blocks == {}
    assert "heed export" in caplog.text


def test_not_ready_before_loading(repository):
    with pytest.raises(NotReady, match="being loaded"):
        Repository(Settings(model_repository=repository).sized()).block("dot_product")


def test_a_fast_path_serves_only_what_it_answers(repository):
    model = loaded(repository).block("scaled_dot_product")
    x = np.ones((1, 1, 2, 3), np.float32)
    plain = {"query": x, "key": x, "value": x}
    sizes = model.bind(plain)
    causal = {**plain, "is_causal": np.asarray(True)}
    assert model.graph_for(plain, ["output", "weights"], sizes).inputs == {"query", "key", "value"}
    assert "attn_mask" in model.graph_for(plain, ["scores"], sizes).inputs
    assert "attn_mask" in model.graph_for(causal, ["output", "weights"], sizes).inputs


def test_without_its_fast_path_a_block_answers_the_same(repository, client, tmp_path):
    shutil.copytree(repository / "dot_product", tmp_path / "dot_product")
    (tmp_path / "dot_product" / "1" / "plain.onnx").unlink()
    body = {"query": [[1, 2]], "key": [[0, 1], [1, 0]], "value": [[1], [2]]}
    with serving(tmp_path) as short:
        assert post(short, "dot_product", body).json() == post(client, "dot_product", body).json()


def test_health(client):
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}


def test_live_but_not_ready_while_loading(repository):
    """Liveness answers before the models are loaded; readiness and the blocks say 503 until then."""
    from fastapi.testclient import TestClient

    from service.app import create_app

    app = create_app(Settings(model_repository=repository))
    client = TestClient(app)  # without its context: the lifespan, which loads, never runs
    assert client.get("/v2/health/live").status_code == 200
    ready = client.get("/v2/health/ready")
    assert (ready.status_code, ready.json()) == (503, {"ready": False})
    for response in (client.get("/v1/attention"), client.post("/v1/attention/dot_product", json={})):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
