"""Markdown tables."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The lines of a table; None is an empty cell."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        yield f"| {' | '.join('' if cell is None else str(cell) for cell in row)} |"
