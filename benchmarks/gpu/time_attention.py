"""Heed's graphs beside torch's kernels on the device, taking turns: one cell after the other, in this process."""

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
from benchmarks.gpu.worker import answer, told

SECONDS = 0.03  # of calls in one turn
CAPTURED = 2048  # of longer ones, what CUDA graphs save is nothing
HEED, GRAPHS = "heed", "heed, CUDA graphs"


def main() -> None:
    asked = told()
    repository, provider = Path(asked["repository"]), asked["provider"]
    if provider == "cpu":
        torch.set_num_threads(1)  # as ONNX Runtime's session has
    cells = [Engine(**each) for each in asked["cells"]]
    for small in dict.fromkeys(replace(cell, n=64) for cell in cells):
        with suppress(Exception):  # what libraries take at their first use is no cell's; what fails will fail again
            measure(small, repository, provider, 1)
    for cell in cells:
        gc.collect()
        try:
            found = measure(cell, repository, provider, asked["repeats"])
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"[:500]}
        answer(**found)


def measure(cell: Engine, repository: Path, provider: str, repeats: int) -> dict[str, Any]:
    """Milliseconds of each contender in each repeat, on the device and by the wall; memory; errors.

    Raises:
        Exception: Heed's graph could not be run.
    """
    given = tensors(cell, provider)
    memory: dict[str, int] = {}

    def first(name: str, attend: Attend, more: int = 0) -> Tensors:
        before = _taken(provider)
        found = _twice(attend)
        if provider == "cuda":
            memory[name] = machine.memory_mib() - before + more
        return found

    ours = Heed(cell, given, repository, provider)
    contenders, cannot = {HEED: ours}, {}
    if provider == "cuda":
        try:
            ours.give_back()
        except Exception as why:
            cannot["memory of heed"] = f"{type(why).__name__}: {why}"[:300]
    found = first(HEED, ours, ours.answered_mib)
    error, allowed = errors(cell, given, found), {}
    for name, attend in torch_kernels(cell, given).items():
        try:
            theirs = first(name, attend)
        except RuntimeError as why:
            cannot[name] = str(why).partition("\n")[0][:300]
            continue
        contenders[name] = attend
        for of, its in errors(cell, given, theirs).items():
            allowed[of] = max(allowed.get(of, 0.0), 2 * its + _last_place(theirs[of]))
        del theirs
    if provider == "cuda" and cell.n <= CAPTURED:
        try:
            captured = Heed(cell, given, repository, provider, captures=True)
            _twice(captured)
            contenders[GRAPHS] = captured
        except Exception as why:
            cannot[GRAPHS] = f"{type(why).__name__}: {why}"[:300]
    return {
        **times(contenders, repeats, provider),
        "graph": ours.graph,
        "memory_mib": memory,
        "error": error,
        "allowed": allowed,
        "cannot": cannot,
        "wrong": [
            f"{of}: error {its:.3g}, allowed {allowed.get(of, 0):.3g}"
            for of, its in error.items()
            if its > allowed.get(of, 0)
        ],
    }


def times(contenders: dict[str, Attend], repeats: int, provider: str) -> dict[str, Any]:
    """In turns, in every repeat another first; and which kernels each is."""
    on_device: dict[str, list[float]] = {}
    by_wall: dict[str, list[float]] = {name: [] for name in contenders}
    kernels: dict[str, list[str]] = {}
    no_clock = ""
    calls = {name: calls_in(SECONDS, attend) for name, attend in contenders.items()}
    names = list(contenders)
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            by_wall[name].append(round(wall_ms(contenders[name], calls[name]), 5))
            if no_clock or provider == "cpu":
                continue
            try:
                took, kernels[name] = device_ms(contenders[name], calls[name])
                on_device.setdefault(name, []).append(round(took, 5))
            except Exception as why:
                no_clock, on_device = f"{type(why).__name__}: {why}"[:300], {}
    return {"device_ms": on_device, "wall_ms": by_wall, "kernels": kernels, "no_device_clock": no_clock}


def _twice(attend: Attend) -> Tensors:
    """What is set up at the first call is there at the second."""
    attend()
    found = attend()
    wait()
    return found


def _taken(provider: str) -> int:
    """MiB of the device, less what torch only holds for later."""
    if provider != "cuda":
        return 0
    torch.cuda.empty_cache()
    return machine.memory_mib()


def _last_place(of: torch.Tensor) -> float:
    """One unit of the dtype in the last place of the largest number."""
    return float(torch.finfo(of.dtype).eps * of.abs().max())


if __name__ == "__main__":
    main()
