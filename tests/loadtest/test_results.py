"""What one run of the command says: its numbers, how to repeat it, and files for continuous integration."""

import re
import shlex
from importlib.metadata import version
from xml.etree import ElementTree

import pytest

from loadtest import about
from loadtest.server import Server
from tests.loadtest.conftest import junit_cases
from tests.support.app import App

LEVELS = ["1 connection", "2 connections", "2 connections, soak 0.6 s"]


def test_every_level_is_measured(sweep):
    results = sweep.document["results"]
    assert [result["level"] for result in results] == LEVELS
    assert [result["concurrency"] for result in results] == [1, 2, 2]
    for result in results:
        assert result["rate"] * result["seconds"] == pytest.approx(result["requests"])
        assert 0 < result["p50"] <= result["p90"] <= result["p99"] <= result["max"]
        assert not result["errors"]
        assert {"warm-up", "measured"} == {window["phase"] for window in result["windows"]}


def test_the_server_measured_the_same_requests(sweep):
    for result in sweep.document["results"]:
        inside = result["server_side"]
        assert inside["requests"] == pytest.approx(result["requests"], rel=0.5, abs=20)
        assert 0 < inside["stages"]["compute"]["mean"] < inside["total"]["mean"]
        assert inside["total"]["mean"] < 1.5 * result["mean"]  # other requests: those of the warm-up count, too
        assert inside["cores"] > 0
        assert result["growth"] == inside["growth"] is not None


def test_a_soak_is_measured_in_more_windows(sweep):
    results = sweep.document["results"]
    assert [result["soak"] for result in results] == [False, False, True]
    assert [sum(window["phase"] == "measured" for window in result["windows"]) for result in results] == [5, 5, 20]
    assert results[2]["seconds"] > results[1]["seconds"]


def test_it_can_be_repeated_without_its_secrets(sweep, url):
    document = sweep.document
    assert "secret" not in str(document)
    assert "hidden" not in str(document)
    hidden = {"X-Api-Key: secret": "X-Api-Key: ...", "hidden": "..."}
    assert shlex.split(document["command"]) == [
        "heed",
        "loadtest",
        url,
        *(hidden.get(flag, flag) for flag in sweep.flags),
    ]
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
    assert [row["level"] for row in sweep.rows] == LEVELS
    for row, result in zip(sweep.rows, sweep.document["results"], strict=True):
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
    assert float(message) > 0


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
