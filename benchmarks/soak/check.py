"""What a part of the soak holds the server to."""

from typing import NamedTuple


class Check(NamedTuple):
    must: str
    found: str
    held: bool
