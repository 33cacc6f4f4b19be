"""Stop an export at once when a signal ends it or its parent process, and remove its temporary files."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

import torch
from rich.progress import Progress

from export.scratch import remove_own

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], None]


@contextmanager
def stopping(describe: Callable[[str], str], progress: Progress | None = None) -> Iterator[None]:
    """A context in which a signal ends ``progress``, the process and its workers.

    ``describe(name)`` is written to the descriptor of stderr: the signal may have interrupted a write of Python's file.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        text = describe(signal.Signals(number).name)
        if progress:
            with suppress(RuntimeError):  # a write of its own was interrupted
                progress.stop()
        os.write(sys.stderr.fileno(), f"{text}\n".encode())
        workers = multiprocessing.active_children()
        for worker in workers:
            worker.terminate()
        if workers:
            raise SystemExit(128 + number)  # the pool can shut down, since its workers have ended
        _exit(number)

    before = _handle(stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def limited(seconds: float) -> Iterator[threading.Event]:
    """A context that SIGTERM ends after ``seconds`` (0 = never); then the event is set."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    if seconds:
        timer.start()
    try:
        yield expired
    finally:
        timer.cancel()


@contextmanager
def blocked() -> Iterator[None]:
    """A context in which signals are blocked; in processes started in it, they stay so until ``prepare_worker``.

    A forked process inherits the handlers of its parent.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def prepare_worker() -> None:
    """Set up a worker process of a pool: it uses one thread, and ends on a signal or with its parent.

    More threads would compete with the other workers. Garbage collection is rare, since scanning torch's objects would
    take a tenth of an export's time.
    """
    torch.set_num_threads(1)
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    _handle(lambda number, _frame: _exit(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)  # handled in the main thread, which then stops writing files


def _exit(number: int) -> NoReturn:
    """End without unwinding: torch's exporter and the pool's workers would catch an exception."""
    remove_own()
    os._exit(128 + number)


def _handle(handler: Handler) -> dict[signal.Signals, Any]:
    """Set ``handler`` for all of SIGNALS that are not ignored (nohup); return the previous handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    return before
