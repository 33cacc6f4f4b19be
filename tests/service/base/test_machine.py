"""CPUs and memory, read from made-up cgroups."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from service.base import machine


def made_up(folder, cgroup, mounts, files):
    """A machine in a folder: the cgroup of the process, what is mounted, and the files of cgroups."""
    texts = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": "\n".join(mounts), **files}
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"{text}\n")
    return folder


def version_2(folder, own, **files):
    mounts = ["30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"]
    return made_up(folder, f"0::{own}", mounts, {f"sys/fs/cgroup/{path}": text for path, text in files.items()})


def version_1(folder, own, mounted="/", unified=False):
    """A machine with version 1, or with both side by side: quota 2.5 CPUs and 1 GiB for ``own`` and not its parent."""
    cpu, memory = "sys/fs/cgroup/cpu,cpuacct", "mnt/the memory"
    path = own.removeprefix(mounted).strip("/")
    parent = Path(path).parent
    mounts = [
        "22 1 0:21 / / rw shared:1 - ext4 /dev/root rw",
        "30 22 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755",
        *["29 30 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate"] * unified,
        f"31 30 0:27 {mounted} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct",
        f"32 30 0:28 {mounted} /mnt/the\\040memory rw shared:10 master:2 - cgroup cgroup rw,memory",
    ]
    files = {
        f"{cpu}/{parent}/cpu.cfs_quota_us": -1,
        f"{cpu}/{path}/cpu.cfs_quota_us": 250_000,
        **{f"{cpu}/{of}/cpu.cfs_period_us": 100_000 for of in (parent, path)},
        f"{memory}/{parent}/memory.limit_in_bytes": 9223372036854771712,
        f"{memory}/{path}/memory.limit_in_bytes": 1 << 30,
        "sys/fs/cgroup/unified/cgroup.procs": "",
    }
    return made_up(folder, f"4:memory:{own}\n3:cpu,cpuacct:{own}\n1:name=systemd:/\n0::/", mounts, files)


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        ("/", {"cpu.max": "150000 100000"}, 2),
        ("/", {"cpu.max": "max 100000"}, 8),
        ("/", {"cpu.max": "1000 100000"}, 1),
        ("/slice/unit", {"slice/cpu.max": "300000 100000", "slice/unit/cpu.max": "max 100000"}, 3),
    ],
    ids=["a quota", "no quota", "a tiny one is one CPU", "the tightest of the cgroups above"],
)
def test_cpus(tmp_path, own, files, cpus):
    assert machine.cpus(version_2(tmp_path, own, **files)) == cpus


def test_memory(tmp_path):
    assert machine.memory(version_2(tmp_path, "/a", **{"a/memory.max": "1048576", "memory.max": "max"})) == 1 << 20


def test_without_cgroups_all_is_the_machine_s(tmp_path):
    assert machine.cpus(tmp_path) == 8
    assert machine.memory(tmp_path) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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


KEEPS = """
import resource
from service.base.machine import keep_heap

keep_heap()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [bytes(1 << 20) for _ in range(8)]
    del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first, second, *others = [faults() for _ in range(10)]
assert first + second > 1000 > 10 * max(others), (first, second, others)
"""  # what a large answer took, for the next

RETURNS = """
import threading
from service.base import machine

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
"""  # what a thread freed; glibc would keep the end of a thread's own heap


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc: run it on a distribution that has it")
@pytest.mark.parametrize("script", [KEEPS, RETURNS], ids=["keeps", "returns"])
def test_the_heap_keeps_and_returns_memory(script):
    """With glibc; where another C library is, nothing is promised."""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[3])
