"""What this process may use of its machine: CPUs by affinity and cgroup quota, memory by cgroup limit."""

import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

KEPT = 64 << 20  # bytes at the end of each heap
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def cpus(root: Path = Path("/")) -> int:
    """The CPUs of this process, at least 1. ``root`` is where ``proc`` and ``sys`` are found."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [int(quota) / int(period) for quota, period in _cgroup(root, "cpu.max") if quota != "max"]
    return max(1, min([allowed, *map(math.ceil, quotas)]))


def memory(root: Path = Path("/")) -> int:
    """The bytes this process may fill: the machine's, or what its cgroup grants."""
    limits = [int(limit) for (limit,) in _cgroup(root, "memory.max") if limit != "max"]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def keep_heap() -> None:
    """Have glibc keep what a large body or answer took, for the next one.

    Given back and asked for again with each request, its pages are faulted in each time: a quarter of the time that
    megabytes of JSON take. Other C libraries do as they do.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, KEPT // 2)


def _cgroup(root: Path, name: str) -> Iterator[list[str]]:
    """The words of file ``name`` in this process's cgroup (version 2) and in each above it."""
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    folder = top / own
    for holder in [folder, *folder.parents]:
        if holder.is_relative_to(top) and (holder / name).is_file():
            yield (holder / name).read_text().split()
