"""``heed probe`` as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("fastapi", "pydantic", "starlette", "uvicorn", "onnxruntime", "numpy", "httpx")


def probe(port: int | None, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    """``heed probe``, which prints at the end the modules that it has imported of the service and of heavy packages."""
    show = f"print(*(name for name in sys.modules if name.partition('.')[0] in {('service', *HEAVY)}))"
    script = f"import sys, heed; status = heed.main(); {show}; sys.exit(status)"
    command = [sys.executable, "-c", script, "probe", *flags]
    environment = {**os.environ, **({"HEED_PORT": str(port)} if port is not None else {}), **environment}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
