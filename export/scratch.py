"""Temporary folders of an export, which are removed even if its process is killed.

A process locks its folders; the system releases the locks when it ends. A folder without a lock is left over from a
process that was killed, and the next export removes it.
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
    """A new folder in ``parent``, removed at the end; ``parent`` as well if it is then empty."""
    parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=parent, prefix=".new-"))
    folder = new.with_name(new.name.replace(".new-", PREFIX))
    _FOLDERS.update((new, folder))
    lock = os.open(new, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks, where no leftovers are removed
            fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(folder)  # after locking: only folders of this name can be removed as leftovers
        yield folder
    finally:
        _remove(folder)
        os.close(lock)
        _FOLDERS.difference_update((new, folder))


def remove_own() -> None:
    """Remove the folders of this process, before it ends without unwinding."""
    for folder in list(_FOLDERS):
        _remove(folder)


def remove_leftovers(repository: Path) -> None:
    """Remove the folders in ``repository`` whose processes have ended."""
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
    with suppress(OSError):  # it is not empty: it has a version
        folder.parent.rmdir()
