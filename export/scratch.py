"""Folders that an export writes into, which no ended export leaves behind.

A folder is locked by the process that writes into it, for as long as that process is there. So whoever finds one that
is not locked knows that its process was killed, and may remove it.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = ".exporting-"
_FOLDERS: set[Path] = set()  # of this process


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A new folder in ``parent``, removed at the end; ``parent`` too, if nothing else is in it."""
    parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=parent, prefix=".new-"))
    folder = new.with_name(new.name.replace(".new-", PREFIX))
    _FOLDERS.update((new, folder))
    lock = os.open(new, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: then nobody else removes it, either
            fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(folder)  # once it is locked: only folders of this name are taken for leftovers
        yield folder
    finally:
        _remove(folder)
        os.close(lock)
        _FOLDERS.difference_update((new, folder))


def remove_own() -> None:
    """Remove the folders of this process, which is about to end."""
    for folder in list(_FOLDERS):
        _remove(folder)


def remove_leftovers(repository: Path) -> None:
    """Remove the folders in ``repository`` whose processes are gone."""
    for folder in repository.glob(f"*/{PREFIX}*"):
        with suppress(OSError):  # another export is writing into it, or has just removed it
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder)
            finally:
                os.close(lock)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # there is a version in it
        folder.parent.rmdir()
