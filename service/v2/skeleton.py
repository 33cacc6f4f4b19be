"""A V2 request's JSON without what differs from one request to the next: its id, and the numbers of its tensors.

Two requests of the same skeleton say the same. What is cut out is either taken raw (an id without escapes) or parsed by
itself (a flat list of numbers), so a skeleton that was understood once need not be understood again.
"""

from dataclasses import dataclass

ID = b'{"id":"'  # as clients begin that send one
DATA = b'"data":'  # never within a text: its quotes would be escaped
MOST_LISTS = 64


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The JSON with its cuts, by which it is known; the id as JSON; where each list of numbers begins and ends."""

    content: bytes
    id: bytes | None
    lists: list[tuple[int, int]]


def skeleton(content: bytes) -> Skeleton | None:
    """The skeleton of a JSON document; None where it cannot be told by these simple means."""
    kept = []
    lists: list[tuple[int, int]] = []
    place = 0
    said = None
    if content.startswith(ID):
        end = content.find(b'"', len(ID))
        text = content[len(ID) - 1 : end + 1]
        if end < 0 or b"\\" in text or not text.isascii() or not text.decode().isprintable():
            return None
        said, place = text, end + 1
        kept.append(ID)
    while (found := content.find(DATA, place)) >= 0:
        start = found + len(DATA)
        if content[start : start + 1] == b" ":
            start += 1
        end = content.find(b"]", start) + 1
        if content[start : start + 1] != b"[" or not end or len(lists) == MOST_LISTS:
            return None
        kept.append(content[place:start])
        lists.append((start, end))
        place = end
    kept.append(content[place:])
    return Skeleton(b"\0".join(kept), said, lists)
