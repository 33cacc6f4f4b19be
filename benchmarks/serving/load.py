"""Load by wrk: a closed loop over so many connections, from one thread, on the cores the server runs on, too."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("post.lua")


def wrk() -> str:
    """The command.

    Raises:
        FileNotFoundError: it is not installed.
    """
    found = shutil.which("wrk")
    if found is None:
        raise FileNotFoundError("wrk, which makes the load, is not installed: apt-get install wrk")
    return found


def load(
    url: str, bodies: Sequence[Path], headers: dict[str, str], connections: int, seconds: int, ids: str = "none"
) -> dict[str, Any]:
    """Post ``bodies`` in turn for so many seconds.

    Requests a second, milliseconds, errors by kind, and processor seconds of wrk itself; percentiles are None when no
    request was answered.

    Raises:
        RuntimeError: wrk failed; the message is what it printed.
    """
    command = [wrk(), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s", "-s", str(SCRIPT), url, "--"]
    command += [ids, str(len(bodies)), *map(str, bodies), *(f"{name}: {value}" for name, value in headers.items())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    lines = [line for line in printed.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not lines:
        raise RuntimeError(f"wrk: {printed.strip()[-500:]}")
    found = json.loads(lines[0].removeprefix("RESULT "))
    requests, microseconds = found["requests"], found["microseconds"]
    times = timed(dict(found["latencies"]), microseconds // each if (each := requests // connections) else 0)
    return {
        "rps": 1e6 * requests / microseconds,
        "p50_ms": percentile(times, 0.5),
        "p99_ms": percentile(times, 0.99),
        "requests": requests,
        "errors": {kind: count for kind, count in found["errors"].items() if count},
        "wrk_cpu_s": used.ru_utime + used.ru_stime,
    }


def timed(counts: dict[int, int], interval: int) -> dict[int, int]:
    """The latencies that wrk really timed: microseconds -> how often.

    For each sample v of at least twice the mean ``interval`` wrk adds samples at v - interval, v - 2 interval, ...
    above the interval, from small v to large. Taken away again from large v to small, the counts are exactly those
    before.

    Raises:
        ValueError: these are no counts to which that was done.
    """
    real = dict(counts)
    for v in sorted(counts, reverse=True):
        if interval and v >= 2 * interval and real[v]:
            for added in range(v - interval, interval, -interval):
                real[added] = real.get(added, 0) - real[v]
    if any(count < 0 for count in real.values()):
        raise ValueError(f"not a histogram that wrk corrected with interval {interval}")
    return {v: count for v, count in sorted(real.items()) if count}


def percentile(times: dict[int, int], share: float) -> float | None:
    """Milliseconds within which this share was answered."""
    seen, total = 0, sum(times.values())
    for v in sorted(times):
        seen += times[v]
        if seen >= share * total:
            return v / 1e3
    return None
