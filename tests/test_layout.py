"""What import-linter cannot prove: what a process that serves has imported. Its contracts are in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_fresh_service_process_has_no_torch(two_blocks):
    """Imported, loaded, warmed, and asked: torch and the blocks' own code are nowhere in the process."""
    script = f"""
import sys
from pathlib import Path
import service.cli.serve
from tests.support.application import running

with running(Path({str(two_blocks)!r})) as client:
    answer = client.post("/v1/attention/scaled_dot_product", json=dict(query=[[1]], key=[[1]], value=[[1]]))
    assert "weights" in answer.json(), answer.text
bad = {{"torch", "models", "export", "onnx"}} & set(sys.modules)
assert not bad, bad
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
