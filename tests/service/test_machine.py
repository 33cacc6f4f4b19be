"""CPUs and memory, read from made-up cgroups."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from service import machine


def root(tmp_path, own, **files):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"0::{own}\n")
    for path, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / path.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


def test_affinity_alone(tmp_path):
    assert machine.cpus(tmp_path) == 8


def test_quota(tmp_path):
    assert machine.cpus(root(tmp_path, "/", cpu_max="150000 100000\n")) == 2


def test_no_quota(tmp_path):
    assert machine.cpus(root(tmp_path, "/", cpu_max="max 100000\n")) == 8


def test_a_tiny_quota_is_one_cpu(tmp_path):
    assert machine.cpus(root(tmp_path, "/", cpu_max="1000 100000\n")) == 1


def test_the_tightest_of_the_cgroups_above(tmp_path):
    folder = root(tmp_path, "/slice/unit", slice__cpu_max="300000 100000", slice__unit__cpu_max="max 100000")
    assert machine.cpus(folder) == 3


def test_memory(tmp_path):
    assert machine.memory(root(tmp_path, "/a", a__memory_max="1048576\n", memory_max="max\n")) == 1 << 20


def test_memory_without_a_limit_is_the_machine_s(tmp_path):
    assert machine.memory(tmp_path) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_what_a_large_answer_took_is_kept_for_the_next():
    """With glibc; where another C library is, nothing is promised."""
    script = """
import resource
from service.machine import keep_heap

keep_heap()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [bytes(1 << 20) for _ in range(8)]
    del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first, second, *others = [faults() for _ in range(10)]
assert first + second > 1000 > 10 * max(others), (first, second, others)
"""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("not glibc")
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
