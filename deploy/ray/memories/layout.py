"""The places of a memory's parts in the stores of nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from deploy.ray.memories.parts import Part
from service.base.errors import PartsMissing
from service.memories.memory import Description


class Holder(NamedTuple):
    """A store that has a part, and the part's id in it."""

    store: str
    id: str


class PartLayout(BaseModel):
    """A part of the keys: its ``holders``, and the place of its first key in each row of the batch."""

    model_config = ConfigDict(frozen=True)

    starts: tuple[int, ...]
    holders: tuple[Holder, ...]


class Layout(BaseModel):
    """The parts of a memory, in the order of their keys. Only the last one grows.

    Every store that has a part has a copy of the layout, too: the one with the highest ``version`` counts.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    version: int
    description: Description
    parts: tuple[PartLayout, ...]

    def part(self, place: int, lengths: Sequence[int]) -> Part:
        """Part number ``place`` of a memory whose rows have ``lengths``."""
        starts = self.parts[place].starts
        ends = self.parts[place + 1].starts if place + 1 < len(self.parts) else lengths
        return Part(starts, [end - start for start, end in zip(starts, ends, strict=True)])

    def with_part(self, place: int, part: PartLayout) -> "Layout":
        """The next version, in which ``part`` is number ``place``."""
        parts = (*self.parts[:place], part, *self.parts[place + 1 :])
        return self.model_copy(update={"version": self.version + 1, "parts": parts})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A memory as it is now. ``appends`` counts the appends, ``nodes`` are the actors of the stores with its parts."""

    layout: Layout
    lengths: tuple[int, ...]
    appends: int
    nodes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of all memories: their number, the bytes of their files and the limit on these, and the evictions so far.

    ``instance`` is the name of the catalogue that counted them.
    """

    instance: str
    count: int
    used: int
    limit: int
    evictions: int


def missing(part: Part) -> PartsMissing:
    """The error of a request that needs a part on lost nodes."""
    start, end = min(part.starts), max(map(sum, zip(part.starts, part.lengths, strict=True)))
    return PartsMissing(f"keys {start} to {end - 1} of the memory are on lost nodes", "memory")
