"""Each path takes a slash at its end and HEAD where it takes GET, and names its methods; those of /v1 take no query."""

import json

import pytest

from tests.support.attending import post

GOOD = {"query": [[1, 0]], "key": [[1, 0]], "value": [[1, 0]]}
METHODS = ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS")
PATHS = [
    "/v1/attention",
    "/v1/attention/dot_product",
    "/v1/text/dot_product",
    "/v1/tokenize/dot_product",
    "/v1/memories",
    "/v1/memories/none",
    "/v1/memories/none/append",
    "/v2",
    "/v2/health/ready",
    "/v2/models/dot_product",
    "/v2/models/dot_product/infer",
    "/v2/models/dot_product/versions/1/infer",
    "/v2/repository/index",
    "/v2/logging",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/",
    "/viewer/index.html",
]


@pytest.mark.parametrize("ending", ["", "/"])
@pytest.mark.parametrize("path", PATHS)
def test_405_names_the_methods_that_are_taken(client, path, ending):
    """And no others: each of the others is a 405 with the same list."""
    refused = {}
    for method in METHODS:
        response = client.request(method, path + ending)
        if response.status_code == 405:
            refused[method] = response.headers["allow"]
            if method != "HEAD":
                said = response.json()
                assert "Method Not Allowed" in (said.get("error") or said["detail"])
    (allowed,) = set(refused.values())
    assert set(allowed.split(", ")) == set(METHODS) - set(refused)
    assert ("GET" in refused) == ("HEAD" in refused)


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_slash_at_the_end_of_a_post_keeps_its_body(client, ending):
    plain = post(client, "dot_product", GOOD)
    for _ in range(3):
        response = client.post(f"/v1/attention/dot_product{ending}", json=GOOD)
        assert (response.status_code, response.content) == (200, plain.content)
    stored = client.post(f"/v1/memories{ending}", json={"key": [[1, 0]], "value": [[1, 0]]})
    assert stored.status_code == 201
    path = f"/v1/memories/{stored.json()['id']}"
    assert client.post(f"{path}/append{ending}", json={"key": [[1, 0]], "value": [[1, 0]]}).status_code == 200
    assert client.get(path + ending).json()["key_shape"][-2] == 2
    assert client.delete(path + ending).status_code == 204


@pytest.mark.parametrize("query", ["outputs=weights", "x", "=", "a=b&c=d", "%00"])
def test_a_query_string_is_refused_in_the_native_api_alone(client, query):
    paths = ["/v1/attention/dot_product", "/v1/attention/dot_product/", "/v1/memories"]
    for path in paths:
        for _ in range(2):
            response = client.post(f"{path}?{query}", json=GOOD)
            assert response.status_code == 400
            assert f"got '?{query}'" in response.json()["detail"]
    for path in ("/v1/attention", "/v1/attention/dot_product", "/v1/memories"):
        assert client.get(f"{path}?{query}").status_code == 400
        assert client.get(f"{path}?").status_code == 200
    for path in ("/v2", "/v2/models/dot_product", "/metrics", "/", "/openapi.json"):
        assert client.get(f"{path}?{query}").status_code == 200
    assert client.post("/v1/attention/dot_product?", json=GOOD).status_code == 200
    assert client.post("/v1/attention/dot_product", json=GOOD).status_code == 200


def test_a_path_that_may_be_meant_is_one_that_answers(client):
    for path in (
        "/v1/atention/dot_product",
        "/attention/dot_product",
        "/v1/dot_product",
        "/v2/models/dot_product/infr",
    ):
        said = client.post(path, json=GOOD).json()
        meant = (said.get("error") or said["detail"]).partition("did you mean ")[2].removesuffix("?")
        assert client.post(meant, content=json.dumps(GOOD)).status_code in (200, 400, 415)
    for path in ("/predict", "/v1", "/favicon.ico", "/v2/models/dot_product/versions/x", "/" + "a" * 5000):
        assert "did you mean" not in client.get(path).text
