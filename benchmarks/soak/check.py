"""The result of one check of a soak test."""

from typing import NamedTuple


class Check(NamedTuple):
    """``needs_idle_machine``: other load on the machine may make the check fail."""

    requirement: str
    observed: str
    passed: bool
    needs_idle_machine: bool = False
