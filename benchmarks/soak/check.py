"""What a part of the soak holds the server to."""

from typing import NamedTuple


class Check(NamedTuple):
    """``quiet``: only a machine that does nothing else can be held to it."""

    must: str
    found: str
    held: bool
    quiet: bool = False
