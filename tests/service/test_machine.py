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
    (tmp_path / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n")
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


def version_1(tmp_path, own, mounted="/", unified=False):
    """A machine with version 1, or with both side by side: quota 2.5 CPUs and 1 GiB for ``own`` and its parent."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"4:memory:{own}\n3:cpu,cpuacct:{own}\n1:name=systemd:/\n0::/\n")
    mounts = [
        "22 1 0:21 / / rw shared:1 - ext4 /dev/root rw",
        "30 22 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755",
        f"31 30 0:27 {mounted} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct",
        f"32 30 0:28 {mounted} /mnt/the\\040memory rw shared:10 master:2 - cgroup cgroup rw,memory",
    ]
    if unified:
        mounts.insert(2, "29 30 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate")
        (tmp_path / "sys/fs/cgroup/unified").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(mounts))
    path = own.removeprefix(mounted).strip("/")
    for folder, quota, limit in ((path, "250000", 1 << 30), (str(Path(path).parent), "-1", 9223372036854771712)):
        cpu, memory = (tmp_path / top / folder for top in ("sys/fs/cgroup/cpu,cpuacct", "mnt/the memory"))
        for place, name, value in (
            (cpu, "cpu.cfs_quota_us", quota),
            (cpu, "cpu.cfs_period_us", "100000"),
            (memory, "memory.limit_in_bytes", limit),
        ):
            place.mkdir(parents=True, exist_ok=True)
            if not (place / name).exists():
                (place / name).write_text(f"{value}\n")
    return tmp_path


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize(("own", "mounted"), [("/slice/unit", "/"), ("/docker/abc", "/docker/abc"), ("/a/b/c", "/a")])
def test_limits_of_version_1(tmp_path, own, mounted, unified):
    """On the host, and in a container that sees its own cgroup at the top of the mount; alone or beside version 2."""
    folder = version_1(tmp_path, own, mounted, unified)
    assert (machine.cpus(folder), machine.memory(folder)) == (3, 1 << 30)


def test_a_cgroup_outside_of_what_is_mounted(tmp_path):
    """As in a cgroup namespace that the process was moved out of: what is mounted is all there is to read."""
    folder = version_1(tmp_path, "/docker/abc", "/docker/abc")
    for own in ("/../other", "/elsewhere"):
        (folder / "proc/self/cgroup").write_text(f"4:memory:{own}\n3:cpu,cpuacct:{own}\n")
        assert (machine.cpus(folder), machine.memory(folder)) == (3, 1 << 30)


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


def test_memory_freed_by_a_thread_is_returned():
    """glibc would keep the end of a thread's own heap."""
    script = """
import threading
from service import machine

machine.keep_heap()
start = machine.resident_bytes()
ends = threading.Event()

def work():
    blocks = [b"x" * (1 << 20) for _ in range(40)]
    blocks.clear()
    freed.set()
    ends.wait()

freed = threading.Event()
thread = threading.Thread(target=work)
thread.start()
freed.wait()
machine.trim_heap()
kept = machine.resident_bytes() - start
ends.set()
thread.join()
assert kept < 8 << 20, kept
"""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("not glibc")
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
