"""Environments of their own for packages that do not go with those of this one."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest
from filelock import FileLock


def environment(config: pytest.Config, *requirements: str) -> Path:
    """The programs of an environment with ``requirements``, which is made once and kept in pytest's cache."""
    name = "-".join([*requirements, f"{sys.version_info.major}.{sys.version_info.minor}"])
    folder = Path(config.cache.mkdir(name))
    python = folder / "bin" / "python"
    with FileLock(f"{folder}.lock"):  # of pytest-xdist's workers one makes it
        if not (folder / "complete").exists():
            venv.create(folder, clear=True)
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
            subprocess.run([*pip, "install", "--quiet", "--no-compile", *requirements], check=True)
            (folder / "complete").touch()
    return python.parent
