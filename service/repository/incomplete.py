"""Folders of a model repository that hold no model that can be served, and why."""

import os
from collections.abc import Collection
from pathlib import Path

from service.model.spec import CANONICAL
from service.repository.versions import unreadable, version_number

NO_MODELS = ("lost+found",)  # of the file system; hidden folders are none, either
MAX_NAMED = 3  # files or folders that a reason names
NO_VERSION = 0  # the key of a reason that is about a whole model, among those of its versions


def incomplete(folder: Path, complete: Collection[str]) -> dict[str, str]:
    """Name -> reason, for every folder in the repository that is not among the ``complete`` models.

    The reasons have no paths of this machine. A repository that cannot be read has no such folders.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    others = [name for name in names if name not in complete and name not in NO_MODELS and name[0] != "."]
    folders = [name for name in others if name.isprintable() and _is_folder(folder / name)]
    reasons = {name: _reason(folder / name) for name in folders}
    return {name: reason for name, reason in reasons.items() if reason}


def _is_folder(path: Path) -> bool:
    """Whether it is a folder, or may be one: a link that leads nowhere."""
    try:
        return path.is_dir() or (path.is_symlink() and not path.exists())
    except OSError:
        return True


def _reason(folder: Path) -> str:
    """Why the folder has no model; "" while an export writes its first version, under a hidden name."""
    try:
        names = sorted(os.listdir(folder))
        folders = [name for name in names if (folder / name).is_dir()]
        nested = [name for name in folders if any((folder / name).glob(f"[1-9]*/{CANONICAL}"))]
    except OSError as failure:
        return f"it cannot be read: {failure.strerror}"
    if error := unreadable(folder):
        return f"it cannot be read: {error.strerror}"
    if names and all(name.startswith(".") for name in names):
        return ""
    if CANONICAL in names:
        return f"{CANONICAL} is in it, but must be in a version's folder: 1/{CANONICAL}"
    versions = [name for name in folders if version_number(name)]
    if versions:
        files = sorted(file.name for file in (folder / versions[-1]).glob("*.onnx"))
        return f"version {versions[-1]} has no {CANONICAL}{_listed(', but', files)}"
    if nested:
        return f"it has no version's folder{_listed(', but models:', nested)}; did you mean it as the repository?"
    return f"it has no version's folder, 1/{CANONICAL}{_listed('; there are', names)}"


def _listed(words: str, names: list[str]) -> str:
    shown = [name if name.isprintable() else ascii(name) for name in names[:MAX_NAMED]]
    return f"{words} {', '.join(shown)}{', ...' if len(names) > MAX_NAMED else ''}" if names else ""
