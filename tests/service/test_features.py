"""The core serves both APIs without any feature."""

import pytest

from tests.support.application import running

TENSORS = {"query": [[1.0]], "key": [[1.0]], "value": [[2.0]]}
V2_INPUTS = [{"name": name, "shape": [1, 1, 1, 1], "datatype": "FP32", "data": [1]} for name in TENSORS]


@pytest.fixture(scope="module")
def client(two_blocks):
    with running(two_blocks, features=()) as client:
        yield client


def test_blocks_run(client):
    native = client.post("/v1/attention/scaled_dot_product", json=TENSORS)
    assert native.json() == {"block": "scaled_dot_product", "output": [[2.0]], "weights": [[1.0]]}
    v2 = client.post("/v2/models/scaled_dot_product/infer", json={"inputs": V2_INPUTS})
    assert {"output", "weights"} <= {output["name"] for output in v2.json()["outputs"]}


@pytest.mark.parametrize("path", ["/v1/memories", "/v1/text/scaled_dot_product", "/v1/tokenize/scaled_dot_product"])
def test_routes_of_features_are_not_there(client, path):
    assert client.post(path, json=TENSORS).status_code == 404


def test_a_reference_is_an_unknown_field(client):
    response = client.post("/v1/attention/scaled_dot_product", json={**TENSORS, "memory": "0" * 32})
    assert (response.status_code, response.json()["field"]) == (400, "memory")


def test_the_document_and_the_metrics_have_the_core_alone(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert "/v1/attention/scaled_dot_product" in paths
    assert not any(path.startswith(("/v1/memories", "/v1/text")) for path in paths)
    samples = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    assert any(line.startswith("heed_workers_ready") for line in samples)
    assert not any(line.startswith("heed_memories") for line in samples)
