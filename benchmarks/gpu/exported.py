"""The export of measured models that the repository lacks; each dtype is one ``heed export``."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.gpu.rows import ROOT
from models.precision import name_in

TIMEOUT_S = 500


def complete(repository: Path, blocks: Iterable[str], dtype: str, provider: str, jobs: int) -> str | None:
    """Export the missing ``blocks`` for the provider; return an error message, or None."""
    missing = [name for name in blocks if not (repository / name_in(name, dtype) / "1" / "model.onnx").exists()]
    if not missing:
        return None
    command = [sys.executable, "-m", "export", *missing, "--repository", str(repository), "--jobs", str(jobs)]
    command += ["--dtype", dtype] if dtype != "float32" else []
    command += ["--cuda"] if provider == "cuda" else []
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"not exported in {TIMEOUT_S} s"
    return done.stderr.strip()[-500:] if done.returncode else None
