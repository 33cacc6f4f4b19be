"""Load by wrk: a closed loop from one thread, on the same cores as the server."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("post.lua")


def wrk() -> str:
    """The path of the command.

    Raises:
        FileNotFoundError: wrk is not installed.
    """
    command = shutil.which("wrk")
    if command is None:
        raise FileNotFoundError("wrk, the load generator, is not installed: apt-get install wrk")
    return command


def load(
    url: str, bodies: Sequence[Path], headers: dict[str, str], connections: int, seconds: int, ids: str = "none"
) -> dict[str, Any]:
    """Post ``bodies`` in turn for ``seconds``.

    The result has requests a second, percentiles of the latency in milliseconds (None without responses), errors by
    kind, and the processor time of wrk itself.

    Raises:
        RuntimeError: wrk failed; the message has its output.
    """
    command = [wrk(), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s", "-s", str(SCRIPT), url, "--"]
    command += [ids, str(len(bodies)), *map(str, bodies), *(f"{name}: {value}" for name, value in headers.items())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    lines = [line for line in printed.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not lines:
        raise RuntimeError(f"wrk: {printed.strip()[-500:]}")
    result = json.loads(lines[0].removeprefix("RESULT "))
    requests, microseconds = result["requests"], result["microseconds"]
    per_connection = requests // connections
    times_us = without_correction(dict(result["latencies"]), microseconds // per_connection if per_connection else 0)
    return {
        "rps": 1e6 * requests / microseconds,
        "p50_ms": percentile_ms(times_us, 0.5),
        "p99_ms": percentile_ms(times_us, 0.99),
        "requests": requests,
        "errors": {kind: count for kind, count in result["errors"].items() if count},
        "wrk_cpu_s": usage.ru_utime + usage.ru_stime,
    }


def without_correction(counts: dict[int, int], interval: int) -> dict[int, int]:
    """The latencies that wrk measured, without its correction: microseconds -> count.

    For each sample v of at least twice the mean ``interval``, from small to large, wrk adds samples at v - interval,
    v - 2 interval, ... above the interval. Removing them from large v to small restores the original counts exactly.

    Raises:
        ValueError: ``counts`` cannot result from that correction.
    """
    real = dict(counts)
    for v in sorted(counts, reverse=True):
        if interval and v >= 2 * interval and real[v]:
            for added in range(v - interval, interval, -interval):
                real[added] = real.get(added, 0) - real[v]
    if any(count < 0 for count in real.values()):
        raise ValueError(f"not a histogram that wrk corrected with interval {interval}")
    return {v: count for v, count in sorted(real.items()) if count}


def percentile_ms(times_us: dict[int, int], share: float) -> float | None:
    """The latency within which ``share`` of the requests was answered; None if no request was answered."""
    count, total = 0, sum(times_us.values())
    for v in sorted(times_us):
        count += times_us[v]
        if count >= share * total:
            return v / 1e3
    return None
