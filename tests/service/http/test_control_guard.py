"""Who may control a server without keys: Triton's clients and people, and no web page of somebody else."""

import pytest

from tests.support.application import running
from tests.support.http_client import ADD

UNLOAD, LOAD = (f"/v2/repository/models/adder/{action}" for action in ("unload", "load"))
LOGGING = "/v2/logging"
PAGE = "https://page.example"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(adder):
    hosts = {"cors_origins": f"{PAGE},*", "control_hosts": "heed.inside.example"}
    with running(adder, model_control_mode="explicit", **hosts) as client:
        yield client


FOREIGN = {
    "another origin": {"Origin": "https://evil.example"},
    "no origin that has a name": {"Origin": "null"},
    "a file": {"Origin": "file://"},
    "another port": {"Origin": "http://127.0.0.1:1"},
    "another address": {"Origin": "http://127.0.0.2"},
    "a like name": {"Origin": f"{PAGE}.evil.example"},
    "a broken origin": {"Origin": "http://[::1"},
    "another site": {"Sec-Fetch-Site": "cross-site"},
    "the same site": {"Sec-Fetch-Site": "same-site"},
    "a name that was made to lead here": {"Host": "evil.example"},
    "that name with its page": {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"},
    "a name like an address": {"Host": "127.0.0.1.evil.example"},
    "a name like localhost": {"Host": "localhost.evil.example"},
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("path", [UNLOAD, LOAD, LOGGING, UNLOAD + "/"])
@pytest.mark.parametrize("body", [b"", b"{}"])
def test_pages_of_others_are_403(server, headers, path, body):
    for method in ("POST", "PUT", "DELETE"):
        response = server.request(method, path, content=body, headers={**headers, **(JSON if body else {})})
        assert response.status_code == 403, response.text
        assert "may not control" in response.text or "HEED_CONTROL_HOSTS" in response.text
    assert server.get("/v2/models/adder/ready").status_code == 200


@pytest.mark.parametrize(
    "media", ["text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_pages_may_send_unasked_is_415(server, media):
    for path in (UNLOAD, LOGGING):
        response = server.post(path, content=b"{}", headers={"Content-Type": media})
        assert response.status_code == 415
        assert "application/json" in response.text
        chunked = server.post(path, content=iter([b"{}"]), headers={"Content-Type": media})
        assert chunked.status_code == 415
    assert server.get("/v2/models/adder/ready").status_code == 200


GOOD = {
    "nothing": {},
    "json": JSON,
    "json with a charset": {"Content-Type": "Application/JSON; charset=utf-8"},
    "tritonclient.http.aio": {"Content-Type": "application/octet-stream"},
    "a page that is named": {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"},
    "localhost": {"Host": "localhost:8000", "Origin": "http://localhost:8000", "Sec-Fetch-Site": "same-origin"},
    "the user": {"Sec-Fetch-Site": "none"},
    "IPv6": {"Host": "[::1]:8000", "Origin": "http://[::1]:8000"},
    "a proxy with TLS": {"Host": "10.0.0.1", "Origin": "https://10.0.0.1"},
    "a container": {"Host": "heed:8000"},
    "a name that is set": {"Host": "heed.inside.example:8000", "Origin": "http://heed.inside.example:8000"},
}


@pytest.mark.parametrize("headers", GOOD.values(), ids=GOOD)
def test_clients_and_own_pages_go_on(server, headers):
    for path in (UNLOAD, LOAD, LOGGING):
        response = server.post(path, content=b"{}", headers=headers)
        assert response.status_code == 200, response.text
        response = server.post(LOAD, headers=headers)
        assert response.status_code == 200, response.text


def test_what_changes_nothing_is_not_asked(server):
    """Models are run, and the index is read, by whatever Content-Type a client gives."""
    foreign = {"Origin": "https://evil.example", "Host": "evil.example", "Content-Type": "text/plain"}
    assert server.post("/v2/models/adder/infer", content=ADD, headers=foreign).status_code == 200
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert server.post("/v2/repository/index", content=b"{}", headers=form).status_code == 200


def test_a_valid_admin_key_is_enough(adder, tmp_path):
    (tmp_path / "admin").write_text("secret\n")
    foreign = {"Origin": "https://evil.example", "Host": "heed.example", "Content-Type": "text/plain"}
    with running(adder, model_control_mode="explicit", admin_keys_file=tmp_path / "admin") as server:
        for path in (UNLOAD, LOAD):
            assert server.post(path, headers=foreign).status_code == 401
            assert server.post(path, headers={**foreign, "X-API-Key": "secret"}).status_code == 200
