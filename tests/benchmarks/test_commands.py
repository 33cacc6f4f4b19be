"""The commands, for real but in short; and what they say of wrong arguments."""

import json
import shutil
import subprocess
import sys
from functools import partial

import pytest

from benchmarks import RESULTS, ROOT
from benchmarks.gpu import __main__ as gpu
from benchmarks.serving import options as serving
from benchmarks.serving.servers import heed
from benchmarks.soak.__main__ import PARTS, main
from benchmarks.soak.attack import attack
from benchmarks.soak.beside import SECONDS as BESIDE_S
from benchmarks.soak.beside import beside
from benchmarks.soak.overload import SECONDS as OVERLOAD_S
from benchmarks.soak.overload import overload

CELL = ["--workloads", "W1", "--formats", "binary", "--concurrency", "2", "--servers", "heed,floor"]


@pytest.mark.extended
@pytest.mark.skipif(shutil.which("wrk") is None, reason="no wrk here: apt-get install wrk")
def test_heed_and_the_floor_in_one_cell(tmp_path, free_port):
    out, models = tmp_path / "out.jsonl", tmp_path / "models"
    timing = ["--repeats", "1", "--seconds", "1", "--warmup", "0", "--quiet", "99"]
    flags = [*CELL, *timing, "--out", str(out), "--models", str(models), "--port", str(free_port)]
    command = [sys.executable, "-m", "benchmarks.serving", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    run, *turns = map(json.loads, out.read_text().splitlines())
    assert run["kind"] == "run"
    assert {turn["server"] for turn in turns} == {"heed", "floor"}
    for turn in turns:
        assert turn["kind"] == "turn", turn
        assert turn["requests"] > 10
        assert turn["errors"] == {}
        assert 0 < turn["p50_ms"] <= turn["p99_ms"]
        assert turn["server_cpu_s"] > 0
        assert turn["rss_peak_bytes"] > 1e6
    assert "| against" not in out.with_suffix(".md").read_text()  # no gate at 2 connections
    assert "| W1/binary/2 |" in out.with_suffix(".md").read_text()


SHORT = {
    "overload": partial(overload, portion=2 / OVERLOAD_S),
    "beside": partial(beside, portion=2 / BESIDE_S),
    "attack": partial(attack, portion=0.1),
}


@pytest.mark.extended
@pytest.mark.parametrize("run", SHORT.values(), ids=SHORT)
def test_the_soak_in_short(repository, run):
    """The same parts, for seconds, on a machine that may be busy."""
    assert not [check for check in run(repository) if not check.passed and not check.needs_idle_machine]


def test_flags_of_heed_may_be_variables():
    server = heed("traced", "OTEL_TRACES_SAMPLER=always_on --workers 1 --max-body-bytes 5")
    assert server.environment == {"OTEL_TRACES_SAMPLER": "always_on"}
    assert server.command[-4:] == ("--workers", "1", "--max-body-bytes", "5")


@pytest.mark.parametrize(
    ("parse", "arguments", "message"),
    [
        (serving.parse, ["--workloads", "W9"], "unknown W9; there are W1, W2"),
        (serving.parse, ["--servers", "tritium"], "unknown tritium; there are heed, floor"),
        (serving.parse, ["--url", "triton"], "expected NAME=..."),
        (serving.parse, ["--triton-settings", "2x1,3x3"], "unknown 3x3; there are 1x1"),
        (serving.parse, ["--heed", "floor=--workers 1"], "a name of its own"),
        (serving.parse, ["--profile", "W2"], "expected WORKLOAD/FORMAT/CONNECTIONS"),
        (serving.parse, ["--seconds", "0.5"], "expected a whole number of at least 1"),
        (gpu.parse, ["--provider", "cpu", "--out", f"{RESULTS}/trial.jsonl"], "a trial is no result"),
        (gpu.parse, ["--parts", "speed"], "invalid choice: 'speed'"),
        (main, ["overloads"], f"unknown part 'overloads'; there are {', '.join(PARTS)}"),
    ],
)
def test_wrong_arguments(parse, arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert message in capsys.readouterr().err
