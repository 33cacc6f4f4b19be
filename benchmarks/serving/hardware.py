"""What the machine is, in words and as a part of a file name."""

import os
import platform
import re

import psutil


def describe() -> dict[str, str | int]:
    """Processor, CPUs this process may use, memory, kernel."""
    return {
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(),
    }


def slug() -> str:
    """2-amd-epyc, say."""
    words = describe()
    return re.sub(r"[^a-z0-9]+", "-", f"{words['cpus']} {words['processor']}".lower()).strip("-")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
