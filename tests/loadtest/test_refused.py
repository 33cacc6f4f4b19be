"""Servers that answer nothing, or not to everyone: what ``heed loadtest`` says, and its exit status."""

import json
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest import options
from loadtest.__main__ import main
from tests.support.app import App
from tests.support.server import started

API = "an-api-key"
ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "clients")))
QUICK = ["--seconds", "0.5", "--window", "0.1", "--max-warmup", "0.3", "--concurrency", "1"]
ADDER = ["--block", "adder", "--api", "v2", "--shape", "x=1,3", "--shape", "z=1,3"]
EVERY = ["--fail-if", "failed>0.1%", "--fail-if", "p99>1s"]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("HEED_URL", "HEED_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("flags", [[], EVERY, ["--rate", "50"]])
def test_nothing_is_answered_with_200(served, scenario, tmp_path, capsys, flags):
    """The first look is answered, nothing after it."""
    url, out = served(App(status=503, after=2)), tmp_path / "out.json"
    quick = QUICK[:-2] if "--rate" in flags else QUICK
    assert main([url, "--scenario", scenario, *quick, *flags, "--json", str(out)]) == 2
    assert f"{url} answered no request with 200" in capsys.readouterr().err
    assert json.loads(out.read_text())["results"][0]["errors"].keys() == {"status 503"}


def test_a_server_that_stands_still_fails_every_threshold(served, scenario, tmp_path):
    """No answer and no error: nothing failed, and nothing was measured."""
    out = tmp_path / "out.json"
    url = served(App(stall=4, after=2))
    flags = ["--fail-if", "failed>50%", "--json", str(out)]
    assert main([url, "--scenario", scenario, *QUICK, *flags]) == 2
    document = json.loads(out.read_text())
    assert document["results"][0]["failed"] is None
    assert document["violations"] == ["1 connection: failed>50%: nothing was measured"]


@pytest.mark.parametrize("first", [True, False])
def test_one_of_two_servers_answers_nothing(served, scenario, capsys, first):
    urls = [served(App()), served(App(status=500, after=2))][:: 1 if first else -1]
    flags = ["--compare", urls[1], "--rounds", "1", *QUICK]
    assert main([urls[0], "--scenario", scenario, *flags]) == 2
    assert f"{urls[first]} answered no request with 200" in capsys.readouterr().err


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503])
def test_a_refusal_is_called_by_its_status(served, capsys, status):
    url = served(Refusing(status))
    assert main([url, *QUICK]) == 2
    shown = capsys.readouterr().err
    assert f"{url} answers {status} to " in shown
    assert "serves no" not in shown
    assert ("HEED_API_KEY" in shown) == (status in (401, 403))


def test_404_is_called_what_it_is(served, capsys):
    url = served(Refusing(404))
    assert main([url, *QUICK]) == 2
    assert f"{url} serves no scaled_dot_product" in capsys.readouterr().err


class Refusing(App):
    """Answers every request with ``status``."""

    def __init__(self, status: int) -> None:
        super().__init__(status, after=0)


def test_keys(models, tmp_path, capsys, monkeypatch):
    (tmp_path / "keys").write_text(f"{API}\n")
    with started(models, tmp_path / "log", "--api-keys-file", f"{tmp_path}/keys", "--workers", "1") as service:
        url = f"http://127.0.0.1:{service.port}"
        assert main([url, *ADDER, *QUICK]) == 2
        assert (
            f"{url} answers 401 to /v2/models/adder; --api-key or HEED_API_KEY gives a key" in capsys.readouterr().err
        )
        assert main([url, *ADDER, *QUICK, "--api-key", "wrong"]) == 2
        assert main([url, *ADDER, *QUICK, "--api-key", API]) == 0
        monkeypatch.setenv("HEED_API_KEY", API)
        monkeypatch.setenv("HEED_URL", url + "/")
        assert main([*ADDER, *QUICK]) == 0
        assert main([*ADDER, *QUICK, "--header", "authorization: Bearer wrong"]) == 2


def test_variables_are_defaults(monkeypatch):
    monkeypatch.setenv("HEED_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("HEED_API_KEY", "a key")
    parsed, _ = options.parse([])
    assert (parsed.url, parsed.header) == ("http://127.0.0.1:1", [("Authorization", "Bearer a key")])
    parsed, _ = options.parse(["http://127.0.0.1:2", "--header", "AUTHORIZATION: Basic x"])
    assert (parsed.url, parsed.header) == ("http://127.0.0.1:2", [("AUTHORIZATION", "Basic x")])
    monkeypatch.setenv("HEED_API_KEY", "a\nb")
    with pytest.raises(SystemExit):
        options.parse([])


def test_a_certificate_named_by_a_relative_path(models, certificate, tmp_path):
    """In the first look and in the measurement, which other processes make; a module of the directory is not taken."""
    tls = ["--tls-certificate", f"{certificate}/certificate", "--tls-key", f"{certificate}/key"]
    shutil.copy(certificate / "certificate", tmp_path / "trusted.pem")
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong numpy')")
    command = [sys.executable, "-P", "-m", "loadtest", *ADDER, *QUICK]
    trust = ssl.create_default_context(cafile=certificate / "certificate")
    with started(models, tmp_path / "log", *tls, "--workers", "1", trust=trust) as service:
        url = f"https://127.0.0.1:{service.port}"
        for trusted, status in (("trusted.pem", 0), ("log", 2)):
            environment = {**os.environ, "SSL_CERT_FILE": trusted, "PYTHONPATH": PATHS}
            ended = subprocess.run([*command, url], cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert ended.returncode == status, ended.stderr
        assert "its certificate is not trusted" in ended.stderr
