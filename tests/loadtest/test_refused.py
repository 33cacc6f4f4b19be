"""Servers that answer nothing, or not to everyone: what ``heed loadtest`` says, and its exit status."""

import csv
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.measurement.measure import Measurement
from loadtest.measurement.window import join
from tests.loadtest.conftest import QUICK, body_of, junit_cases
from tests.support.app import App, closed_port

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "clients")))


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("HEED_URL", "HEED_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
def test_a_refusal_is_called_by_its_status(served, capsys, status):
    url = served(App(status, after=0))
    assert main([url]) == 2
    wrong = capsys.readouterr().err
    assert (f"no model 'scaled_dot_product' at {url}" if status == 404 else f"{url} answered {status} to ") in wrong
    assert ("HEED_API_KEY" in wrong) == (status in (401, 403))


def test_two_servers_of_which_one_fails(served, load, tmp_path, capsys):
    """Its first answer is good, no other: statuses are counted and not timed. What is not known is left out."""
    urls = [served(App()), served(App(status=503, after=2))]
    page, file, table = (tmp_path / name for name in ("report.html", "junit.xml", "out.csv"))
    flags = ["--rate", 50, "--rounds", 1, "--fail-if", "p50>1us", "--report", page, "--junit", file, "--csv", table]
    good, bad = load(urls[0], "--compare", urls[1], *flags, status=2)["results"]
    assert (good["server"], good["errors"], good["requests"] > 0) == ("A", {}, True)
    assert bad["errors"].keys() == {"status 503"}
    assert (bad["server"], bad["requests"], bad["failed"], bad["steady"]) == ("B", 0, 1, False)
    printed, wrong = capsys.readouterr()
    assert "status 503: " in printed
    assert f"{urls[1]} answered no request with 200" in wrong
    assert urls[0] not in wrong
    kind, message = junit_cases(file)[f"{bad['level']}: answered"]
    assert (kind, message[:33]) == ("error", "no request was answered with 200:")
    assert "status 503: " in message
    _, row = csv.DictReader(table.read_text().splitlines())
    assert (row["p99_ms"], row["requests"], row["server_mean_ms"]) == ("", "0", "")
    body = body_of(page)
    assert "no Heed metrics" in body
    assert "open loop, Poisson" in body
    assert "Where the time goes" not in body


@pytest.mark.parametrize(("condition", "status"), [("growth>1GB", 1), ("rate<1/s", 0)])
def test_an_overloaded_server_has_a_result(served, load, monkeypatch, capsys, tmp_path, condition, status):
    """All that it answered in the measurement was due before: the conditions decide, and say what was not measured."""
    late = replace(join([]), phase="measured", seconds=1.0, answered=146)

    def measured(options, sides, _specs, measurements, _console):
        measurements[options.levels[0], sides[0].title].append(Measurement([late], None, None, None, 1))

    monkeypatch.setattr("loadtest.__main__.measure", measured)
    (result,) = load(
        served(App()), "--rate", 900, "--fail-if", condition, "--junit", tmp_path / "junit.xml", status=status
    )["results"]
    printed, wrong = capsys.readouterr()
    assert (result["requests"], result["rate"], wrong) == (0, 146, "")
    assert "no request due in the measurement was answered in time" in printed
    assert junit_cases(tmp_path / "junit.xml")["900/s: answered"] is None


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside one that answers"])
def test_a_server_that_does_not_answer(served, load, tmp_path, beside):
    file = tmp_path / "junit.xml"
    with closed_port() as closed_address:
        assert not load(*([served(App()), "--compare"] if beside else []), closed_address, "--junit", file, status=2)
    ((kind, message),) = junit_cases(file).values()
    assert kind == "error"
    assert f"{closed_address} does not answer" in message


def test_keys(served, load, scenario, capsys):
    url = served(App(key="an-api-key"))
    load(url, status=2)
    assert f"{url} answered 401 to /any; --api-key or HEED_API_KEY gives a key" in capsys.readouterr().err
    load(url, "--api-key", "wrong", status=2)
    assert main([url, *QUICK, "-c", "1", "--scenario", scenario, "--api-key", "an-api-key"]) == 0


@pytest.mark.parametrize(("flags", "status"), [([], 2), (["--cacert", "certificate"], 0), (["-k"], 0)])
def test_certificates(served, load, certificate, capsys, monkeypatch, flags, status):
    """In the first requests and in those of the load, which another process sends."""
    monkeypatch.chdir(certificate)
    load(served(App(), certificate), "-c", 1, *flags, status=status)
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
