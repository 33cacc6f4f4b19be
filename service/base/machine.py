"""The share of this machine that this process may use: CPUs by affinity and cgroup quota, memory by cgroup limit."""

import ctypes
import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

HEAP_RESERVE_BYTES = 64 << 20  # free memory that glibc keeps at the end of the heap
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # constants of malloc.h


def cpus(root: Path = Path("/")) -> int:
    """The number of CPUs this process may use, at least 1. ``root`` is the folder of ``proc`` and ``sys``."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [_words(folder / "cpu.max") for folder in _cgroups(root, "")]
    for folder in _cgroups(root, "cpu"):
        limits.append(_words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us"))
    # "No limit" is "max" in version 2 and -1 in version 1. A root cgroup may lack the file.
    quotas = [int(limit[0]) / int(limit[1]) for limit in limits if len(limit) == 2 and limit[0].isdecimal()]
    return max(1, min([allowed, *map(math.ceil, quotas)]))


def memory(root: Path = Path("/")) -> int:
    """The bytes of memory this process may use: the machine's, or the limit of its cgroup."""
    limits = [_words(folder / "memory.max") for folder in _cgroups(root, "")]
    limits += [_words(folder / "memory.limit_in_bytes") for folder in _cgroups(root, "memory")]
    granted = [int(limit[0]) for limit in limits if limit and limit[0].isdecimal()]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *granted])


def keep_heap() -> None:
    """Make glibc keep the memory of a large body or response for the next one, in one heap for all threads.

    If it returned the memory to the system after each request, page faults would take a quarter of the time of a
    request with megabytes of JSON. ``malloc_trim`` frees the end of the main heap alone: in heaps of threads up to 64
    MiB each would be kept for good. Other C libraries are left as they are.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, HEAP_RESERVE_BYTES)
        mallopt(M_MMAP_THRESHOLD, HEAP_RESERVE_BYTES // 2)
        mallopt(M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Return all free pages of glibc's heap to the system."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """The resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The folder of this process's cgroup and of each above it, as far as they are mounted.

    ``controller`` names a hierarchy of version 1; "" is version 2. Both exist side by side on hybrid systems.
    """
    path = next((path for names, path in _memberships(root) if controller in names.split(",")), None)
    for kind, options, top, mount in _mounts(root):
        wanted = kind == "cgroup" and controller in options.split(",") if controller else kind == "cgroup2"
        if path is None or not wanted:
            continue
        # A mount shows the hierarchy from ``top`` on: in a container often this process's own cgroup.
        inside = path.relative_to(top) if path.is_relative_to(top) and ".." not in path.parts else Path()
        folder = root / mount.relative_to("/")
        yield folder / inside
        yield from [folder / above for above in inside.parents]
        return


def _memberships(root: Path) -> Iterator[tuple[str, Path]]:
    """The controllers, with commas between them, and the cgroup of each hierarchy that this process is in."""
    for line in _lines(root / "proc/self/cgroup"):
        _number, controllers, path = line.split(":", 2)
        yield controllers, Path(path)


def _mounts(root: Path) -> Iterator[tuple[str, str, Path, Path]]:
    """The type, the options, the mounted part and the mount point of each file system, as proc(5) has them."""
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, file_system = line.partition(" - ")
        _id, _parent, _device, top, point, *_ = mount.split()
        kind, *_source, options = file_system.split()
        yield kind, options, Path(_unescaped(top)), Path(_unescaped(point))


def _unescaped(path: str) -> str:
    """A path of mountinfo, where a blank is written ``\\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()
