"""schemathesis over our own OpenAPI document: whatever it sends, no 5xx, no status and no answer undocumented."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import BaseSchema, GenerationMode, checks

from models.catalogue import BLOCKS
from tests.support.server import serving
from tests.support.v2 import infer

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
    """Parametrized by hand: schemathesis's pytest plugin does not run under pytest 9.2."""
    operations = [operation.ok() for operation in api.get_all_operations()]
    assert len(operations) > 20
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # of a path alone nothing invalid can be made

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def explore(case):
            if case.path.endswith("/infer"):  # a model that is there, so that the body is looked at
                case.path_parameters.update({"model": "dot_product", "version": 1})
            case.call_and_validate(checks=checks.CHECKS.get_by_names(CHECKS))

        explore()


@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_has_an_example_that_runs(client, name):
    document = client.get("/openapi.json").json()
    for path in ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        answer = infer(client, name, content["examples"][name]["value"])
        assert answer.status_code == 200, answer.text
        assert [of["name"] for of in answer.json()["outputs"]] == ["output", "weights"]
