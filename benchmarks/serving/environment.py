"""Virtual environments of the other servers, created on first use, and their package versions."""

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
    """Create the environment of ``python``, unless it has the packages that ``requirements`` pins.

    Raises:
        subprocess.CalledProcessError: pip failed; it has printed the reason.
    """
    pinned = dict(line.split("==") for line in requirements if "==" in line)
    installed = versions(python, tuple(pinned)) if python.exists() else {}
    if all(installed.get(name) == pin for name, pin in pinned.items()):
        return
    subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *requirements], check=True)


def versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of Python and of the installed ones among ``packages``."""
    result = subprocess.run([python, "-c", VERSIONS, *packages], capture_output=True, text=True, check=True)
    return {name: version for name, _, version in (line.partition(" ") for line in result.stdout.splitlines())}
