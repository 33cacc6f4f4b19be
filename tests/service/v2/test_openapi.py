"""The document of the Open Inference Protocol: its examples run."""

import pytest

from models.catalogue import BLOCKS
from tests.support.v2 import infer


@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_has_an_example_that_runs(client, name):
    document = client.get("/openapi.json").json()
    for path in ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        answer = infer(client, name, content["examples"][name]["value"])
        assert answer.status_code == 200, answer.text
        assert [of["name"] for of in answer.json()["outputs"]] == ["output", "weights"]
