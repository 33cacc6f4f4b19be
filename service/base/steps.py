"""Work in steps of about a millisecond, between which the event loop serves other requests.

Reading and writing JSON needs the interpreter's lock all the time, so a thread would not make it faster.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # each yield ends a step


def drain(steps: Steps[T]) -> T:
    """The result of all steps, done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
