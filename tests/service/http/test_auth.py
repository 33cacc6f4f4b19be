"""Keys, origins and TLS: who is let in, who is not, and that strangers learn nothing."""

import os
import socket
import ssl
from contextlib import closing

import httpx
import pytest

from service.cli.serve import main
from service.http.auth import ApiKeyAuth, KeyFile
from service.settings import Settings
from tests.support.application import running
from tests.support.http_client import ADD, ADDED
from tests.support.in_process import serving_in_process
from tests.support.server import started
from tests.support.waiting import until

INFER = "/v2/models/adder/infer"
ADMINISTRATION = ["/v2/repository/models/adder/load", "/v2/repository/models/adder/unload", "/v2/logging"]
INDEX = "/v2/repository/index"
API, ADMIN = "an-api-key", "an-admin-key"
UNREADABLE = "/proc/self/mem"  # even to root


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    (folder / "api").write_text(f"# of the website\n\n{API}\n another \n")
    (folder / "admin").write_text(f"{ADMIN}\n")
    return folder


@pytest.fixture(scope="module")
def guarded(adder, files):
    """A client of a server that asks for keys, and lets administrators control it."""
    keys = {"api_keys_file": files / "api", "admin_keys_file": files / "admin"}
    with (
        serving_in_process(adder, model_control_mode="explicit", access_log="all", **keys) as service,
        httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=30) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def no_key_is_logged(caplog):
    caplog.set_level("INFO", "heed")
    yield
    logged = str([vars(record) for record in caplog.get_records("call")])
    assert API not in logged
    assert ADMIN not in logged


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", ["/v2", "/v2/models", "/v1/attention", "/openapi.json", "/nowhere", "/v2/logging"])
@pytest.mark.parametrize(
    "headers", [{}, bearer("an-api-ke"), bearer("# of the website"), {"Authorization": "Bearer"}, {"X-API-Key": ""}]
)
def test_reading_needs_a_key(guarded, path, headers):
    response = guarded.get(path, headers=headers)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert ("error" if path.startswith("/v2") else "detail") in response.json()
    assert guarded.get(path, headers=bearer(API)).status_code == (404 if path == "/nowhere" else 200)


def test_health_is_open(guarded):
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/health/live/"):
        assert guarded.get(path).status_code == 200


@pytest.mark.parametrize("path", [INFER, INFER + "/", "/v2/models/adder/versions/1/infer"])
@pytest.mark.parametrize(
    "headers",
    [
        *(bearer(key) for key in (API, "another", ADMIN)),
        {"Authorization": f"bearer  {API}"},
        *({"X-API-Key": API} | more for more in ({}, {"Authorization": ""}, {"Authorization": "Bearer"})),
    ],
)
def test_inference_needs_a_key(guarded, path, headers):
    for wrong in ({}, bearer("x"), {"X-API-Key": "x"}, {"Authorization": f"Basic {API}"}):
        assert guarded.post(path, content=ADD, headers=wrong).status_code == 401
    response = guarded.post(path, content=ADD, headers=headers)
    assert response.json()["outputs"][0]["data"] == ADDED


@pytest.mark.parametrize("name", ["attention", "text", "tokenize", "generate", "sweep", "lens"])
def test_the_native_routes_need_no_admin_key(guarded, name):
    for path in (f"/v1/{name}/adder", f"/v1/{name}/adder/"):
        assert guarded.post(path, json={}).status_code == 401
        assert guarded.post(path, json={}, headers=bearer(API)).status_code == 404


@pytest.mark.parametrize("path", ["/v2/models/adder/generate", "/v2/models/adder/versions/1/generate_stream"])
def test_triton_s_extension_needs_no_admin_key(guarded, path):
    assert guarded.post(path, json={}).status_code == 401
    assert guarded.post(path, json={}, headers=bearer(API)).status_code == 400


@pytest.mark.parametrize("path", [*ADMINISTRATION, *(path + "/" for path in ADMINISTRATION)])
@pytest.mark.parametrize("trick", ["", "%0A", "%0a"])
def test_administration_needs_a_key_of_its_own(guarded, path, trick):
    assert guarded.post(path + trick).status_code == 401
    refused = guarded.post(path + trick, headers=bearer(API))
    assert (refused.status_code, "admin rights" in refused.json()["error"]) == (403, True)
    if not path.rstrip("/").endswith("unload") and not trick:
        assert guarded.post(path, headers=bearer(ADMIN), json={}).status_code == 200


def test_strangers_learn_no_version(guarded):
    for path in ("/v2/health/live", "/nowhere", "/v2"):
        response = guarded.get(path)
        assert "server" not in response.headers
        assert not any(word in str(response.headers).lower() + response.text.lower() for word in ("uvicorn", "python"))


@pytest.mark.parametrize(
    ("kinds", "method", "path", "allowed"),
    [
        ({"admin"}, "POST", INFER, {"", API, ADMIN}),
        ({"admin"}, "GET", "/v2/logging", {"", API, ADMIN}),
        ({"admin"}, "POST", "/v2/logging", {ADMIN}),
        ({"admin"}, "POST", INDEX, {ADMIN}),
        ({"admin"}, "POST", f"{INDEX}/", {ADMIN}),
        ({"api"}, "POST", INDEX, {API}),
        ({"api", "admin"}, "POST", f"{INDEX}/", {API, ADMIN}),
    ],
)
def test_each_file_guards_its_routes(files, kinds, method, path, allowed):
    auth = ApiKeyAuth(None, Settings(**{f"{kind}_keys_file": files / kind for kind in kinds}))
    for key in ("", API, ADMIN, "else"):
        denied = auth.denied({b"x-api-key": key.encode()} if key else {}, path, method)
        is_allowed = key in allowed or "" in allowed
        assert (denied is None, denied and denied.status) == (is_allowed, None if is_allowed else 401)


def test_a_file_of_keys_is_read_again_when_it_changes(tmp_path, caplog):
    (tmp_path / "keys").write_text("old\n")
    keys = KeyFile(tmp_path / "keys")
    assert b"old" in keys
    assert not keys.reload_if_changed()
    (tmp_path / "next").write_text("new\nother\n")
    os.replace(tmp_path / "next", tmp_path / "keys")
    assert keys.reload_if_changed()
    assert (b"old" in keys, b"new" in keys, b"other" in keys) == (False, True, True)
    (tmp_path / "keys").unlink()
    assert not keys.reload_if_changed()
    assert "the old ones stay valid" in caplog.text
    assert b"new" in keys
    (tmp_path / "keys").write_text("")
    assert keys.reload_if_changed()
    assert b"new" not in keys


@pytest.mark.extended
def test_keys_change_in_each_worker(adder, tmp_path):
    (tmp_path / "keys").write_text("old\n")
    flags = ["--api-keys-file", str(tmp_path / "keys"), "--workers", "2"]
    with started(adder, tmp_path / "log", *flags) as service:

        def statuses(key: str) -> list[int]:
            """Those of both workers: each call is a connection of its own."""
            return [httpx.get(f"{service.url}/v2", headers=bearer(key)).status_code for _ in range(4)]

        assert (statuses("old"), statuses("new")) == ([200] * 4, [401] * 4)
        (tmp_path / "keys").write_text("new\n")
        until(lambda: (statuses("old"), statuses("new")) == ([401] * 4, [200] * 4))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--admin-keys-file", "/tmp"], "--admin-keys-file (HEED_ADMIN_KEYS_FILE): '/tmp' cannot be read: Is a"),
        (["--api-keys-file", "x" * 9999], "xxx' cannot be read: File name too long"),
        (["--api-keys-file", UNREADABLE], f"(HEED_API_KEYS_FILE): '{UNREADABLE}' cannot be read: Input/output"),
        (["--tls-certificate", UNREADABLE, "--tls-key", __file__], "(HEED_TLS_CERTIFICATE): '/proc"),
        (["--tls-certificate", __file__, "--tls-key", UNREADABLE], "(HEED_TLS_KEY): '/proc"),
        (["--tls-certificate", __file__], "--tls-certificate and --tls-key must be given together"),
        (
            ["--model-control-mode", "explicit", "--api-keys-file", __file__],
            "explicit beside api_keys_file needs admin_keys_file",
        ),
    ],
)
def test_wrong_settings_are_named(flags, message, capsys):
    assert main(flags) == 2
    assert message in capsys.readouterr().err


def test_pages_of_other_origins(adder, files):
    page = {"Origin": "https://a.example"}
    asking = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with running(adder) as closed:
        assert "access-control-allow-origin" not in closed.get("/v2", headers=page).headers
        assert closed.options(INFER, headers=asking).status_code == 405
    origins = "https://a.example, https://b.example"
    with running(adder, cors_origins=origins, api_keys_file=files / "api") as client:
        preflight = client.options(INFER, headers=asking)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-headers"] == "authorization"
        for key, status in ((API, 200), ("wrong", 401)):
            answer = client.post(INFER, content=ADD, headers={**page, **bearer(key)})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == "https://a.example"
            assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
        stranger = client.post(INFER, content=ADD, headers={"Origin": "https://c.example", **bearer(API)})
        assert "access-control-allow-origin" not in stranger.headers


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_tls(adder, tmp_path, certificate, workers):
    flags = ["--tls-certificate", f"{certificate}/certificate", "--tls-key", f"{certificate}/key"]
    flags += ["--transfer-timeout-seconds", "2"]
    trust = ssl.create_default_context(cafile=certificate / "certificate")
    with started(adder, tmp_path / "log", "--workers", str(workers), *flags, trust=trust) as service:
        for _ in range(4):  # no handshake
            with closing(socket.create_connection(("127.0.0.1", service.port))) as raw:
                raw.sendall(b"GET /v2 HTTP/1.1\r\n\r\n")
                assert not raw.recv(100).startswith(b"HTTP")
        with closing(socket.create_connection(("127.0.0.1", service.port), timeout=20)) as silent:
            assert silent.recv(100) == b""  # the server closes it; a handshake may take 60 s by default
        with httpx.Client(base_url=service.url, verify=trust) as client:
            for _ in range(3):
                assert client.post(INFER, content=ADD).json()["outputs"][0]["data"] == ADDED
        if workers > 1:
            until(lambda: service.spread() == [0, 0])
        service.process.terminate()
        assert service.ended() == 0
