"""What one run of the command says: its numbers, how to repeat it, files for continuous integration, the report."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

from loadtest.__main__ import main
from loadtest.report import about
from loadtest.requests.server import Server
from tests.loadtest.conftest import QUICK, SMALL, body_of, junit_cases
from tests.support.app import App

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LEVELS = ["1 connection", "2 connections", "2 connections, soak 0.6 s"]


class Sweep(NamedTuple):
    """All that one run of the command wrote."""

    flags: list[str]
    printed: str
    folder: Path
    document: dict[str, Any]


@pytest.fixture(scope="session")
def sweep(url, tmp_path_factory) -> Sweep:
    """Three levels of load on the real server."""
    folder = tmp_path_factory.mktemp("sweep")
    files = {"--json": "out.json", "--csv": "out.csv", "--junit": "junit.xml", "--report": "report.html"}
    flags = [
        *SMALL, *QUICK, "-c", "1,2", "--soak", "0.6", "-H", "X-Api-Key: secret", "--api-key", "hidden",
        "--fail-if", "p50>1us", "--fail-if", "p50>60s", "--fail-if", "rate<1/s",
        *(part for flag, name in files.items() for part in (flag, str(folder / name))),
    ]  # fmt: skip
    with redirect_stdout(StringIO()) as printed:
        assert main([url, *flags]) == 1
    return Sweep(flags, printed.getvalue(), folder, json.loads((folder / "out.json").read_text()))


def test_every_level_is_measured(sweep):
    """A soak in more windows."""
    results = sweep.document["results"]
    assert [result["level"] for result in results] == LEVELS
    assert [result["soak"] for result in results] == [False, False, True]
    *short, soak = [sum(window["phase"] == "measured" for window in result["windows"]) for result in results]
    assert max(short) <= 5 < soak <= 20  # fewer where the machine is busy
    assert results[2]["seconds"] > 0.5
    assert [result["concurrency"] for result in results] == [1, 2, 2]
    for result in results:
        assert result["rate"] * result["seconds"] == pytest.approx(result["requests"])
        assert 0 < result["p50"] <= result["p90"] <= result["p99"] <= result["max"]
        assert not result["errors"]
        assert {"warm-up", "measured"} == {window["phase"] for window in result["windows"]}


def test_the_server_measured_the_same_requests(sweep):
    """Also some of the warm-up, and those in flight at the end: where the machine is busy, its metrics come late."""
    for result in sweep.document["results"]:
        inside, windows, connections = result["server_side"], result["windows"], result["concurrency"]
        sent = sum(window["rate"] * window["seconds"] for window in windows) + connections
        assert 0 < inside["requests"] < 2 * sent
        assert 0 < inside["stages"]["compute"]["mean"] < inside["total"]["mean"]
        milliseconds = 1e3 * sum(window["seconds"] for window in windows)
        assert inside["requests"] * inside["total"]["mean"] < 2 * connections * milliseconds
        assert inside["cores"] > 0
        assert result["growth"] == inside["growth"] is not None


def test_it_can_be_repeated_without_its_secrets(sweep, url):
    document = sweep.document
    assert "secret" not in str(document)
    assert "hidden" not in str(document)
    hidden = {"X-Api-Key: secret": "X-Api-Key: ...", "hidden": "..."}
    flags = [hidden.get(flag, flag) for flag in sweep.flags]
    assert shlex.split(document["command"]) == ["heed", "loadtest", url, *flags]
    (request,) = document["requests"]
    assert request["shapes"] == [{"query": [1, 4, 4, 8], "key": [1, 4, 5, 8], "value": [1, 4, 5, 8]}]
    server = document["server_details"]["A"]
    assert (server["version"], server["provider"], server["workers"]) == (version("heed-attention"), "cpu", 1)
    assert server["onnxruntime"] == version("onnxruntime")
    assert document["load_generator"]["cpus"] >= 1


def test_the_terminal_shows_levels_units_and_what_failed(sweep):
    (head,) = [line for line in sweep.printed.splitlines() if "p99.9" in line]
    assert head.split()[:5] == ["load", "requests/s", "p50", "ms", "p95"]
    assert all(re.search(rf"^{level} +\d", sweep.printed, re.MULTILINE) for level in LEVELS)
    assert re.search(r"failed: 1 connection: p50>1us: \d", sweep.printed)
    assert "rate<1/s" not in sweep.printed


def test_csv(sweep, url):
    rows = list(csv.DictReader((sweep.folder / "out.csv").read_text().splitlines()))
    assert [row["level"] for row in rows] == LEVELS
    for row, result in zip(rows, sweep.document["results"], strict=True):
        assert (row["url"], row["server"], row["offered_per_s"]) == (url, "A", "")
        assert float(row["p99_ms"]) == result["p99"]
        assert float(row["rate_per_s"]) == result["rate"]
        assert int(row["errors"]) == 0
        assert float(row["rest_mean_ms"]) == result["server_side"]["rest"]["mean"]


def test_junit(sweep, url):
    file = sweep.folder / "junit.xml"
    (suite,) = ElementTree.parse(file).getroot()
    assert {name: suite.get(name) for name in ("name", "tests", "failures", "errors")} == {
        "name": url, "tests": "12", "failures": "3", "errors": "0",
    }  # fmt: skip
    properties = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert properties["version"] == version("heed-attention")
    assert properties["command"].startswith("heed loadtest")
    cases = junit_cases(file)
    assert cases["1 connection: answered"] is cases["1 connection: p50>60s"] is None
    kind, message = cases["1 connection: p50>1us"]
    assert kind == "failure"
    assert float(message.removesuffix("us").replace(",", "")) > 1


def test_the_url_of_a_variable_is_in_the_command():
    headers = [("Authorization", "Bearer of-a-variable"), ("X-Tenant", "8")]
    command = about.command(["-c", "8", "--header=Authorization: Bearer of-a-variable"], "http://a:1", headers)
    assert command == "heed loadtest http://a:1 -c 8 '--header=Authorization: ...'"
    assert about.command(["http://a:1", "--api-key=k"], "", [("Authorization", "Bearer k")]) == (
        "heed loadtest http://a:1 --api-key=..."
    )


@pytest.mark.parametrize("app", [App(), App(status=500, after=0)], ids=["empty", "error"])
def test_a_server_that_says_nothing_of_itself(served, app):
    assert about.about(Server(served(app), {})) == {}


def test_the_report_says_what_was_measured(sweep, url):
    body = body_of(sweep.folder / "report.html")
    for text in ("2 connections", f"heed loadtest {url}", "query 1×4×4×8", "cpu (", "Where the time goes"):
        assert text in body


@pytest.fixture
def render(tmp_path):
    """Opens a page in the browser; answers its DOM and the lines of its console."""
    if not CHROMIUM:
        pytest.skip("no Chromium here: apt-get install chromium")

    def run(page):
        command = [
            CHROMIUM, "--headless", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", "--dump-dom", page.as_uri(),
        ]  # fmt: skip
        command[2:2] = ["--no-sandbox"] * (os.geteuid() == 0)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        # Plotly fits margins to labels in a few steps, and says so where it stops before the last pixel.
        return done.stdout, [line for line in console if "Too many auto-margin redraws" not in line]

    return run


@pytest.mark.extended
def test_a_browser_draws_every_plot_of_the_report(sweep, render):
    dom, console = render(sweep.folder / "report.html")
    assert not console
    body = dom[dom.index("<body>") :]
    assert len(re.findall(r'class="js-plotly-plot"|class="plotly-graph-div js-plotly-plot"', body)) == 5
    assert len(re.findall(r'class="trace scatter', body)) == 3 + 1 + 3 + 3  # curves, rate, percentiles, time
    assert len(re.findall(r'class="trace bars"', body)) == 6  # rest, stages, other


@pytest.mark.extended
def test_script_errors_would_be_seen(tmp_path, render):
    page = tmp_path / "broken.html"
    page.write_text("<script>nonesuch()</script>")
    assert any("nonesuch" in line for line in render(page)[1])
