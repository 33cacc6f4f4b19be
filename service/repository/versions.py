"""The versions in the folder of a model repository: which exist, which are served, whether one has changed."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.model.spec import CANONICAL

Versions = Mapping[int, Path]


@dataclass(frozen=True)
class VersionPolicy:
    """Which versions of a model are served: the ``latest`` highest, the ``specific`` ones, else all."""

    latest: int | None = None
    specific: tuple[int, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> "VersionPolicy":
        """The policy of the setting ``versions``, whose pattern ``text`` has."""
        if text == "all":
            return cls()
        if text.startswith("latest:"):
            return cls(latest=int(text.removeprefix("latest:")))
        return cls(specific=tuple(map(int, text.split(","))))

    def choose(self, versions: Iterable[int]) -> list[int]:
        """The versions to serve of those that exist, lowest first."""
        there = sorted(versions)
        if self.specific is not None:
            return [version for version in there if version in self.specific]
        return there if self.latest is None else there[-self.latest :]

    def described(self) -> dict[str, Any]:
        """The policy as in a model configuration."""
        if self.specific is not None:
            return {"specific": {"versions": list(self.specific)}}
        return {"all": {}} if self.latest is None else {"latest": {"num_versions": self.latest}}


def scan(folder: Path) -> dict[str, dict[int, Path]]:
    """Name -> version -> its folder, for every version that has a model file; lowest version first.

    A name with control characters is left out, as it cannot be in a log, a URL, or a metric's label.
    """
    scanned: dict[str, dict[int, Path]] = {}
    files = {file: version_number(file.parent.name) for file in folder.glob(f"*/*/{CANONICAL}")}
    for file, version in sorted(files.items(), key=lambda item: (item[0].parts[-3], item[1])):
        if version and file.parts[-3].isprintable():
            scanned.setdefault(file.parts[-3], {})[version] = file.parent
    return scanned


def misnamed(folder: Path) -> list[Path]:
    """The folders with a model file that are no versions because their names begin with 0."""
    versions = sorted(file.parent for file in folder.glob(f"*/*/{CANONICAL}"))
    return [version for version in versions if version.name.startswith("0") and version.name.isdecimal()]


def survey(folder: Path, served: Collection[str]) -> tuple[dict[str, dict[int, Path]], dict[str, str]]:
    """The result of ``scan``; and, by name, why ``served`` models that were not removed cannot be read.

    The name "" stands for all of them: the folder cannot be read, or all vanished at once, as when a volume is
    unmounted and leaves its empty mount point.
    """
    try:
        versions = scan(folder)
        entries = os.listdir(folder)  # after the scan, to notice a folder that vanishes during it
    except OSError as error:
        return {}, {"": f"cannot be read: {error.strerror}"}
    if served and not (entries and versions):
        return versions, {"": "contains no model any more"}
    errors = {name: unreadable(folder / name) for name in served if name in entries}
    return versions, {name: f"cannot be read: {error.strerror}" for name, error in errors.items() if error}


def fingerprint(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """A value that changes when a file of the version does, or when its folder can no longer be read."""
    try:
        stats = [(str(file.relative_to(folder)), file.stat()) for file in sorted(folder.rglob("*")) if file.is_file()]
    except OSError as error:
        return ((str(error), 0, 0),)
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def version_number(name: str) -> int:
    """The version number in a folder's name; 0 where it is none. As in Triton, a leading zero makes it none."""
    return int(name) if name.isascii() and name.isdecimal() and not name.startswith("0") else 0


def unreadable(folder: Path) -> OSError | None:
    """The error that hides a version of the model in ``folder`` from ``scan``; a broken link is one, too."""
    try:
        files = [folder / version / CANONICAL for version in os.listdir(folder)]
    except NotADirectoryError:
        return None
    except OSError as error:
        return error
    for file in files:
        try:
            file.stat()
        except NotADirectoryError:
            continue
        except FileNotFoundError as error:
            if file.is_symlink() or file.parent.is_symlink():
                return error
        except OSError as error:
            return error
    return None
