"""ONNX Runtime without a server: the expected outputs, and a baseline.

The baseline is the work of one JSON request in simple, fast Python: orjson, numpy, session, orjson.

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

from benchmarks.server import machine_cpu_s
from benchmarks.serving.formats import bodies, v2_response
from benchmarks.serving.workloads import WORKLOADS, Arrays, Workload

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def open_session(models: Path, name: str) -> Any:
    """A session with one thread on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(models / name / "1" / "model.onnx", options, providers=["CPUExecutionProvider"])


def expected_outputs(workload: Workload, models: Path) -> list[Arrays]:
    """The session's outputs for each body."""
    session = open_session(models, workload.graph)
    names = list(workload.outputs)
    return [dict(zip(names, session.run(names, tensors), strict=True)) for tensors in workload.tensors]


def request_handler(models: Path, workload_name: str) -> Callable[[], bytes]:
    """A function that parses the next body, runs the session and returns the response body."""
    workload = WORKLOADS[workload_name]
    session = open_session(models, workload.graph)
    texts = cycle(bodies(workload, workload.graph, "v2-json").texts)

    def handle() -> bytes:
        document = orjson.loads(next(texts))
        feeds = {t["name"]: np.asarray(t["data"], np.float32).reshape(t["shape"]) for t in document["inputs"]}
        names = [output["name"] for output in document["outputs"]]
        outputs = dict(zip(names, session.run(names, feeds), strict=True))
        return v2_response(outputs, workload.graph, binary=False)[0]

    return handle


def _work(models: Path, workload: str, seconds: float, warmup: float, barrier: Barrier, results: "Queue[Any]") -> None:
    handle = request_handler(models, workload)
    end_s = perf_counter() + warmup
    while perf_counter() < end_s:
        handle()
    barrier.wait()
    times_ms, start_cpu_s, start_s = [], process_time(), perf_counter()
    last_s = start_s
    while last_s < start_s + seconds:
        handle()
        now_s = perf_counter()
        times_ms.append(1e3 * (now_s - last_s))
        last_s = now_s
    results.put((len(times_ms) / (last_s - start_s), times_ms, process_time() - start_cpu_s))


def measure(models: Path, workload: str, processes: int, seconds: float, warmup: float) -> dict[str, Any]:
    """Run the baseline in several processes at the same time, each at its full speed."""
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(1 + processes), context.Queue()
    arguments = (models, workload, seconds, warmup, barrier, queue)
    workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    barrier.wait(timeout=60 + 10 * warmup)
    start_cpu_s, start_s = machine_cpu_s(), perf_counter()
    results = [queue.get(timeout=60 + 10 * seconds) for _ in workers]
    cpu_s, wall_s = machine_cpu_s() - start_cpu_s, perf_counter() - start_s
    for worker in workers:
        worker.join()
    times_ms = np.concatenate([times for _, times, _ in results])
    own_cpu_s = sum(worker_cpu_s for _, _, worker_cpu_s in results)
    p50, p99 = np.percentile(times_ms, (50, 99))
    return {
        "rps": sum(rate for rate, _, _ in results),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "requests": int(times_ms.size),
        "errors": {},
        "server_cpu_s": own_cpu_s,
        "other_cores": (cpu_s - own_cpu_s) / wall_s,
    }


if __name__ == "__main__":
    folder, name, process_count, measured_s, warmup_s = sys.argv[1:]
    print(json.dumps(measure(Path(folder), name, int(process_count), float(measured_s), float(warmup_s))))
