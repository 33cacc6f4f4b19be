"""ONNX Runtime without a server: the right answers, and a yardstick.

The yardstick is the work of one JSON request in the plainest fast Python: orjson, numpy, session, orjson.

usage: python -m benchmarks.serving.in_process MODELS WORKLOAD PROCESSES SECONDS WARMUP
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from itertools import cycle
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import orjson

from benchmarks.serving.faces import answer, bodies
from benchmarks.serving.process import busy
from benchmarks.serving.workloads import WORKLOADS, Arrays, Workload

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def open_session(models: Path, name: str) -> Any:
    """One thread, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(models / name / "1" / "model.onnx", options, providers=["CPUExecutionProvider"])


def right(workload: Workload, models: Path) -> list[Arrays]:
    """What the session alone answers to each body."""
    session = open_session(models, workload.graph)
    names = list(workload.outputs)
    return [dict(zip(names, session.run(names, tensors), strict=True)) for tensors in workload.tensors]


def request(models: Path, workload: str) -> Callable[[], bytes]:
    """What answers the next body, from bytes to bytes."""
    asked = WORKLOADS[workload]
    session = open_session(models, asked.graph)
    texts = cycle(bodies(asked, asked.graph, "v2-json").texts)

    def one() -> bytes:
        parsed = orjson.loads(next(texts))
        given = {of["name"]: np.asarray(of["data"], np.float32).reshape(of["shape"]) for of in parsed["inputs"]}
        wanted = [of["name"] for of in parsed["outputs"]]
        found = dict(zip(wanted, session.run(wanted, given), strict=True))
        return answer(found, asked.graph, binary=False)[0]

    return one


def _work(models: Path, workload: str, seconds: float, warmup: float, barrier: Barrier, results: "Queue[Any]") -> None:
    one = request(models, workload)
    end = perf_counter() + warmup
    while perf_counter() < end:
        one()
    barrier.wait()
    took, spent, begin = [], process_time(), perf_counter()
    last = begin
    while last < begin + seconds:
        one()
        now = perf_counter()
        took.append(1e3 * (now - last))
        last = now
    results.put((len(took) / (last - begin), took, process_time() - spent))


def measure(models: Path, workload: str, processes: int, seconds: float, warmup: float) -> dict[str, Any]:
    """Each of the processes as fast as it can, all at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(1 + processes), context.Queue()
    arguments = (models, workload, seconds, warmup, barrier, results)
    crew = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(processes)]
    for process in crew:
        process.start()
    barrier.wait(timeout=60 + 10 * warmup)
    worked, begin = busy(), perf_counter()
    found = [results.get(timeout=60 + 10 * seconds) for _ in crew]
    worked, wall = busy() - worked, perf_counter() - begin
    for process in crew:
        process.join()
    took = np.concatenate([times for _, times, _ in found])
    spent = sum(each for _, _, each in found)
    p50, p99 = np.percentile(took, (50, 99))
    return {
        "rps": sum(rate for rate, _, _ in found),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "requests": int(took.size),
        "errors": {},
        "server_cpu_s": spent,
        "other_cores": (worked - spent) / wall,
    }


if __name__ == "__main__":
    folder, name, crew_size, for_seconds, warm_seconds = sys.argv[1:]
    print(json.dumps(measure(Path(folder), name, int(crew_size), float(for_seconds), float(warm_seconds))))
