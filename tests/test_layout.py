"""The directions of dependence: what may import what."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"models", "export", "service", "clients", "loadtest"}
ALLOWED = {"models": set(), "export": {"models"}, "service": set(), "clients": set(), "loadtest": set()}
FORBIDDEN = {
    "models": {"onnx", "onnxruntime", "fastapi"},
    "export": {"fastapi", "uvicorn"},
    "service": {"torch", "onnx", "onnxscript", "transformers"},
    "loadtest": {"torch", "onnx", "onnxruntime", "fastapi"},
    "clients": {"torch", "onnxruntime", "fastapi"},
}


def imported(file: Path) -> set[str]:
    """The top-level names a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("package", [name for name in OURS if (ROOT / name).is_dir()])
def test_each_package_imports_only_what_it_may(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for file in files:
        names = imported(file)
        assert names & (OURS - {package}) <= ALLOWED[package], file
        assert not names & FORBIDDEN[package], file


def test_a_fresh_service_process_has_no_torch(repository):
    """Imported, loaded, warmed, and asked: torch and the blocks' own code are nowhere in the process."""
    script = f"""
import sys
from pathlib import Path
from service.__main__ import main
from service.app import create_app
from service.settings import Settings
from service.attend import decode, prepare, work
from service.json_write import filled
from service.repository import Repository
from service.turns import at_once

create_app(Settings(model_repository=Path({str(repository)!r})))
repository = Repository(Settings(model_repository=Path({str(repository)!r})).sized())
repository.open()
repository.load()
model = repository.block("scaled_dot_product")
asked = decode(b'{{"query": [[1]], "key": [[1]], "value": [[1]]}}', model, 10**9)
assert b"weights" in b"".join(at_once(filled(*prepare(asked, work(asked, model).run()))))
bad = {{"torch", "models", "export", "onnx"}} & set(sys.modules)
assert not bad, bad
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
