"""What import-linter does not prove; its contracts are in pyproject.toml."""

import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("service", "models", "export", "loadtest", "heed_client")
SMALL = ("export", "loadtest", "heed_client")
MAX_MODULES = 14  # of a package, without __init__.py and the packages in it


@pytest.fixture(scope="module")
def imports():
    """All modules and their imports, those inside functions included."""
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def test_no_imports_form_a_circle(imports):
    TopologicalSorter({name: imports.find_modules_directly_imported_by(name) for name in imports.modules}).prepare()


def test_packages_are_small(imports):
    modules = {name for name in imports.modules if not imports.find_children(name)}
    sizes = Counter(name.rpartition(".")[0] for name in modules if name.startswith(SMALL))
    assert {name: size for name, size in sizes.items() if size > MAX_MODULES} == {}


def test_a_fresh_service_process_has_no_torch(two_blocks):
    """Imported, loaded, warmed, and asked: torch and the blocks' own code are nowhere in the process."""
    script = f"""
import os
import sys
from pathlib import Path
import service.cli.serve
from tests.support.application import running

with running(Path({str(two_blocks)!r})) as client:
    answer = client.post("/v1/attention/scaled_dot_product", json=dict(query=[[1]], key=[[1]], value=[[1]]))
    assert "weights" in answer.json(), answer.text
bad = {{"torch", "models", "export", "onnx"}} & set(sys.modules)
assert not bad, bad
os._exit(0)  # as `heed serve` ends while a thread runs ONNX Runtime's code
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
