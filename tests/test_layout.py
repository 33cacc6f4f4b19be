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
from service.cli.serve import main
from service.app import create_app
from service.settings import Settings
from service.cache import BoundedCache
from service.native.request import complete, read
from service.native.response import prepare
from service.budget import MemoryBudget, Reservation
from collections import Counter
from service.errors import Overloaded
from service.codec.json_writer import write_json
from service.repository.repository import Repository
from service.codec.steps import drain
from service.engine.run import run_alone

create_app(Settings(model_repository=Path({str(two_blocks)!r})))
repository = Repository(Settings(model_repository=Path({str(two_blocks)!r})).sized())
repository.open()
repository.load()
model = repository.block("scaled_dot_product")
reservation = Reservation(MemoryBudget(10**9, Overloaded, Counter()))
body = b'{{"query": [[1]], "key": [[1]], "value": [[1]]}}'
parsed, tensors = drain(read(body, (), model, reservation))
asked = complete(parsed, tensors, model, BoundedCache(), 10**9)
assert b"weights" in b"".join(drain(write_json(*prepare(asked, run_alone(asked.task)))))
bad = {{"torch", "models", "export", "onnx"}} & set(sys.modules)
assert not bad, bad
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
