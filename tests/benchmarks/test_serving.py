"""The command, for real: Heed and the floor in one cell, for a second each."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CELL = ["--workloads", "W1", "--formats", "binary", "--concurrency", "2", "--servers", "heed,floor"]
pytestmark = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed: apt-get install wrk")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.serving", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif("HEED_TEST_BENCHMARKS" not in os.environ, reason="make test-benchmarks: half a minute")
def test_one_cell(tmp_path, free_port):
    out, models = tmp_path / "out.jsonl", tmp_path / "models"
    timing = ["--repeats", "1", "--seconds", "1", "--warmup", "0", "--quiet", "99"]
    done = bench(*CELL, *timing, "--out", str(out), "--models", str(models), "--port", str(free_port))
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workloads", "W9"], "unknown W9; there are W1, W2"),
        (["--servers", "tritium"], "unknown tritium; there are heed, floor"),
        (["--url", "triton"], "expected NAME=..."),
        (["--heed", "floor=--workers 1"], "a name of its own"),
        (["--profile", "W2"], "expected WORKLOAD/FORMAT/CONNECTIONS"),
        (["--seconds", "0.5"], "expected a whole number from 1"),
        (["--servers", "floor", "--formats", "native"], "no selected server supports a selected cell"),
    ],
)
def test_wrong_arguments(arguments, said):
    done = bench(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
