"""A profile of a cell: py-spy samples the server's processes, with native frames, while wrk loads it."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.serving.cell import Cell, Timing
from benchmarks.serving.turn import RunningServer

RATE = 200  # samples a second of each process, which py-spy pauses for each sample
# The stage of a sample is that of its innermost frame whose function or file is listed here, else "the rest".
STAGES = {
    "ONNX Runtime": {"Session.run", "session.py"},
    "numbers to text": {"json_writer.py", "fixed_point.py"},
    "text to numbers": {"simdjson.cpp", "json_parser.py", "json_reader.py", "json_slices.py", "long_tensor.py"},
    "sockets": {"read", "write", "writev", "recv", "send", "epoll_ctl"},
}

WAITING = {
    "PyThread_acquire_lock_timed",
    "pthread_cond_timedwait",  # the GIL
    "epoll_pwait",
    "epoll_wait",
    "poll",
    "Connection._recv",  # uvicorn's pings
}


def profile(server: RunningServer, cell: Cell, timing: Timing, file: Path) -> None:
    """Write ``file`` for https://www.speedscope.app, and print the functions with the most samples.

    Raises:
        RuntimeError: py-spy is not installed or failed; the message has its output.
    """
    server.turn(cell, Timing(1, timing.warmup, timing.quiet))  # checks the responses, warms up
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [_py_spy(), "record", "--pid", str(server.processes.all()[0].pid), "--subprocesses", "--native"]
    command += ["--rate", str(RATE), "--duration", str(timing.seconds)]
    command += ["--format", "speedscope", "--output", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as sampler:
        turn = server.turn(cell, Timing(timing.seconds + 2, 0, timing.quiet))
        output, _ = sampler.communicate()
    if sampler.returncode:
        raise RuntimeError(f"py-spy: {output.strip()}")
    document = json.loads(file.read_text())
    counts = self_times(document)
    waiting = counts.pop(None, 0)
    total = sum(counts.values()) or 1
    print(f"{cell}: {turn['rps']:.0f} requests a second while sampled; {file}")
    print(f"{total} samples of running threads, {waiting} of waiting ones (for work, locks, the GIL); of the former:")
    for name, count in counts.most_common(30):
        print(f"{100 * count / total:6.1f} %  {name}")
    shares = ", ".join(f"{name} {count / total:.0%}" for name, count in by_stage(document).items())
    print(f"{cell}: {shares}")


def self_times(document: dict[str, Any]) -> Counter[str | None]:
    """The number of samples in a speedscope document with each function as the innermost one with a name.

    The keys are "name (file)"; None counts the samples of waiting threads.
    """
    counts: Counter[str | None] = Counter()
    for names in _stacks(document):
        if not WAITING.isdisjoint(name for name, _ in names[:3]):
            counts[None] += 1
        elif names:
            counts["{} ({})".format(*names[0])] += 1
    return counts


def by_stage(document: dict[str, Any]) -> dict[str, int]:
    """The number of samples of running threads in each of ``STAGES``, and in the rest."""
    counts = dict.fromkeys((*STAGES, "the rest"), 0)
    for names in _stacks(document):
        if names and WAITING.isdisjoint(name for name, _ in names[:3]):
            known = (stage for frame in names for stage, words in STAGES.items() if not words.isdisjoint(frame))
            counts[next(known, "the rest")] += 1
    return counts


def _stacks(document: dict[str, Any]) -> Iterator[list[tuple[str, str]]]:
    """For each sample, the names and files of its functions that have a name, innermost first."""
    frames = [(frame["name"], Path(frame.get("file") or "?").name) for frame in document["shared"]["frames"]]
    for profile in document["profiles"]:
        for stack in profile["samples"]:
            yield [frames[i] for i in reversed(stack) if not frames[i][0].startswith("0x")]


def _py_spy() -> str:
    """The path of the command, next to this Python or in PATH.

    Raises:
        RuntimeError: it is not installed.
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    command = shutil.which("py-spy", path=path)
    if command is None:
        raise RuntimeError("py-spy is not installed: pip install --group bench")
    return command
