"""Servers that answer nothing, or not to everyone: what ``heed loadtest`` says, and its exit status."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest import options
from loadtest.__main__ import main
from tests.loadtest.conftest import QUICK, junit_cases
from tests.support.app import App, closed_port

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "clients")))


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("HEED_URL", "HEED_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def load(scenario):
    """Runs the command, one connection; answers its exit status."""
    return lambda *flags: main([*QUICK, "-c", "1", "--scenario", scenario, *map(str, flags)])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
def test_a_refusal_is_called_by_its_status(served, capsys, status):
    url = served(App(status, after=0))
    assert main([url]) == 2
    wrong = capsys.readouterr().err
    assert (f"{url} serves no scaled_dot_product" if status == 404 else f"{url} answers {status} to ") in wrong
    assert ("HEED_API_KEY" in wrong) == (status in (401, 403))


def test_files_about_servers_without_an_answer(served, load, tmp_path):
    file, table = tmp_path / "junit.xml", tmp_path / "out.csv"
    files = ["--junit", file, "--csv", table]
    assert load(served(App(status=503, after=2)), *files) == 2
    kind, message = junit_cases(file)["1 connection: answered"]
    assert (kind, message[:33]) == ("error", "no request was answered with 200 ")
    assert "times status 503" in message
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert (row["p99_ms"], row["requests"], row["server_mean_ms"]) == ("", "0", "")
    with closed_port() as nobody:
        assert load(nobody, *files) == 2
    ((kind, message),) = junit_cases(file).values()
    assert kind == "error"
    assert "does not answer" in message


def test_keys(served, load, capsys):
    url = served(App(key="an-api-key"))
    assert load(url) == 2
    assert f"{url} answers 401 to /any; --api-key or HEED_API_KEY gives a key" in capsys.readouterr().err
    assert load(url, "--api-key", "wrong") == 2
    assert load(url, "--api-key", "an-api-key") == 0


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


@pytest.mark.parametrize(("flags", "status"), [([], 2), (["--cacert", "certificate"], 0), (["-k"], 0)])
def test_certificates(served, load, certificate, capsys, monkeypatch, flags, status):
    """In the first requests and in those of the load, which another process sends."""
    monkeypatch.chdir(certificate)
    assert load(served(App(), certificate), *flags) == status
    assert ("--cacert or SSL_CERT_FILE" in capsys.readouterr().err) == (not flags)


@pytest.mark.extended
@pytest.mark.parametrize(("trusted", "status"), [("trusted.pem", 0), ("numpy.py", 2)])
def test_a_certificate_named_by_a_relative_path(served, scenario, certificate, tmp_path, trusted, status):
    """In the first look and in the measurement, which other processes make; a module of the directory is not taken."""
    shutil.copy(certificate / "certificate", tmp_path / "trusted.pem")
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong numpy')")
    command = [sys.executable, "-P", "-m", "loadtest", *QUICK, "-c", "1", "--scenario", scenario]
    environment = {**os.environ, "SSL_CERT_FILE": trusted, "PYTHONPATH": PATHS}
    ended = subprocess.run(
        [*command, served(App(), certificate)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == status, ended.stderr
    assert ("its certificate is not trusted" in ended.stderr) == (status == 2)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_without_a_certificate(tmp_path, capsys, content):
    file = tmp_path / "ca.pem"
    if content:
        file.write_text(content)
    with pytest.raises(SystemExit) as ended:
        main(["https://127.0.0.1:1", "--cacert", str(file)])
    assert ended.value.code == 2
    assert f"--cacert: {file}: " in capsys.readouterr().err
