"""The OpenAPI document is built aside, and once for the same blocks."""

import shutil
import threading

from service.openapi import OpenApi
from tests.support.application import running


def test_others_are_served_while_it_is_built_once_for_the_same_blocks(repository, tmp_path, monkeypatch):
    shutil.copytree(repository / "dot_product", tmp_path / "dot_product")
    begun, released, built, build = threading.Event(), threading.Event(), [], OpenApi._build

    def build_later(self, models):
        built.append(sorted(models))
        begun.set()
        assert released.wait(60)
        return build(self, models)

    monkeypatch.setattr(OpenApi, "_build", build_later)
    with running(tmp_path, model_control_mode="explicit") as client:
        answers = []
        asking = threading.Thread(target=lambda: answers.append(client.get("/openapi.json")))
        asking.start()
        assert begun.wait(60)
        assert client.get("/v2/health/live").status_code == 200
        assert not answers
        released.set()
        asking.join()
        assert "/v1/attention/dot_product" in answers[0].json()["paths"]
        assert client.get("/openapi.json").content == answers[0].content
        shutil.copytree(repository / "cosine", tmp_path / "cosine")
        assert client.post("/v2/repository/models/cosine/load", json={}).status_code == 200
        assert "/v1/attention/cosine" in client.get("/openapi.json").json()["paths"]
        assert built == [["dot_product"], ["cosine", "dot_product"]]
