"""Ends a process that cannot run Python any more because C code holds the interpreter's lock for too long."""

import ctypes
import faulthandler
import os
import signal
from contextlib import suppress

STDERR = 2  # its file descriptor
PR_SET_PDEATHSIG = 1  # of sys/prctl.h


def end_unless_called_again(seconds: float) -> None:
    """End this process with status 1 and a traceback of each thread, unless this is called again in that time.

    A thread in C keeps the time. Time in which the process is stopped counts, too. Where there is no memory for the
    thread, nothing keeps the time until the next call.
    """
    with suppress(RuntimeError):
        faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)


def send_when_parent_ends(number: signal.Signals, parent: int) -> None:
    """Have the kernel send this process signal ``number`` when ``parent``, which forked it, ends. Linux alone."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number))
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), number)
