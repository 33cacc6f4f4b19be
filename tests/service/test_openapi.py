"""The OpenAPI document is built aside, and once for the same blocks."""

import shutil
import threading

import pytest

from service.openapi import OpenApi
from tests.support.application import running


@pytest.fixture
def blocks(repository, tmp_path):
    shutil.copytree(repository / "dot_product", tmp_path / "dot_product")
    return tmp_path


def test_others_are_served_while_it_is_built(blocks, monkeypatch):
    begun, released, build = threading.Event(), threading.Event(), OpenApi._build

    def build_later(self, models):
        begun.set()
        assert released.wait(60)
        return build(self, models)

    monkeypatch.setattr(OpenApi, "_build", build_later)
    with running(blocks) as client:
        answers = []
        asking = threading.Thread(target=lambda: answers.append(client.get("/openapi.json")))
        asking.start()
        assert begun.wait(60)
        assert client.get("/v2/health/live").status_code == 200
        assert not answers
        released.set()
        asking.join()
    assert "/v1/attention/dot_product" in answers[0].json()["paths"]


def test_it_is_built_again_when_other_blocks_are_loaded(blocks, repository, monkeypatch):
    built, build = [], OpenApi._build

    def count(self, models):
        built.append([*models])
        return build(self, models)

    monkeypatch.setattr(OpenApi, "_build", count)
    with running(blocks, model_control_mode="explicit") as client:
        assert client.get("/openapi.json").content == client.get("/openapi.json").content
        assert built == [["dot_product"]]
        shutil.copytree(repository / "cosine", blocks / "cosine")
        assert client.post("/v2/repository/models/cosine/load", json={}).status_code == 200
        assert "/v1/attention/cosine" in client.get("/openapi.json").json()["paths"]
        assert [*map(sorted, built)] == [["dot_product"], ["cosine", "dot_product"]]
