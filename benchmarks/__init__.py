"""Comparative measurements; each benchmark is one command."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CACHE = ROOT / ".venv" / "bench"  # models, environments of other servers, trials
