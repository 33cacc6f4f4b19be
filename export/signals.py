"""An export that is ended by a signal, or whose parent is, stops at once and leaves no temporary files."""

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import torch

from export.scratch import remove_own

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], None]


@contextmanager
def stopping(report: Callable[[str], None]) -> Iterator[None]:
    """While this lasts, a signal ends the process and its workers; ``report`` is told its name."""

    def stop(number: int, _frame: FrameType | None) -> None:
        report(signal.Signals(number).name)
        workers = multiprocessing.active_children()
        for worker in workers:
            worker.terminate()
        if workers:
            raise SystemExit(128 + number)  # and the pool shuts down, as its workers have ended
        _exit(number)

    before = _handle(stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def prepare_worker() -> None:
    """In a worker of a pool: one thread, as more would spin beside the others; end with a signal or the parent.

    Garbage is collected seldom, as a tenth of the time of an export goes into looking through torch's own objects.
    """
    torch.set_num_threads(1)
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    _handle(lambda number, _frame: _exit(number))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)  # handled in the main thread, which writes no files meanwhile


def _exit(number: int) -> NoReturn:
    """End without unwinding: torch's exporter and the pool's workers catch what is raised in them."""
    remove_own()
    os._exit(128 + number)


def _handle(handler: Handler) -> dict[signal.Signals, Any]:
    """Set ``handler`` for all signals but those that are ignored (nohup); answers the handlers before it."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    return before
