"""What this process may use of its machine: CPUs by affinity and cgroup quota, memory by cgroup limit."""

import math
import os
from collections.abc import Iterator
from pathlib import Path


def cpus(root: Path = Path("/")) -> int:
    """The CPUs of this process, at least 1. ``root`` is where ``proc`` and ``sys`` are found."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [int(quota) / int(period) for quota, period in _cgroup(root, "cpu.max") if quota != "max"]
    return max(1, min([allowed, *map(math.ceil, quotas)]))


def memory(root: Path = Path("/")) -> int:
    """The bytes this process may fill: the machine's, or what its cgroup grants."""
    limits = [int(limit) for (limit,) in _cgroup(root, "memory.max") if limit != "max"]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


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
