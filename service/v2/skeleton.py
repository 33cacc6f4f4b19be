"""A V2 request's JSON without what differs from one request to the next: its id, and the numbers of its tensors.

Two requests of the same skeleton say the same. What is cut out is either taken raw (an id without escapes) or parsed by
itself (a flat list of numbers), so a skeleton that was understood once need not be understood again.
"""

import re
from dataclasses import dataclass

IDS = (b'{"id":"', b'{"id": "')  # as clients begin that send one
DATA = b'"data":'
KEY = re.compile(rb'"data"\s*:')
MOST_LISTS = 64
LONGEST = 4096  # bytes; a longer one is read again each time


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The JSON with its cuts, by which it is known; the id as JSON; where each list of numbers begins and ends."""

    content: bytes
    id: bytes | None
    lists: list[tuple[int, int]]

    @property
    def is_plain(self) -> bool:
        """Of valid JSON: each key "data" was cut, and nothing else, as no text holds that word without an escape."""
        return b"\\" not in self.content and len(KEY.findall(self.content)) == len(self.lists)


def skeleton(content: bytes) -> Skeleton | None:
    """The skeleton of a JSON document; None where it cannot be told by these simple means."""
    kept = []
    lists: list[tuple[int, int]] = []
    place = 0
    said = None
    if content.startswith(IDS):
        start = content.index(b'"', len(IDS[0]) - 1)
        end = content.find(b'"', start + 1)
        said = content[start : end + 1]
        if end < 0 or b"\\" in said or not said.isascii() or not said.decode().isprintable():
            return None
        kept.append(content[: start + 1])
        place = end + 1
    while (found := content.find(DATA, place)) >= 0:
        start = found + len(DATA)
        if content[start : start + 1] == b" ":
            start += 1
        end = content.find(b"]", start) + 1
        first = content[start : start + 2]
        if not first.startswith(b"[") or first == b"[[" or not end or len(lists) == MOST_LISTS:
            return None
        kept.append(content[place:start])
        lists.append((start, end))
        place = end
    kept.append(content[place:])
    cut = b"\0".join(kept)
    return Skeleton(cut, said, lists) if len(cut) <= LONGEST else None
