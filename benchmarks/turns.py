"""Several ways to do the same work, measured in turns."""

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def take_turns(names: Iterable[str], repeats: int, measure: Callable[[str], T]) -> dict[str, list[T]]:
    """The results of ``measure`` for each name, ``repeats`` times; the names take turns to be the first."""
    order = list(names)
    results: dict[str, list[T]] = {name: [] for name in order}
    for repeat in range(repeats):
        first = repeat % len(order)
        for name in order[first:] + order[:first]:
            results[name].append(measure(name))
    return results


def seconds_of(work: Callable[[], object]) -> float:
    """The duration of ``work()`` in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser of the arguments of a benchmark beside a model of transformers."""
    parser = argparse.ArgumentParser(
        f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("repository", type=Path, help="model repository")
    add("model", help="its name there")
    add("directory", type=Path, help="the directory that it was exported from")
    add("--threads", type=int, default=2, help="default 2")
    add("--repeats", type=int, default=5, help="default 5")
    return parser
