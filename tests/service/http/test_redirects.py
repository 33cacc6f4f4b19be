"""No answer is a redirect, whatever Host a request names; HEAD is answered as GET, without its body."""

import httpx
import pytest

PATHS = [
    "/v1/attention",
    "/v1/attention/scaled_dot_product",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models",
    "/v2/models/scaled_dot_product",
    "/metrics",
    "/docs",
    "/openapi.json",
]
OF_ITS_OWN = {"date", "x-request-id", "server-timing", "content-length"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("ending", ["", "/"])
def test_head_is_get_without_a_body(client, path, ending):
    got = client.get(path + ending)
    head = client.head(path + ending)
    assert (got.status_code, head.status_code, head.content) == (200, 200, b"")
    if path != "/metrics":
        assert head.headers["content-length"] == got.headers["content-length"]
    assert {name: value for name, value in head.headers.items() if name not in OF_ITS_OWN} == {
        name: value for name, value in got.headers.items() if name not in OF_ITS_OWN
    }
    assert client.get(path).status_code == 200  # the connection is as it should be


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "OPTIONS"])
def test_nothing_leads_to_another_host(client, method):
    headers = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    paths = [*PATHS, "/", "", "/v1", "/v2/repository/index", "/static-offline-docs", "/docs/oauth2-redirect"]
    for path in [*paths, *(f"{path}/" for path in paths), "//evil.example", "//evil.example/", "/v1/attention//"]:
        url = httpx.URL(str(client.base_url).rstrip("/")).copy_with(raw_path=(path or "/").encode())
        response = client.request(method, url, headers=headers, follow_redirects=False)
        assert "location" not in response.headers
        assert not 300 <= response.status_code < 400
