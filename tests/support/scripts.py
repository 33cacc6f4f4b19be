"""Python code in a process of its own, whose memory is its own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_script(script: str, *arguments: object) -> str:
    """What the code of ``script`` prints with these ``arguments``; it has to succeed."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout
