"""Installs the torch that pyproject names as its CPU build, never the one that brings gigabytes of CUDA libraries.

usage: PYTHON scripts/install_torch.py      (PYTHON is the environment's own)

First what pip finds: a wheel of the machine's own, or a platform where the usual build is a CPU build. Otherwise
PyTorch's own index of CPU builds, if it answers within seconds.
"""

import json
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def wanted() -> str:
    """torch's requirement, as pyproject pins it: ``torch==2.13.0``."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    return next(line for line in project["project"]["optional-dependencies"]["export"] if line.startswith("torch=="))


def brings_cuda(requirement: str) -> bool:
    """Whether the build pip would choose depends on CUDA libraries. Only its metadata is fetched."""
    dry = [*PIP, "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", requirement]
    found = subprocess.run(dry, capture_output=True, text=True)
    if found.returncode:
        return True  # pip has none at all
    needs = json.loads(found.stdout)["install"][0]["metadata"].get("requires_dist", [])
    return any(re.match(r"(nvidia|cuda)-", need) for need in needs)


def answers(index: str) -> bool:
    """Whether ``index`` can be reached, found out within seconds."""
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def main() -> int:
    """Install it; answers the exit status."""
    requirement = wanted()
    try:
        if version("torch").partition("+")[0] == requirement.partition("==")[2]:
            return 0
    except PackageNotFoundError:
        pass
    if not brings_cuda(requirement):
        print(f"{requirement}: the CPU build that pip finds")
        return subprocess.call([*PIP, "install", "--quiet", requirement])
    if answers(CPU_INDEX):
        print(f"{requirement}: the CPU build of {CPU_INDEX}")
        return subprocess.call([*PIP, "install", "--quiet", requirement, "--index-url", CPU_INDEX])
    print(
        f"{requirement}: pip finds only a build with CUDA libraries, and {CPU_INDEX} does not answer.\n"
        "Put a CPU wheel of torch into a folder and name it in PIP_FIND_LINKS, or install torch into .venv yourself.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
