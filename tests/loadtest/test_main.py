"""The command, on the real server: what it measures, compares, writes and answers."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.__main__ import main

ROOT = Path(__file__).parents[2]
SMALL = ["--size", "m=4", "--size", "n=4", "--size", "d_k=8", "--size", "d_v=8"]
QUICK = ["--seconds", "0.5", "--window", "0.1", "--max-warmup", "0.3"]
MIX = """
[[request]]
name = "small"
share = 3
sizes = { m = [4, 8], n = 8, d_k = 8, d_v = 8 }
parameters = { is_causal = true }

[[request]]
block = "encoder"
api = "v2"
encoding = "binary"
sizes = { n = 5 }
outputs = ["output"]
"""


@pytest.fixture
def url(client):
    return str(client.base_url).rstrip("/")


def test_a_sweep(url, tmp_path, capsys):
    out = tmp_path / "out.json"
    flags = ["--fail-if", "p99>60s", "--fail-if", "failed>0%", "--json", str(out)]
    assert main([url, *SMALL, *QUICK, "--concurrency", "1,4", *flags]) == 0
    one, four = json.loads(out.read_text())["results"]
    assert (one["concurrency"], four["concurrency"]) == (1, 4)
    for found in (one, four):
        assert found["rate"] * found["seconds"] == pytest.approx(found["requests"])
        assert 0 < found["p50"] <= found["p90"] <= found["p99"] <= found["max"]
        assert not found["errors"]
        assert {"warm-up", "measured"} == {of["phase"] for of in found["windows"]}
        inside = found["server_side"]
        assert inside["requests"] == pytest.approx(found["requests"], rel=0.25, abs=20)
        assert 0 < inside["stages"]["compute"]["mean"] < inside["total"]["mean"]
        assert inside["total"]["mean"] < 1.25 * found["mean"]  # other requests: those of the warm-up count, too
        assert inside["cores"] > 0
    shown = capsys.readouterr().out
    assert "4 connections" in shown
    assert "p99.9" in shown


def test_a_mix_in_an_open_loop(url, tmp_path):
    file, out = tmp_path / "mix.toml", tmp_path / "out.json"
    file.write_text(MIX)
    flags = ["--rate", "150", "--seconds", "2", "--window", "0.1", "--max-warmup", "0.3", "--json", str(out)]
    assert main([url, "--scenario", str(file), *flags]) == 0
    document = json.loads(out.read_text())
    assert [(of["name"], of["bodies"]) for of in document["requests"]] == [("small", 2), ("encoder, v2 binary", 1)]
    (found,) = document["results"]
    small, encoder = found["kinds"]
    assert small["requests"] + encoder["requests"] == found["requests"]
    assert small["requests"] / found["requests"] == pytest.approx(0.75, abs=0.12)
    assert encoder["p50"] > 0


def test_servers_are_compared_in_turns(url, tmp_path):
    out = tmp_path / "out.json"
    other = url.replace("127.0.0.1", "localhost")
    flags = ["--concurrency", "2", "--compare", other, "--rounds", "2", "--fail-if", "ratio<0.01", "--json", str(out)]
    assert main([url, *SMALL, *QUICK, *flags]) == 0
    document = json.loads(out.read_text())
    assert document["servers"] == {"A": url, "B": other}
    assert [found["server"] for found in document["results"]] == ["A", "B"]
    rate = document["ratios"]["2 connections"]["rate"]
    assert 0 < rate["low"] <= rate["median"] <= rate["high"]  # how fast each was is a matter of the machine


@pytest.mark.parametrize("api", [[], ["--api", "v2", "--encoding", "binary"]])
def test_stored_keys_are_compared_with_sent_ones(url, client, api, tmp_path):
    """The same requests, whose numbers of a memory are not sent; nothing remains stored."""
    before, out = stored(client), tmp_path / "out.json"
    flags = ["--memory", "--concurrency", "2", "--rounds", "2", "--fail-if", "ratio<0.01", "--json", str(out)]
    sizes = ["--size", "m=1", "--size", "n=100,200", "--set", "is_causal=true", "--outputs", "output"]
    assert main([url, *sizes, *QUICK, *flags, *api]) == 0
    document = json.loads(out.read_text())
    assert document["servers"] == {"A": f"{url} memory", "B": f"{url} stateless"}
    assert [found["server"] for found in document["results"]] == ["A", "B"]
    assert all(found["requests"] and not found["errors"] for found in document["results"])
    (request,) = document["requests"]
    assert request["bodies"] == 2
    assert request["bytes"] < 100 * 32  # the keys alone would be more
    assert document["ratios"]["2 connections"]["rate"]["low"] > 0
    assert stored(client) <= before


def stored(client):
    """The ids of all memories on this server."""
    return {memory["id"] for memory in client.get("/v1/memories").json()["memories"]}


def test_thresholds_decide_the_exit_status(url, capsys):
    flags = ["--concurrency", "1", "--fail-if", "p50>1us", "--fail-if", "rate<1/s"]
    assert main([url, *SMALL, *QUICK, *flags]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"failed: 1 connection: p50>1us: \d", shown)
    assert "rate<1/s" not in shown


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--block", "nonesuch"], "serves no nonesuch; there are additive"),
        (["--size", "q=3"], "has no size q; it has batch, heads, m, d_k"),
        (["--shape", "q=3"], "has no input q; it has query, key"),
        (["--shape", "query=3,4"], "answers 422 to scaled_dot_product, native json"),
        (["--set", "nonesuch=1"], "unknown field"),
        (["--memory", "--block", "encoder"], "--memory needs a block with the inputs key and value"),
        (["--report", "/nonesuch/report.html"], "No such file"),
    ],
)
def test_what_cannot_be_measured(url, capsys, flags, said):
    assert main([url, *flags]) == 2
    assert said in capsys.readouterr().err


def test_no_server(capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        assert main([f"http://127.0.0.1:{free.getsockname()[1]}"]) == 2
    assert "does not answer" in capsys.readouterr().err


def test_interrupted_it_tells_what_was_measured(url):
    """And leaves no process behind."""
    command = [sys.executable, "-m", "loadtest", url, *SMALL, *QUICK, "--concurrency", "1,2,3,4,5,6,7,8,9"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )  # fmt: skip
    assert process.stdout.readline().startswith("1 connection http://")
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted" in shown
    assert re.search(r"^1 connection +\d", shown, re.MULTILINE)
