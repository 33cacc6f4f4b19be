"""Where the time of a cell goes: py-spy samples the server's processes, native frames too, while wrk loads it."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.serving.cell import Cell, Timing
from benchmarks.serving.turn import Running

RATE = 200  # samples a second of each process, which stands still meanwhile

WAITING = {
    "PyThread_acquire_lock_timed",
    "pthread_cond_timedwait",  # the GIL
    "epoll_pwait",
    "epoll_wait",
    "poll",
    "Connection._recv",  # uvicorn's pings
}


def profile(running: Running, cell: Cell, timing: Timing, file: Path) -> None:
    """Write ``file`` for https://www.speedscope.app, and print which functions the samples were in.

    Raises:
        RuntimeError: py-spy could not sample; the message is what it said.
    """
    running.turn(cell, Timing(1, timing.warmup, timing.quiet))  # answers compared, processes warm
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [_py_spy(), "record", "--pid", str(running.processes.all()[0].pid), "--subprocesses", "--native"]
    command += ["--rate", str(RATE), "--duration", str(timing.seconds)]
    command += ["--format", "speedscope", "--output", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as sampler:
        found = running.turn(cell, Timing(timing.seconds + 2, 0, timing.quiet))
        said, _ = sampler.communicate()
    if sampler.returncode:
        raise RuntimeError(f"py-spy: {said.strip()}")
    counts = self_times(json.loads(file.read_text()))
    waiting = counts.pop(None, 0)
    total = sum(counts.values()) or 1
    print(f"{cell}: {found['rps']:.0f} requests a second while sampled; {file}")
    print(f"threads at work in {total} samples, waiting (for work, each other or the GIL) in {waiting}; of the first:")
    for name, count in counts.most_common(30):
        print(f"{100 * count / total:6.1f} %  {name}")


def self_times(document: dict[str, Any]) -> Counter[str | None]:
    """In how many samples of a speedscope document each function was the innermost with a name, by "name (file)".

    None is for threads that wait.
    """
    frames = document["shared"]["frames"]
    counts: Counter[str | None] = Counter()
    for each in document["profiles"]:
        for stack in each["samples"]:
            named = [frames[i] for i in reversed(stack) if not frames[i]["name"].startswith("0x")]
            if not WAITING.isdisjoint(of["name"] for of in named[:3]):
                counts[None] += 1
            elif named:
                counts[f"{named[0]['name']} ({Path(named[0].get('file') or '?').name})"] += 1
    return counts


def _py_spy() -> str:
    """The command, beside this Python or on the path."""
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    found = shutil.which("py-spy", path=beside)
    if found is None:
        raise RuntimeError("py-spy is not installed: pip install --group bench")
    return found
