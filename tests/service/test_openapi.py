"""The OpenAPI document is built aside, once for the same blocks, and the service keeps what it promises."""

import shutil
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import BaseSchema, GenerationMode, checks

from service.http.body import JSON_LENGTH
from service.openapi import OpenApi
from tests.support.application import running
from tests.support.server import serving

EXAMPLES = 25
CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]


@pytest.fixture(scope="module")
def api(two_blocks) -> Iterator[BaseSchema]:
    """Of a server of its own: what is sent may unload models."""
    with serving(two_blocks, "--model-control-mode", "explicit", "--max-body-bytes", "100000") as client:
        yield schemathesis.openapi.from_url(str(client.base_url.join("/openapi.json")))


@pytest.mark.extended  # hundreds of requests
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
def test_every_operation(api, mode):
    """schemathesis sends what the document allows and what it forbids: no 5xx, no undocumented status or answer.

    Parametrized by hand: schemathesis's pytest plugin does not run under pytest 9.2.
    """
    operations = [operation.ok() for operation in api.get_all_operations()]
    assert len(operations) > 20
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # of a path alone nothing invalid can be made

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def explore(case):
            case.headers.pop("X-Request-Timeout", None)  # a short deadline passes: a 504
            if case.path.endswith("/infer"):  # a model that is there, so that the body is looked at
                case.path_parameters.update({"model": "dot_product", "version": 1})
                if case.media_type == "application/json":
                    case.headers.pop(JSON_LENGTH, None)
            elif case.path == "/v1/attention/{block}" and case.method == "POST":
                case.path_parameters["block"] = "dot_product"
            case.call_and_validate(checks=checks.CHECKS.get_by_names(CHECKS))

        explore()


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
