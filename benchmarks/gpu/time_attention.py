"""Heed's graphs and torch's kernels on the device, measured alternately, cell by cell, in this process."""

import gc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import machine
from benchmarks.gpu.cells import Engine
from benchmarks.gpu.clock import calls_in, device_ms, wait, wall_ms
from benchmarks.gpu.contenders import Attend, Heed, Tensors, errors, tensors, torch_kernels
from benchmarks.gpu.worker import send_result, worker_request

TURN_S = 0.03
HEED = "heed"


def main() -> None:
    request = worker_request()
    repository, provider = Path(request["repository"]), request["provider"]
    if provider == "cpu":
        torch.set_num_threads(1)  # as ONNX Runtime's session has
    cells = [Engine(**fields) for fields in request["cells"]]
    for small in dict.fromkeys(replace(cell, n=64) for cell in cells):
        with suppress(Exception):  # first-use allocations of libraries; errors occur again below
            measure(small, repository, provider, 1)
    for cell in cells:
        gc.collect()
        try:
            row = measure(cell, repository, provider, request["repeats"])
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}"[:500]}
        send_result(**row)


def measure(cell: Engine, repository: Path, provider: str, repeats: int) -> dict[str, Any]:
    """Times of each contender in each repeat, on the device and by the wall clock; memory; errors.

    Raises:
        Exception: Heed's graph failed.
    """
    inputs = tensors(cell, provider)
    memory_mib: dict[str, int] = {}

    def run_first(name: str, attend: Attend, allocated_mib: int = 0) -> Tensors:
        before_mib = _used_mib(provider)
        outputs = _run_twice(attend)
        if provider == "cuda":
            memory_mib[name] = machine.memory_mib() - before_mib + allocated_mib
        return outputs

    ours = Heed(cell, inputs, repository, provider)
    contenders, cannot = {HEED: ours}, {}
    if provider == "cuda":
        try:
            ours.shrink_arena()
        except Exception as why:
            cannot["memory of heed"] = f"{type(why).__name__}: {why}"[:300]
    outputs = run_first(HEED, ours, ours.output_mib)
    error, allowed = errors(cell, inputs, outputs), {}
    for name, attend in torch_kernels(cell, inputs).items():
        try:
            theirs = run_first(name, attend)
        except RuntimeError as why:
            cannot[name] = str(why).partition("\n")[0][:300]
            continue
        contenders[name] = attend
        for key, its in errors(cell, inputs, theirs).items():
            allowed[key] = max(allowed.get(key, 0.0), 2 * its + _last_place(theirs[key]))
        del theirs
    return {
        **times(contenders, repeats, provider),
        "graph": ours.graph,
        "memory_mib": memory_mib,
        "error": error,
        "allowed": allowed,
        "cannot": cannot,
        "wrong": [
            f"{key}: error {its:.3g}, allowed {allowed.get(key, 0):.3g}"
            for key, its in error.items()
            if its > allowed.get(key, 0)
        ],
    }


def times(contenders: dict[str, Attend], repeats: int, provider: str) -> dict[str, Any]:
    """Times in alternating turns, where each repeat begins with another contender; and the names of the kernels."""
    on_device: dict[str, list[float]] = {}
    by_wall: dict[str, list[float]] = {name: [] for name in contenders}
    kernels: dict[str, list[str]] = {}
    no_clock = ""
    calls = {name: calls_in(TURN_S, attend) for name, attend in contenders.items()}
    names = list(contenders)
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            by_wall[name].append(round(wall_ms(contenders[name], calls[name]), 5))
            if no_clock or provider == "cpu":
                continue
            try:
                time_ms, kernels[name] = device_ms(contenders[name], calls[name])
                on_device.setdefault(name, []).append(round(time_ms, 5))
            except Exception as why:
                no_clock, on_device = f"{type(why).__name__}: {why}"[:300], {}
    return {"device_ms": on_device, "wall_ms": by_wall, "kernels": kernels, "no_device_clock": no_clock}


def _run_twice(attend: Attend) -> Tensors:
    """The outputs of the second call, after the setup in the first one."""
    attend()
    outputs = attend()
    wait()
    return outputs


def _used_mib(provider: str) -> int:
    """The used memory of the device, without the cache of torch's allocator."""
    if provider != "cuda":
        return 0
    torch.cuda.empty_cache()
    return machine.memory_mib()


def _last_place(tensor: torch.Tensor) -> float:
    """One unit in the last place of the largest number."""
    return float(torch.finfo(tensor.dtype).eps * tensor.abs().max())


if __name__ == "__main__":
    main()
