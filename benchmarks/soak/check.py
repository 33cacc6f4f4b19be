"""The result of one check of a soak test."""

from typing import NamedTuple

MAX_GROWTH, MAX_GROWTH_BYTES = 0.05, 16 << 20


class Check(NamedTuple):
    """``needs_idle_machine``: other load on the machine may make the check fail."""

    requirement: str
    observed: str
    passed: bool
    needs_idle_machine: bool = False


def memory_check(before_bytes: int, after_bytes: int) -> Check:
    """Check that memory has hardly grown."""
    return Check(
        f"memory grows by less than {MAX_GROWTH:.0%} and {MAX_GROWTH_BYTES >> 20} MiB",
        f"{before_bytes >> 20} MiB, then {after_bytes >> 20} MiB",
        after_bytes < before_bytes * (1 + MAX_GROWTH) + MAX_GROWTH_BYTES,
    )
