"""Support for a checkout that is not installed: the service needs the version of its distribution."""

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.rows import ROOT


@contextmanager
def version_metadata() -> Iterator[None]:
    """While the context lasts, child processes find the version of pyproject.toml, if it is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if _is_installed(project["name"]):
        yield
        return
    before = os.environ.get("PYTHONPATH", "")
    with TemporaryDirectory() as folder:
        info = Path(folder) / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        metadata = {"Metadata-Version": "2.1", "Name": project["name"], "Version": project["version"]}
        (info / "METADATA").write_text("".join(f"{name}: {value}\n" for name, value in metadata.items()))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
        try:
            yield
        finally:
            os.environ["PYTHONPATH"] = before


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
