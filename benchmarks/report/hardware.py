"""A description of the machine, as text and for file names."""

import os
import platform
import re

import psutil


def describe() -> dict[str, str | int]:
    """The processor, the number of CPUs that this process may use, the memory in GiB, the kernel."""
    return {
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(),
    }


def slug() -> str:
    """The machine in a file name, such as 2-amd-epyc."""
    machine = describe()
    return re.sub(r"[^a-z0-9]+", "-", f"{machine['cpus']} {machine['processor']}".lower()).strip("-")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
