"""Steps of generations on a server in this process: how many there were, and one that waits."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from service.generation.sequence import GrowingSequence


class Steps:
    """``count`` steps have begun. From the one after ``free`` on each waits for ``release``, or raises ``error``."""

    def __init__(self, free: int, error: Exception | None) -> None:
        self.free, self.error = free, error
        self.count = 0
        self.release = threading.Event()

    def begin(self) -> None:
        self.count += 1
        if self.count > self.free:
            if self.error is not None:
                raise self.error
            assert self.release.wait(60)


@contextmanager
def stepping(free: int, error: Exception | None = None) -> Iterator[Steps]:
    """The steps from here on; they are all released at the end."""
    steps, grow = Steps(free, error), GrowingSequence.grow

    def counted(*arguments: object) -> object:
        steps.begin()
        return grow(*arguments)

    with mock.patch.object(GrowingSequence, "grow", counted):
        try:
            yield steps
        finally:
            steps.release.set()
