"""The command, for real: Heed and the floor in one cell, for a second each."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.serving.options import parse

ROOT = Path(__file__).parents[2]
CELL = ["--workloads", "W1", "--formats", "binary", "--concurrency", "2", "--servers", "heed,floor"]


@pytest.mark.extended
@pytest.mark.skipif(shutil.which("wrk") is None, reason="no wrk here: apt-get install wrk")
def test_one_cell(tmp_path, free_port):
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workloads", "W9"], "unknown W9; there are W1, W2"),
        (["--servers", "tritium"], "unknown tritium; there are heed, floor"),
        (["--url", "triton"], "expected NAME=..."),
        (["--heed", "floor=--workers 1"], "a name of its own"),
        (["--profile", "W2"], "expected WORKLOAD/FORMAT/CONNECTIONS"),
        (["--seconds", "0.5"], "expected a whole number from 1"),
    ],
)
def test_wrong_arguments(arguments, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert said in capsys.readouterr().err
