"""Where the time of a cell goes: py-spy samples the server's processes, native frames too, while wrk loads it."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.serving.turn import Cell, Running, Timing

RATE = 250  # samples a second of each process


def profile(running: Running, cell: Cell, timing: Timing, file: Path) -> None:
    """Write ``file`` for https://www.speedscope.app, and print which functions the samples were in.

    Raises:
        RuntimeError: py-spy could not sample; the message is what it said.
    """
    running.turn(cell, Timing(1, timing.warmup, timing.quiet))  # answers compared, processes warm
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [_py_spy(), "record", "--pid", str(running.processes.all()[0].pid), "--subprocesses", "--native"]
    command += ["--nonblocking", "--rate", str(RATE), "--duration", str(timing.seconds)]
    command += ["--format", "speedscope", "--output", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as sampler:
        found = running.turn(cell, Timing(timing.seconds + 2, 0, timing.quiet))
        said, _ = sampler.communicate()
    if sampler.returncode:
        raise RuntimeError(f"py-spy: {said.strip()}")
    counts = self_times(json.loads(file.read_text()))
    total = sum(counts.values())
    print(f"{cell}: {found['rps']:.0f} requests a second while sampled; {file}")
    for name, count in counts.most_common(25):
        print(f"{100 * count / total:6.1f} %  {name}")


def self_times(document: dict[str, Any]) -> Counter[str]:
    """What weight each function has as the innermost one of a speedscope document, by "name (file)"."""
    names = [f"{of['name']} ({Path(of.get('file') or '?').name})" for of in document["shared"]["frames"]]
    counts: Counter[str] = Counter()
    for each in document["profiles"]:
        for stack, weight in zip(each["samples"], each["weights"], strict=True):
            if stack:
                counts[names[stack[-1]]] += weight
    return counts


def _py_spy() -> str:
    """The command, beside this Python or on the path."""
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    found = shutil.which("py-spy", path=beside)
    if found is None:
        raise RuntimeError("py-spy is not installed: pip install --group bench")
    return found
