"""Each path takes a slash at its end and HEAD where it takes GET, names its methods, and never redirects."""

import asyncio
import json

import httpx
import pytest

from service.http.routing import DirectRoutes
from tests.support.attending import post

GOOD = {"query": [[1, 0]], "key": [[1, 0]], "value": [[1, 0]]}
METHODS = ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS")
READ = [
    "/v1/attention",
    "/v1/attention/dot_product",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models",
    "/v2/models/dot_product",
    "/metrics",
    "/docs",
    "/openapi.json",
]
PATHS = [
    *READ,
    "/v1/text/dot_product",
    "/v1/tokenize/dot_product",
    "/v1/memories",
    "/v1/memories/none",
    "/v1/memories/none/append",
    "/v2/models/dot_product/infer",
    "/v2/models/dot_product/versions/1/infer",
    "/v2/repository/index",
    "/v2/logging",
    "/",
    "/viewer/index.html",
]
UNLIKE = {"date", "x-request-id", "server-timing", "content-length"}  # in two answers
ENDINGS = pytest.mark.parametrize("ending", ["", "/"])


@ENDINGS
@pytest.mark.parametrize("path", PATHS)
def test_405_names_the_methods_that_are_taken(client, path, ending):
    """And no others: each of the others is a 405 with the same list."""
    refused = {}
    for method in METHODS:
        response = client.request(method, path + ending)
        if response.status_code == 405:
            refused[method] = response.headers["allow"]
            if method != "HEAD":
                answer = response.json()
                assert "Method Not Allowed" in (answer.get("error") or answer["detail"])
    (allowed,) = set(refused.values())
    assert set(allowed.split(", ")) == set(METHODS) - set(refused)
    assert ("GET" in refused) == ("HEAD" in refused)


@ENDINGS
@pytest.mark.parametrize("path", READ)
def test_head_is_get_without_a_body(client, path, ending):
    get, head = client.get(path + ending), client.head(path + ending)
    assert (get.status_code, head.status_code, head.content) == (200, 200, b"")
    if path != "/metrics":
        assert head.headers["content-length"] == get.headers["content-length"]
    fields = [{name: value for name, value in of.headers.items() if name not in UNLIKE} for of in (head, get)]
    assert fields[0] == fields[1]
    assert client.get(path).status_code == 200  # the connection is as it should be


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "OPTIONS"])
def test_nothing_leads_to_another_host(client, method):
    headers = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    paths = [*READ, "/", "", "/v1", "/v2/repository/index", "/static-offline-docs", "/docs/oauth2-redirect"]
    for path in [*paths, *(f"{path}/" for path in paths), "//evil.example", "//evil.example/", "/v1/attention//"]:
        url = httpx.URL(str(client.base_url).rstrip("/")).copy_with(raw_path=(path or "/").encode())
        response = client.request(method, url, headers=headers, follow_redirects=False)
        assert "location" not in response.headers
        assert not 300 <= response.status_code < 400


@ENDINGS
def test_a_slash_at_the_end_of_a_post_keeps_its_body(client, ending):
    plain = post(client, "dot_product", GOOD)
    for _ in range(3):
        response = client.post(f"/v1/attention/dot_product{ending}", json=GOOD)
        assert (response.status_code, response.content) == (200, plain.content)
    rows = {"key": [[1, 0]], "value": [[1, 0]]}
    stored = client.post(f"/v1/memories{ending}", json=rows)
    assert stored.status_code == 201
    path = f"/v1/memories/{stored.json()['id']}"
    assert client.post(f"{path}/append{ending}", json=rows).status_code == 200
    assert client.get(path + ending).json()["key_shape"][-2] == 2
    assert client.delete(path + ending).status_code == 204


@pytest.mark.parametrize("query", ["outputs=weights", "x", "=", "a=b&c=d", "%00"])
def test_a_query_string_is_refused_in_the_native_api_alone(client, query):
    for path in ("/v1/attention/dot_product", "/v1/attention/dot_product/", "/v1/memories"):
        for _ in range(2):
            response = client.post(f"{path}?{query}", json=GOOD)
            assert response.status_code == 400
            assert f"got '?{query}'" in response.json()["detail"]
    for path in ("/v1/attention", "/v1/attention/dot_product", "/v1/memories"):
        assert client.get(f"{path}?{query}").status_code == 400
        assert client.get(f"{path}?").status_code == 200
    for path in ("/v2", "/v2/models/dot_product", "/metrics", "/", "/openapi.json"):
        assert client.get(f"{path}?{query}").status_code == 200
    for end in ("?", ""):
        assert client.post(f"/v1/attention/dot_product{end}", json=GOOD).status_code == 200


@pytest.mark.parametrize(
    ("path", "query"), [("/v2/health/ready", b""), ("/", b""), ("/viewerless", b""), ("/viewer/index.js", b"a=b")]
)
def test_a_query_string_is_dropped_where_no_route_takes_one(path, query):
    """So that FastAPI does not parse it."""

    async def given(scope, receive, send) -> None:
        assert scope["query_string"] == query

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"a=b"}
    asyncio.run(DirectRoutes(given, [], takes_query="/viewer")(scope, None, None))


@pytest.mark.parametrize(
    "path", ["/v1/atention/dot_product", "/attention/dot_product", "/v1/dot_product", "/v2/models/dot_product/infr"]
)
def test_a_path_that_may_be_meant_is_one_that_answers(client, path):
    answer = client.post(path, json=GOOD).json()
    meant = (answer.get("error") or answer["detail"]).partition("did you mean ")[2].removesuffix("?")
    assert client.post(meant, content=json.dumps(GOOD)).status_code in (200, 400, 415)


@pytest.mark.parametrize(
    "path", ["/predict", "/v1", "/favicon.ico", "/v2/models/dot_product/versions/x", "/" + "a" * 2000]
)
def test_where_no_path_is_like_it_none_is_named(client, path):
    assert "did you mean" not in client.get(path).text
