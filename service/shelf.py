"""What lies in the folder of a model repository: each model's versions, and whether a version has changed."""

from collections.abc import Mapping
from pathlib import Path

from service.model import CANONICAL

Versions = Mapping[int, Path]


def found(folder: Path) -> dict[str, dict[int, Path]]:
    """Name -> version -> its folder, for every version that holds a model; lowest version first."""
    shelves: dict[str, dict[int, Path]] = {}
    for file in sorted(folder.glob(f"*/*/{CANONICAL}"), key=lambda file: (file.parts[-3], _version(file))):
        if _version(file):
            shelves.setdefault(file.parts[-3], {})[_version(file)] = file.parent
    return shelves


def versions_of(folder: Path, name: str) -> dict[int, Path]:
    """Version -> its folder, of one model; empty where there is none of that name."""
    return found(folder).get(name, {})  # never a path made of a name that a client sent


def fingerprint(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Changes when a file of a version does; that it may not be looked at is a state of it, too."""
    try:
        stats = [(str(file.relative_to(folder)), file.stat()) for file in sorted(folder.rglob("*")) if file.is_file()]
    except OSError as error:
        return ((str(error), 0, 0),)
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def _version(file: Path) -> int:
    """The version a model file lies in; 0 where the folder's name is no version."""
    name = file.parent.name
    return int(name) if name.isascii() and name.isdecimal() else 0
