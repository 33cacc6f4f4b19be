"""Indices of layers, heads or queries: a number, a list of numbers, or text such as ``0,3,5:8,-1``."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from service.base.errors import Invalid

Slice = tuple[int | None, int | None, int | None]
Pick = slice | np.ndarray  # of one axis; a slice where possible, as it copies nothing

MAX_ITEMS = 4096  # in a list or text
MAX_CHARS = 1 << 14
MAX_PLACES = 1 << 16  # that several items select together; one range selects any number
MAX_INDEX = 2**31
EXPECTED = 'an index, a list of indices, or text of indices and ranges such as "0,3,5:8,-1"'
NUMBER = re.compile(r"[+-]?\d{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Indices:
    """Indices of one axis, counted from 0 or, if negative, from its end. A range is a Python slice."""

    items: tuple[int | Slice, ...]

    def resolve(self, field: str, size: int) -> Pick:
        """The selected places on an axis of ``size``, in the order given.

        Raises:
            Invalid: an index out of range or selected twice, or a range that selects nothing.
        """
        ranges = [self._range(field, item, size) for item in self.items]
        count = sum(map(len, ranges))
        if len(ranges) > 1 and count > MAX_PLACES:
            raise Invalid(f"expected one range, or at most {MAX_PLACES:,} indices, got {count:,}", field)
        if not count:
            raise Invalid(f"selects none of the indices 0 to {size - 1}", field)
        places: Sequence[int] = ranges[0] if len(ranges) == 1 else _distinct(field, ranges)
        step = places[1] - places[0] if len(places) > 1 else 1
        run = range(places[0], places[-1] + (1 if step > 0 else -1), step)
        if places == (run if isinstance(places, range) else [*run]):
            return slice(run.start, run.stop if run.stop >= 0 else None, step)
        return np.asarray(places, np.intp)

    def counted_from(self, field: str, end: int) -> "Indices":
        """The same places of an axis that is longer than ``end``, from which negative indices are counted.

        A range without an end goes on to that of the axis.

        Raises:
            Invalid: a negative index before the first place.
        """

        def place(index: int) -> int:
            if index < -end:
                raise Invalid(f"expected {-end} or more, got {index}", field)
            return index if index >= 0 else index + end

        def bound(value: int | None) -> int | None:
            return value if value is None or value >= 0 else max(0, value + end)

        items = (
            place(item) if isinstance(item, int) else (bound(item[0]), bound(item[1]), item[2]) for item in self.items
        )
        return Indices(tuple(items))

    def _range(self, field: str, item: int | Slice, size: int) -> range:
        if not isinstance(item, int):
            return range(*slice(*item).indices(size))
        if not -size <= item < size:
            raise Invalid(f"expected indices from {-size} to {size - 1}, got {item}", field)
        return range(item % size, item % size + 1)


def _distinct(field: str, ranges: Iterable[range]) -> list[int]:
    places: dict[int, None] = {}
    for place in chain.from_iterable(ranges):
        if place in places:
            raise Invalid(f"{place} is selected twice", field)
        places[place] = None
    return list(places)


def read_indices(field: str, value: Any) -> Indices:
    """The indices that a request's ``value`` names: a whole number, a list of them, or text.

    Raises:
        Invalid: it is something else, or too long.
    """
    if isinstance(value, str):
        if len(value) > MAX_CHARS:
            raise Invalid(f"expected at most {MAX_CHARS} characters", field)
        entries: list[Any] = [part.strip() for part in value.split(",")]
    else:
        entries = value if isinstance(value, list) else [value]
        if not entries or any(type(entry) is not int for entry in entries):
            raise Invalid(f"expected {EXPECTED}, got {_described(value)}", field)
    if len(entries) > MAX_ITEMS:
        raise Invalid(f"expected at most {MAX_ITEMS} indices and ranges, got {len(entries)}", field)
    return Indices(tuple(_item(field, entry) for entry in entries))


def _described(value: Any) -> str:
    if isinstance(value, list):
        return "a list with other elements" if value else "an empty list"
    return str(value).lower() if isinstance(value, bool | float) else "another type"


def _item(field: str, entry: int | str) -> int | Slice:
    if isinstance(entry, int):
        return _index(field, entry)
    bounds = entry.split(":")
    if len(bounds) == 1:
        return _number(field, entry)
    if len(bounds) > 3:
        raise Invalid(f"expected {EXPECTED}, got {entry!r}", field)
    start, stop, step = (_number(field, bound) if bound.strip() else None for bound in (*bounds, "")[:3])
    if step == 0:
        raise Invalid(f"the step of {entry!r} is 0", field)
    return start, stop, step


def _number(field: str, text: str) -> int:
    if not NUMBER.fullmatch(text.strip()):
        raise Invalid(f"expected {EXPECTED}, got {text!r}", field)
    return _index(field, int(text))


def _index(field: str, value: int) -> int:
    if not -MAX_INDEX <= value < MAX_INDEX:
        raise Invalid(f"expected indices from {-MAX_INDEX} to {MAX_INDEX - 1}, got {value}", field)
    return value
