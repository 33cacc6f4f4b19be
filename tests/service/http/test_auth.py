"""Keys, origins and TLS: who is let in, who is not, and that strangers learn nothing."""

import os
import socket
import ssl
from contextlib import closing

import httpx
import pytest

from service.cli.serve import main
from service.http.auth import ApiKeyAuth
from service.settings import Settings
from tests.support import graphs
from tests.support.http_client import ADD, ADDED
from tests.support.server import started
from tests.support.waiting import until

INFER = "/v2/models/adder/infer"
ADMINISTRATION = ["/v2/repository/models/adder/load", "/v2/repository/models/adder/unload", "/v2/logging"]
API, ADMIN = "an-api-key", "an-admin-key"
UNREADABLE = "/proc/self/mem"  # even to root


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    graphs.adder(folder / "adder" / "1")
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    (folder / "api").write_text(f"# of the website\n\n{API}\n another \n")
    (folder / "admin").write_text(f"{ADMIN}\n")
    return folder


@pytest.fixture(scope="module")
def guarded(models, files, tmp_path_factory):
    """A server that asks for keys, and lets administrators control it."""
    flags = ["--api-keys-file", f"{files}/api", "--admin-keys-file", f"{files}/admin", "--workers", "1"]
    log = tmp_path_factory.mktemp("log") / "log"
    with started(models, log, *flags, "--model-control-mode", "explicit") as service:
        with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=30) as client:
            yield client
        assert not any(key in log.read_text() for key in (API, ADMIN))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/models", "/v1/attention", "/openapi.json", "/docs", "/nowhere", "/v2/logging"]
)
@pytest.mark.parametrize(
    "headers", [{}, bearer("an-api-ke"), bearer("# of the website"), {"Authorization": "Bearer"}, {"X-API-Key": ""}]
)
def test_reading_needs_a_key(guarded, path, headers):
    response = guarded.get(path, headers=headers)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert ("error" if path.startswith("/v2") else "detail") in response.json()
    assert guarded.get(path, headers=bearer(API)).status_code == (404 if path == "/nowhere" else 200)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/health/live/"])
def test_health_is_open(guarded, path):
    assert guarded.get(path).status_code == 200


@pytest.mark.parametrize("path", [INFER, INFER + "/", "/v2/models/adder/versions/1/infer"])
@pytest.mark.parametrize(
    "headers", [bearer(API), bearer("another"), bearer(ADMIN), {"X-API-Key": API}, {"Authorization": f"bearer  {API}"}]
)
def test_inference_needs_a_key(guarded, path, headers):
    for wrong in ({}, bearer("x"), {"X-API-Key": "x"}, {"Authorization": f"Basic {API}"}):
        assert guarded.post(path, content=ADD, headers=wrong).status_code == 401
    response = guarded.post(path, content=ADD, headers=headers)
    assert response.json()["outputs"][0]["data"] == ADDED


def test_the_native_route_needs_a_key(guarded):
    assert guarded.post("/v1/attention/adder", json={}).status_code == 401
    assert guarded.post("/v1/attention/adder", json={}, headers=bearer(API)).status_code == 404


@pytest.mark.parametrize("path", [*ADMINISTRATION, *(path + "/" for path in ADMINISTRATION)])
@pytest.mark.parametrize("trick", ["", "%0A", "%0a"])
def test_administration_needs_a_key_of_its_own(guarded, path, trick):
    assert guarded.post(path + trick).status_code == 401
    refused = guarded.post(path + trick, headers=bearer(API))
    assert (refused.status_code, "administration" in refused.json()["error"]) == (403, True)
    if not path.rstrip("/").endswith("unload") and not trick:
        assert guarded.post(path, headers=bearer(ADMIN), json={}).status_code == 200


def test_keys_change_without_a_restart(models, tmp_path):
    file = tmp_path / "keys"
    file.write_text("old\n")
    with started(models, tmp_path / "log", "--api-keys-file", str(file), "--workers", "2") as service:
        url = f"http://127.0.0.1:{service.port}/v2"

        def opens(key: str) -> bool:
            """What both workers say: each call is a connection of its own."""
            return all(httpx.get(url, headers=bearer(key)).status_code == 200 for _ in range(4))

        assert opens("old")
        assert not opens("new")
        (tmp_path / "next").write_text("new\nold\n")
        os.replace(tmp_path / "next", file)
        until(lambda: opens("new") and opens("old"))
        file.write_text("new\n")
        until(lambda: not opens("old"))
        file.unlink()
        until(lambda: "stay as they were" in service.log.read_text() or not opens("new"))
        assert opens("new")
        file.write_text("")
        until(lambda: not opens("new"))


def test_admin_keys_alone_leave_inference_open(tmp_path):
    (tmp_path / "admin").write_text(ADMIN)
    access = ApiKeyAuth(None, Settings(admin_keys_file=tmp_path / "admin"))
    assert access.denied({}, INFER, "POST") is None
    assert access.denied({}, "/v2/repository/index", "POST").status == 401
    assert access.denied({}, "/v2/logging", "GET") is None
    assert access.denied({}, "/v2/logging", "POST").status == 401
    assert access.denied({b"x-api-key": ADMIN.encode()}, "/v2/logging", "POST") is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--api-keys-file", "nowhere"],
            "--api-keys-file (HEED_API_KEYS_FILE): 'nowhere' cannot be read: No such file",
        ),
        (["--admin-keys-file", "/tmp"], "--admin-keys-file (HEED_ADMIN_KEYS_FILE): '/tmp' cannot be read: Is a"),
        (["--api-keys-file", "x" * 9999], "xxx' cannot be read: File name too long"),
        (["--api-keys-file", UNREADABLE], f"(HEED_API_KEYS_FILE): '{UNREADABLE}' cannot be read: Input/output"),
        (["--tls-certificate", UNREADABLE, "--tls-key", __file__], "(HEED_TLS_CERTIFICATE): '/proc"),
        (["--tls-certificate", __file__, "--tls-key", UNREADABLE], "(HEED_TLS_KEY): '/proc"),
        (["--tls-certificate", __file__], "--tls-certificate and --tls-key are needed together"),
        (["--tls-certificate", __file__, "--tls-key", __file__], "(HEED_TLS_KEY): expected a certificate and its key"),
        (
            ["--model-control-mode", "explicit", "--api-keys-file", __file__],
            "explicit beside api_keys_file needs admin_keys_file",
        ),
    ],
)
def test_wrong_settings_are_named(flags, said, capsys):
    assert main(flags) == 2
    assert said in capsys.readouterr().err


def test_pages_of_other_origins(models, tmp_path, files):
    page = {"Origin": "https://a.example"}
    asking = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with started(models, tmp_path / "closed", "--workers", "1") as service:
        closed = f"http://127.0.0.1:{service.port}"
        assert "access-control-allow-origin" not in httpx.get(f"{closed}/v2", headers=page).headers
        assert httpx.options(closed + INFER, headers=asking).status_code == 405
    flags = ["--cors-origins", "https://a.example, https://b.example", "--api-keys-file", f"{files}/api"]
    with started(models, tmp_path / "open", "--workers", "1", *flags) as service:
        url = f"http://127.0.0.1:{service.port}{INFER}"
        preflight = httpx.options(url, headers=asking)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-headers"] == "authorization"
        for key, status in ((API, 200), ("wrong", 401)):
            answer = httpx.post(url, content=ADD, headers={**page, **bearer(key)})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == "https://a.example"
            assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
        stranger = httpx.post(url, content=ADD, headers={"Origin": "https://c.example", **bearer(API)})
        assert "access-control-allow-origin" not in stranger.headers


@pytest.mark.parametrize("workers", [1, 2])
def test_tls(models, tmp_path, certificate, workers):
    flags = ["--tls-certificate", f"{certificate}/certificate", "--tls-key", f"{certificate}/key"]
    trust = ssl.create_default_context(cafile=certificate / "certificate")
    with started(models, tmp_path / "log", "--workers", str(workers), *flags, trust=trust) as service:
        for _ in range(4):  # no handshake
            with closing(socket.create_connection(("127.0.0.1", service.port))) as raw:
                raw.sendall(b"GET /v2 HTTP/1.1\r\n\r\n")
                assert not raw.recv(100).startswith(b"HTTP")
        with httpx.Client(base_url=f"https://127.0.0.1:{service.port}", verify=trust) as client:
            for _ in range(3):
                assert client.post(INFER, content=ADD).json()["outputs"][0]["data"] == ADDED
        if workers > 1:
            until(lambda: service.spread() == [0, 0])
        service.process.terminate()
        assert service.ended() == 0


def test_strangers_learn_no_version(guarded):
    for path in ("/v2/health/live", "/nowhere", "/v2"):
        response = guarded.get(path)
        assert "server" not in response.headers
        assert not any(word in str(response.headers).lower() + response.text.lower() for word in ("uvicorn", "python"))
