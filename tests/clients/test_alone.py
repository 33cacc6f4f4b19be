"""The client stands alone: nothing of the service, and no more than what its own project asks for."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_importing_it_brings_httpx_and_numpy_alone():
    brought = {"fastapi", "matplotlib", "models", "onnxruntime", "pydantic", "safetensors", "service", "torch"}
    script = f"""
import sys
sys.path.insert(0, {str(ROOT / "clients")!r})
import heed_client, heed_client.__main__
assert {{"httpx", "numpy"}} <= sys.modules.keys()
bad = {brought!r} & sys.modules.keys()
assert not bad, bad
"""
    subprocess.run([sys.executable, "-P", "-c", script], check=True, cwd="/")


def test_its_project_asks_for_what_the_extra_of_heed_does():
    """In the same ranges: whoever installs both has one set of libraries."""

    def read(path):
        return tomllib.loads(path.read_text())["project"]

    alone, whole = read(ROOT / "clients" / "pyproject.toml"), read(ROOT / "pyproject.toml")
    asked = {*alone["dependencies"], *alone["optional-dependencies"]["command"]}
    assert asked - {"numpy>=2.2,<3"} == set(whole["optional-dependencies"]["client"])
    assert asked <= {*whole["dependencies"], *whole["optional-dependencies"]["client"]}
    assert alone["version"] == whole["version"]
