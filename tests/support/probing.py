"""``heed probe`` as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("fastapi", "pydantic", "onnxruntime", "numpy")


def probe(port: int | None, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    """``heed probe``, which prints at the end how many modules it has imported, and which of the heavy ones."""
    show = f"print(len(sys.modules), *(sys.modules.keys() & {set(HEAVY)}))"
    script = f"import sys, heed; status = heed.main(); {show}; sys.exit(status)"
    command = [sys.executable, "-c", script, "probe", *flags]
    environment = {**os.environ, **({"HEED_PORT": str(port)} if port is not None else {}), **environment}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
