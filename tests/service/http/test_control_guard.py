"""Who may control a server without keys: Triton's clients and people, and no web page of somebody else."""

import json
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support import graphs
from tests.support.server import serving

UNLOAD, LOAD = (f"/v2/repository/models/adder/{what}" for what in ("unload", "load"))
LOGGING = "/v2/logging"
CURL = shutil.which("curl")
PAGE = "https://page.example"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    graphs.adder(folder / "adder" / "1")
    return folder


@pytest.fixture(scope="module")
def server(models):
    flags = ("--cors-origins", f"{PAGE},*", "--control-hosts", "heed.inside.example")
    with serving(models, "--model-control-mode", "explicit", *flags) as client:
        yield client


def own(server: httpx.Client) -> str:
    return f"127.0.0.1:{server.base_url.port}"


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


def test_its_own_page(server):
    headers = {"Origin": f"http://{own(server)}", "Sec-Fetch-Site": "same-origin", **JSON}
    assert server.post(LOAD, content=b"{}", headers=headers).status_code == 200


def test_what_changes_nothing_is_not_asked(server):
    """As before: models are run, and the index is read, by whatever Content-Type a client gives."""
    body = {"inputs": [{"name": name, "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]} for name in "xz"]}
    foreign = {"Origin": "https://evil.example", "Host": "evil.example", "Content-Type": "text/plain"}
    infer = server.post("/v2/models/adder/infer", content=json.dumps(body), headers=foreign)
    assert infer.status_code == 200
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert server.post("/v2/repository/index", content=b"{}", headers=form).status_code == 200


@pytest.mark.skipif(CURL is None, reason="curl is not installed")
def test_curl(server):
    url = f"http://{own(server)}{LOAD}"
    for flags, status in (
        (["--request", "POST"], "200"),
        (["--data", ""], "200"),
        (["--data", "{}"], "415"),
        (["--data", "{}", "--header", "Content-Type: application/json"], "200"),
    ):
        command = [CURL, "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", *flags, url]
        assert subprocess.run(command, capture_output=True, text=True, timeout=30).stdout == status, flags


def test_a_valid_admin_key_is_enough(models, tmp_path):
    (tmp_path / "admin").write_text("secret\n")
    flags = ("--model-control-mode", "explicit", "--admin-keys-file", str(tmp_path / "admin"))
    foreign = {"Origin": "https://evil.example", "Host": "heed.example", "Content-Type": "text/plain"}
    with serving(models, *flags) as server:
        for path in (UNLOAD, LOAD):
            assert server.post(path, headers=foreign).status_code == 401
            assert server.post(path, headers={**foreign, "X-API-Key": "secret"}).status_code == 200


def test_the_index_needs_a_key_where_there_are_any(models, tmp_path):
    for name in ("admin", "api"):
        (tmp_path / name).write_text(f"{name}-key\n")
    admin, api = (("--" + name + "-keys-file", str(tmp_path / name)) for name in ("admin", "api"))
    for flags, good, bad in (
        (admin, ["admin-key"], ["", "api-key"]),
        (api, ["api-key"], ["", "admin-key"]),
        ((*admin, *api), ["admin-key", "api-key"], ["", "else"]),
    ):
        with serving(models, *flags) as server:
            for path in ("/v2/repository/index", "/v2/repository/index/"):
                for keys, status in ((good, 200), (bad, 401)):
                    for key in keys:
                        headers = {"X-API-Key": key} if key else {}
                        assert server.post(path, headers=headers).status_code == status
