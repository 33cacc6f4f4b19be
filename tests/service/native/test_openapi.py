"""The documentation needs no internet, and what it shows runs."""

import re

import jsonschema
import numpy as np
import pytest

from models.catalogue import BLOCKS
from tests.support.application import running
from tests.support.attending import assert_close, attend, post


@pytest.fixture(scope="module")
def document(client):
    return client.get("/openapi.json").json()


def test_every_asset_is_served_from_here(client):
    page = client.get("/docs")
    assert page.status_code == 200
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(assets) >= 3
    for asset in assets:
        assert asset.startswith("/"), asset
        assert client.get(asset).status_code == 200, asset
    assert "//" not in re.sub(r"<!--.*?-->|^\s*//.*$", "", page.text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_has_an_example_that_runs_and_is_right(client, document, name):
    content = document["paths"][f"/v1/attention/{name}"]["post"]["requestBody"]["content"]["application/json"]
    example = content["example"]
    schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
    assert set(schema["required"]) <= example.keys() <= schema["properties"].keys()
    assert example == client.get(f"/v1/attention/{name}").json()["example"]
    inputs = {key: np.asarray(value, BLOCKS[name].inputs[key].dtype) for key, value in example.items()}
    assert_close(name, attend(client, name, **example), inputs)


def test_every_status_it_promises_is_in_the_document(document):
    responses = document["paths"]["/v1/attention/dot_product"]["post"]["responses"]
    assert set(responses) == {"200", "400", "404", "409", "410", "413", "415", "422", "500", "503", "504", "507"}


def test_deadlines_and_retries_are_in_the_document(document):
    for path in ("/v1/attention/dot_product", "/v1/attention/{block}", "/v1/memories", "/v2/models/{model}/infer"):
        operation = document["paths"][path]["post"]
        assert "X-Request-Timeout" in [of["name"] for of in operation["parameters"]]
        assert "Retry-After" in operation["responses"]["503"]["headers"]
        assert "headers" not in operation["responses"]["400"]
    assert "headers" not in document["paths"]["/v2/health/ready"]["get"]["responses"]["503"]


def test_an_answer_of_single_numbers_is_as_documented(client, document):
    body = {"query": [1, 0], "key": [[1, 0]], "outputs": ["lse", "entropy"]}
    answer = post(client, "scaled_dot_product", body).json()
    assert type(answer["lse"]) is float
    for name in ("scaled_dot_product_answer", "AttentionAnswer"):
        jsonschema.validate(answer, {"$ref": f"#/components/schemas/{name}", "components": document["components"]})


def test_any_block_runs_as_the_document_says(client, document):
    content = document["paths"]["/v1/attention/{block}"]["post"]["requestBody"]["content"]["application/json"]
    schema = {**content["schema"], "components": document["components"]}
    assert content["examples"].keys() == BLOCKS.keys()
    for example in content["examples"].values():
        jsonschema.validate(example["value"], schema)
    options = {"layers": [0], "heads": "0", "outputs": ["weights"], "memory": "0" * 32, "weights_top_k": 2}
    jsonschema.validate({"query": {"shape": [1], "data": [1]}, "scale": 2, "is_causal": True, **options}, schema)
    for wrong in ({"heads": {}}, {"query": {"shape": [1]}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_keys_are_in_the_document(two_blocks, tmp_path):
    (tmp_path / "keys").write_text("a-key\n")
    with running(two_blocks, api_keys_file=tmp_path / "keys") as client:
        document = client.get("/openapi.json", headers={"X-API-Key": "a-key"}).json()
    assert document["components"]["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    for path in ("/v1/attention/dot_product", "/v2/models/{model}/infer"):
        operation = document["paths"][path]["post"]
        assert {"bearer": []} in operation["security"]
        assert {"401", "403", "503"} <= operation["responses"].keys()
    assert "security" not in document["paths"]["/v2/health/ready"]["get"]


def test_answers_and_options_of_the_weights_are_typed(client, document):
    """Options of layers are those of stacks alone; the encoder's ``layers`` are an input of its graph."""
    schemas = document["components"]["schemas"]
    request, stack_request, answer, stack_answer = (
        schemas[f"{name}_{part}"]["properties"]
        for part in ("request", "answer")
        for name in ("scaled_dot_product", "encoder")
    )
    assert answer["output"]["$ref"] == "#/components/schemas/Numbers"
    assert {of["$ref"].rpartition("/")[2] for of in answer["weights"]["anyOf"]} == {"Numbers", "LargestWeights"}
    assert set(schemas["LargestWeights"]["required"]) == {"indices", "values"}
    both = {"heads", "queries", "reduce_heads", "weights_top_k", "weights_dtype", "weights_pool", "weights_pool_by"}
    assert both <= request.keys() & stack_request.keys()
    assert {"layers", "reduce_layers"} & request.keys() == set()
    assert stack_request["layers"]["description"].startswith("[layers]. ")
    assert "reduce_layers" in stack_request
    derived = {"weights_scale", "entropy", "received"}
    assert derived <= answer.keys()
    assert {*derived, "rollout", "head_statistics"} <= stack_answer.keys()
    assert not {"rollout", "head_statistics"} & answer.keys()
    described = client.get("/v1/attention/encoder").json()["derived"]
    assert {one["name"]: one["shape"] for one in described} == {
        "entropy": ["layers", "batch", 4, "n"],
        "received": ["layers", "batch", 4, "n"],
        "rollout": ["batch", "n", "n"],
        "head_statistics": ["layers", "batch", 4, 5],
    }


def test_documentation_can_be_switched_off(two_blocks):
    with running(two_blocks, pages="viewer") as client:
        assert client.get("/docs").status_code == 404
        assert client.get("/v2/health/ready").status_code == 200
