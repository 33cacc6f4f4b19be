"""Virtual environments of the peers, made on first use, and the versions in them."""

import subprocess
import sys
from pathlib import Path

VERSIONS = """
import platform, sys
from importlib.metadata import PackageNotFoundError, version
print("python", platform.python_version())
for name in sys.argv[1:]:
    try:
        print(name, version(name))
    except PackageNotFoundError:
        pass
"""


def prepare(python: Path, requirements: tuple[str, ...]) -> None:
    """Make the environment of ``python``, unless what ``requirements`` pins is in it.

    Raises:
        subprocess.CalledProcessError: an installation failed; pip has said why.
    """
    pinned = dict(each.split("==") for each in requirements if "==" in each)
    found = versions(python, tuple(pinned)) if python.exists() else {}
    if all(found.get(name) == wanted for name, wanted in pinned.items()):
        return
    subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *requirements], check=True)


def versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of those of ``packages`` that are there, and of Python."""
    done = subprocess.run([python, "-c", VERSIONS, *packages], capture_output=True, text=True, check=True)
    return {name: version for name, _, version in (line.partition(" ") for line in done.stdout.splitlines())}
