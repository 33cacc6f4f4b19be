"""Install the version of torch that pyproject.toml pins, as a CPU build if one is available.

usage: PYTHON scripts/install_torch.py      (PYTHON is the environment's own)

Its dependencies are not installed: they come with Heed's extra ``export``, in the versions of constraints.txt.

The first choice is the build that pip finds, if that is a CPU build: a local wheel, or on a platform whose default
build is one. The second is PyTorch's index of CPU builds, if it responds within seconds. The last is the default build,
with gigabytes of CUDA libraries that the export does not need.
"""

import http.client
import json
import re
import subprocess
import sys
import tomllib
import urllib.request
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_SIZE = "2.7 GB to download, 5 GB on disk"  # torch 2.13 for Linux with its dependencies
# Without --compile, a module's bytecode is written at its first import; half of torch is never imported.
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]


def pinned_torch() -> str:
    """The requirement of torch in pyproject.toml: ``torch==2.13.0``."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    return next(line for line in project["project"]["optional-dependencies"]["export"] if line.startswith("torch=="))


def default_build(requirement: str) -> Literal["cpu", "cuda"] | None:
    """The kind of build that pip selects, None if it finds none. Only metadata is fetched."""
    dry = [*PIP, "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", requirement]
    done = subprocess.run(dry, capture_output=True, text=True)
    if done.returncode:
        return None
    requirements = json.loads(done.stdout)["install"][0]["metadata"].get("requires_dist", [])
    return "cuda" if any(re.match(r"(nvidia|cuda)-", name) for name in requirements) else "cpu"


def is_reachable(index: str) -> bool:
    """Whether ``index`` responds within 5 seconds."""
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=5):
            return True
    except (OSError, http.client.HTTPException):
        return False


def install(requirement: str, *flags: str) -> int:
    """Install ``requirement``; return pip's exit status."""
    return subprocess.call([*PIP, "--no-deps", *flags, requirement])


def main() -> int:
    """Install torch; return the exit status."""
    requirement = pinned_torch()
    try:
        if version("torch").partition("+")[0] == requirement.partition("==")[2]:
            return 0
    except PackageNotFoundError:
        pass
    build = default_build(requirement)
    if build == "cpu":
        print(f"{requirement}: the CPU build that pip finds", flush=True)
        return install(requirement)
    if is_reachable(CPU_INDEX):
        print(f"{requirement}: the CPU build of {CPU_INDEX}", flush=True)
        if install(requirement, "--index-url", CPU_INDEX) == 0:
            return 0
    if build == "cuda":
        print(
            f"{requirement}: the build with CUDA libraries, {CUDA_SIZE}, as no CPU build comes from {CPU_INDEX}",
            flush=True,
        )
        return install(requirement)
    python = sys.version.partition(" ")[0]
    print(
        f"{requirement}: pip finds no build for this machine and Python {python}, and {CPU_INDEX} offers none.\n"
        "Put a wheel of torch into a folder and name it in PIP_FIND_LINKS, or install torch into .venv yourself.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
