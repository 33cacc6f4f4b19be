"""The command, on the real server: what it measures, compares, writes and answers."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from loadtest.__main__ import main
from tests.loadtest.conftest import QUICK, SMALL
from tests.support.app import App

ROOT = Path(__file__).parents[2]
MIX = """
[[request]]
name = "small"
share = 3
sizes = { m = [4, 8], n = 8, d_k = 8, d_v = 8 }
parameters = { is_causal = true }

[[request]]
block = "dot_product"
api = "v2"
encoding = "binary"
sizes = { m = 4, n = 5 }
outputs = ["output"]
"""


def test_a_mix_in_an_open_loop(url, measure, tmp_path):
    file = tmp_path / "mix.toml"
    file.write_text(MIX)
    document = measure(url, "--scenario", file, "--rate", 300, "--seconds", 1, "--processes", 2)
    assert [(of["name"], of["bodies"]) for of in document["requests"]] == [("small", 2), ("dot_product, v2 binary", 1)]
    (result,) = document["results"]
    expected = 300 * result["seconds"]  # a busy machine makes the second longer
    assert result["requests"] == pytest.approx(expected, abs=5 * expected**0.5)  # Poisson's deviation is the root
    assert result["generator"]["processes"] == 2
    small, other = result["kinds"]
    assert small["requests"] + other["requests"] == result["requests"]
    assert small["requests"] / result["requests"] == pytest.approx(0.75, abs=0.12)
    assert other["p50"] > 0


def test_servers_are_compared_in_turns(served, load):
    urls = [served(App()), served(App())]
    flags = ["--concurrency", 2, "--compare", urls[1], "--rounds", 2, "--seconds", 0.6, "--fail-if", "ratio<0.01"]
    document = load(urls[0], *flags)
    assert document["servers"] == dict(zip("AB", urls, strict=True))
    assert [result["server"] for result in document["results"]] == ["A", "B"]
    rate = document["ratios"]["2 connections"]["rate"]
    assert 0 < rate["low"] <= rate["median"] <= rate["high"]  # how fast each was is a matter of the machine


@pytest.mark.parametrize(
    "api", [[], pytest.param(["--api", "v2", "--encoding", "binary"], marks=pytest.mark.extended)], ids=["native", "v2"]
)
def test_stored_keys_are_compared_with_sent_ones(url, measure, api):
    """The same requests, whose numbers of a memory are not sent; nothing remains stored."""
    before = stored(url)
    flags = ["--memory", "--concurrency", 2, "--rounds", 2, "--seconds", 0.6, "--fail-if", "ratio<0.01"]
    sizes = ["--size", "m=1", "--size", "n=100,200", "--set", "is_causal=true", "--outputs", "output"]
    document = measure(url, *sizes, *flags, *api)
    assert document["servers"] == {"A": f"{url} memory", "B": f"{url} stateless"}
    assert [result["server"] for result in document["results"]] == ["A", "B"]
    assert all(result["requests"] and not result["errors"] for result in document["results"])
    (request,) = document["requests"]
    assert request["bodies"] == 2
    assert request["bytes"] < 100 * 32  # the keys alone would be more
    assert document["ratios"]["2 connections"]["rate"]["low"] > 0
    assert stored(url) <= before


def stored(url):
    """The ids of all memories on this server."""
    return {memory["id"] for memory in httpx.get(f"{url}/v1/memories").json()["memories"]}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--block", "nonesuch"], "; available: additive"),
        (["--size", "q=3"], "has no size q; it has batch, heads, m, d_k"),
        (["--shape", "q=3"], "has no input q; it has query, key"),
        (["--shape", "query=3,4"], "answered 422 to scaled_dot_product, native json"),
        (["--set", "nonesuch=1"], "unknown field"),
        (["--memory", "--block", "encoder"], "--memory requires a block with the inputs key and value"),
        (["--memory", "--shape", "key=3,4"], "did not store the memory"),
        (["--report", "/nonesuch/report.html"], "No such file"),
    ],
)
def test_what_cannot_be_measured(client, capsys, flags, message):
    assert main([str(client.base_url), *flags]) == 2
    assert message in capsys.readouterr().err


def test_interrupted_it_tells_what_was_measured(url):
    """And leaves no process behind."""
    command = [sys.executable, "-m", "loadtest", url, *SMALL, *QUICK, "--concurrency", "1,2,3,4,5,6,7,8,9"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )  # fmt: skip
    assert process.stdout.readline().startswith("1 connection http://")
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted" in printed
    assert re.search(r"^1 connection +\d", printed, re.MULTILINE)
