"""The folder of the memories: one that is kept, or a temporary one, which is made when the first memory is stored.

A lock on a file in it says that a server uses it: a server that finds a temporary folder without one deletes it, as the
server that made it was killed.
"""

import errno
import fcntl
import os
import secrets
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

CLAIM = ".server"
HIDDEN = "."  # begins the name of a folder that is being made, written or deleted
TEMPORARY = "heed-memories-"


class Folder:
    """The folder at ``path``, or a temporary one, which all processes forked from this one share.

    Raises:
        OSError: the folder cannot be used, or another server uses it.
    """

    def __init__(self, path: Path | None) -> None:
        self.is_kept = path is not None
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._claim: IO[bytes] | None = None
        if path is None:
            parent = Path(os.environ.get("TMPDIR") or "/tmp")  # tempfile.gettempdir() writes to find one
            self.path = parent / f"{TEMPORARY}{secrets.token_hex(8)}"
            return
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._claim = _claimed(path, fcntl.LOCK_EX)
        if self._claim is None:
            raise OSError(errno.EBUSY, "another server uses this folder")

    def claim(self) -> None:
        """Say that this process uses the folder, and make it if it is temporary, or if somebody has deleted it.

        Raises:
            OSError: it cannot be made, or another server uses it by now.
        """
        with self._lock:
            if self._claim is not None and os.fstat(self._claim.fileno()).st_nlink:
                return
            if self._claim is not None:
                self._claim.close()
                self._claim = None
            while self._claim is None:
                self.path.mkdir(0o777 if self.is_kept else 0o700, parents=self.is_kept, exist_ok=True)
                with suppress(FileNotFoundError):  # another server deleted the unclaimed folder meanwhile
                    self._claim = _claimed(self.path, fcntl.LOCK_SH)
                    if self._claim is None and self.is_kept:
                        raise OSError(errno.EBUSY, "another server uses this folder")
        self._remove_left()

    def close(self) -> None:
        """Delete a temporary folder, in the process that made this object; forks leave it."""
        if not self.is_kept and os.getpid() == self._process:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._claim:
            self._claim.close()

    def _remove_left(self) -> None:
        """Delete the temporary folders of servers that were killed."""
        for left in self.path.parent.glob(f"{TEMPORARY}*") if not self.is_kept else ():
            with suppress(OSError):
                is_own = left.lstat().st_uid == os.getuid() and not left.is_symlink()
                if is_own and left != self.path and (unclaimed := _claimed(left, fcntl.LOCK_EX)) is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    unclaimed.close()


def _claimed(folder: Path, kind: int) -> IO[bytes] | None:
    """A lock that says that a server uses ``folder``, until it is closed; None if another has it, or had deleted it."""
    file = (folder / CLAIM).open("ab")
    with suppress(BlockingIOError):
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:
            return file
    file.close()
    return None
