"""What a result says beside its numbers: how to repeat it; a soak; files for continuous integration."""

import csv
import json
import shlex
import ssl
from importlib.metadata import version
from xml.etree import ElementTree

import pytest

from loadtest import about
from loadtest.__main__ import main
from loadtest.server import Server
from tests.support.app import App
from tests.support.server import started

SMALL = ["--size", "m=4", "--size", "n=5", "--size", "d_k=8", "--size", "d_v=8"]
QUICK = ["--seconds", "0.5", "--window", "0.1", "--max-warmup", "0.3"]


@pytest.fixture
def url(client):
    return str(client.base_url).rstrip("/")


def test_it_can_be_repeated(url, tmp_path):
    out = tmp_path / "out.json"
    flags = [*SMALL, *QUICK, "-c", "2", "-H", "X-Api-Key: secret", "--api-key", "hidden", "--json", str(out)]
    assert main([url, *flags]) == 0
    text = out.read_text()
    assert "secret" not in text
    assert "hidden" not in text
    document = json.loads(text)
    command = shlex.split(document["command"])
    assert command[:3] == ["heed", "loadtest", url]
    assert command[3:] == [{"X-Api-Key: secret": "X-Api-Key: ...", "hidden": "..."}.get(flag, flag) for flag in flags]
    (request,) = document["requests"]
    assert request["shapes"] == [{"query": [1, 4, 4, 8], "key": [1, 4, 5, 8], "value": [1, 4, 5, 8]}]
    server = document["server_details"]["A"]
    assert (server["version"], server["provider"], server["workers"]) == (version("heed-attention"), "cpu", 1)
    assert server["onnxruntime"] == version("onnxruntime")
    assert document["load_generator"]["cpus"] >= 1


def test_the_url_of_a_variable_is_in_the_command():
    headers = [("Authorization", "Bearer of-a-variable"), ("X-Tenant", "8")]
    command = about.command(["-c", "8", "--header=Authorization: Bearer of-a-variable"], "http://a:1", headers)
    assert command == "heed loadtest http://a:1 -c 8 '--header=Authorization: ...'"
    assert about.command(["http://a:1", "--api-key=k"], "", [("Authorization", "Bearer k")]) == (
        "heed loadtest http://a:1 --api-key=..."
    )


def test_a_server_that_says_nothing_of_itself(served):
    assert about.about(Server(served(App()), {})) == {}
    assert about.about(Server(served(App(status=500, after=0)), {})) == {}


def test_a_soak_holds_the_last_level(url, tmp_path):
    out = tmp_path / "out.json"
    flags = ["-c", "1,2", "--soak", "1.5", "--fail-if", "growth>2GB", "--json", str(out)]
    assert main([url, *SMALL, *QUICK, *flags]) == 0
    one, two, soak = json.loads(out.read_text())["results"]
    assert [found["level"] for found in (one, two, soak)] == [
        "1 connection",
        "2 connections",
        "2 connections, soak 1.5 s",
    ]
    assert (one["soak"], two["soak"], soak["soak"]) == (False, False, True)
    assert two["seconds"] == pytest.approx(0.5, abs=0.2)
    assert soak["seconds"] == pytest.approx(1.5, abs=0.4)
    assert sum(window["phase"] == "measured" for window in soak["windows"]) == 20
    assert soak["growth"] == soak["server_side"]["growth"] is not None


def test_csv(url, tmp_path):
    out, table = tmp_path / "out.json", tmp_path / "out.csv"
    assert main([url, *SMALL, *QUICK, "-c", "1,2", "--json", str(out), "--csv", str(table)]) == 0
    results = json.loads(out.read_text())["results"]
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["level"] for row in rows] == ["1 connection", "2 connections"]
    for row, result in zip(rows, results, strict=True):
        assert (row["url"], row["server"], row["offered_per_s"]) == (url, "A", "")
        assert float(row["p99_ms"]) == result["p99"]
        assert float(row["rate_per_s"]) == result["rate"]
        assert int(row["errors"]) == 0
        assert float(row["rest_mean_ms"]) == result["server_side"]["rest"]["mean"]


def cases(file):
    """By name: the kind of problem and its text, or None."""
    suites = ElementTree.parse(file).getroot()
    return {
        case.get("name"): next(((child.tag, child.get("message")) for child in case if child.tag != "system-out"), None)
        for case in suites.iter("testcase")
    }


def test_junit(url, tmp_path):
    file = tmp_path / "junit.xml"
    flags = ["--fail-if", "p50>1us", "--fail-if", "p50>60s", "--junit", str(file)]
    assert main([url, *SMALL, *QUICK, "-c", "1", *flags]) == 1
    (suite,) = ElementTree.parse(file).getroot()
    assert {name: suite.get(name) for name in ("name", "tests", "failures", "errors")} == {
        "name": url, "tests": "3", "failures": "1", "errors": "0",
    }  # fmt: skip
    properties = {found.get("name"): found.get("value") for found in suite.iter("property")}
    assert properties["version"] == version("heed-attention")
    assert properties["command"].startswith("heed loadtest")
    found = cases(file)
    assert found["1 connection: answered"] is found["1 connection: p50>60s"] is None
    kind, message = found["1 connection: p50>1us"]
    assert kind == "failure"
    assert float(message) > 0


def test_junit_of_servers_without_an_answer(served, scenario, tmp_path):
    file, table = tmp_path / "junit.xml", tmp_path / "out.csv"
    flags = ["--scenario", scenario, *QUICK, "-c", "1", "--junit", str(file), "--csv", str(table)]
    assert main([served(App(status=503, after=2)), *flags]) == 2
    kind, message = cases(file)["1 connection: answered"]
    assert (kind, message[:36]) == ("error", "no request was answered with 200 " + message[33:36])
    assert "times status 503" in message
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert (row["p99_ms"], row["requests"], row["server_mean_ms"]) == ("", "0", "")
    assert main(["http://127.0.0.1:1", *flags]) == 2
    (case,) = cases(file).values()
    assert case[0] == "error"
    assert "does not answer" in case[1]


def test_units_are_in_the_table(url, capsys):
    assert main([url, *SMALL, *QUICK, "-c", "1"]) == 0
    (head,) = [line for line in capsys.readouterr().out.splitlines() if "p99.9" in line]
    assert head.split()[:5] == ["load", "requests/s", "p50", "ms", "p95"]


@pytest.mark.parametrize(
    ("flags", "status"), [([], 2), (["--cacert", "certificate"], 0), (["-k"], 0), (["--memory", "--insecure"], 2)]
)
def test_certificates(models, certificate, tmp_path, capsys, monkeypatch, flags, status):
    """In the first requests and in those of the load, which another process sends."""
    monkeypatch.chdir(certificate)
    tls = ["--tls-certificate", f"{certificate}/certificate", "--tls-key", f"{certificate}/key"]
    trust = ssl.create_default_context(cafile=certificate / "certificate")
    adder = ["--block", "adder", "--api", "v2", "--shape", "x=1,3", "--shape", "z=1,3", "-c", "1"]
    with started(models, tmp_path / "log", *tls, "--workers", "1", trust=trust) as service:
        assert main([f"https://127.0.0.1:{service.port}", *adder, *QUICK, *flags]) == status
    errors = capsys.readouterr().err
    assert ("--cacert or SSL_CERT_FILE" in errors) == (not flags)
    assert ("--memory needs a block" in errors) == ("--memory" in flags)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_without_a_certificate(tmp_path, capsys, content):
    file = tmp_path / "ca.pem"
    if content:
        file.write_text(content)
    with pytest.raises(SystemExit) as ended:
        main(["https://127.0.0.1:1", "--cacert", str(file)])
    assert ended.value.code == 2
    assert f"--cacert: {file}: " in capsys.readouterr().err
