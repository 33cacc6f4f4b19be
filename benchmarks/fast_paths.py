"""Attention without weights as an output: time and memory compared with torch's scaled_dot_product_attention.

Then the time and memory of the blocks that are linear in n.

Each line is measured in new processes: one that alternates between Heed's graph and torch, and one for each that
measures the growth of memory during a single call, without the inputs. On a shared machine, the processor time (cpu) of
all threads varies less than the wall time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
CASES = ("plain", "causal", "window", "padding", "mask")
LINEAR = {"linear": ("linear", False), "linear_causal": ("linear", True), "efficient": ("efficient", False)}
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)  # of the linear blocks
WINDOW = 512


def inputs(case: str, heads: int, n: int, d: int) -> dict[str, Any]:
    """The inputs of Heed for a case; ``window`` is the query's own key and the 512 before it."""
    import numpy as np

    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {
        name: rng.standard_normal((1, heads, n, d), dtype=np.float32) for name in ("query", "key", "value")
    }
    if case in ("causal", "window", "linear_causal"):
        tensors["is_causal"] = np.array(True)
    if case == "window":
        tensors["left_window_size"] = np.array(WINDOW)
    if case == "padding":
        tensors["nonpad_kv_seqlen"] = np.array([3 * n // 4])
    if case == "mask":
        tensors["attn_mask"] = np.full((1, 1, n, n), -np.inf, np.float32)
        tensors["attn_mask"][0, 0][rng.random((n, n), dtype=np.float32) < 0.7] = 0
    return tensors


def heed(case: str, tensors: dict[str, Any], repository: Path, threads: int) -> Callable[[], Any]:
    """A call of the graph that the service selects, with the threads of a long run."""
    from service.model.loader import open_version
    from service.ort.provider import Provider

    block = LINEAR[case][0] if case in LINEAR else "scaled_dot_product"
    model = open_version(repository / block / "1", Provider("cpu", "asked for"), threads)
    graph = model.graph_for(tensors, ["output"], model.bind(tensors))
    graph = graph.multi_threaded.graph_with(graph) if graph.multi_threaded else graph
    return lambda: model.run(graph, tensors, ["output"])["output"]


def torch_sdpa(tensors: dict[str, Any], threads: int) -> Callable[[], Any]:
    """A call of torch's kernel, which needs boolean masks for windows and padding."""
    import torch

    torch.set_num_threads(threads)
    query, key, value = (torch.from_numpy(tensors[name]) for name in ("query", "key", "value"))
    n = query.shape[2]
    options: dict[str, Any] = {}
    if "attn_mask" in tensors:
        options["attn_mask"] = torch.from_numpy(tensors["attn_mask"]) == 0
    elif "left_window_size" in tensors:
        i, j = torch.arange(n)[:, None], torch.arange(n)
        options["attn_mask"] = (j <= i) & (j >= i - WINDOW)
    elif "nonpad_kv_seqlen" in tensors:
        options["attn_mask"] = (torch.arange(n) < int(tensors["nonpad_kv_seqlen"][0]))[None, :].expand(n, n)
    elif "is_causal" in tensors:
        options["is_causal"] = True
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(query, key, value, **options).numpy()


def times(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Median wall and processor seconds of each call, in alternating turns."""
    times_s: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            time.sleep(0.2)  # torch's threads keep spinning for a while after a call
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            call()
            if turn:
                times_s[name].append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
    return {
        name: dict(zip(("wall", "cpu"), map(median, zip(*pairs, strict=True)), strict=True))
        for name, pairs in times_s.items()
    }


def peak_mb(call: Callable[[], Any]) -> float:
    """The largest growth of the process during a call (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before_kb = _status_kb("VmRSS")
    call()
    return (_status_kb("VmHWM") - before_kb) / 1000


def _status_kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def measure(kind: str, case: str, n: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run ``run_worker`` in another process."""
    command = [sys.executable, __file__, "--worker", kind, "--cases", case, "--n", str(n)]
    command += ["--heads", str(options.heads), "--d", str(options.d), "--repository", str(options.repository)]
    command += ["--threads", str(options.threads), "--repeats", str(options.repeats)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ORT_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_worker(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    case = options.cases[0]
    tensors = inputs(case, options.heads, options.n[0], options.d)
    if kind == "torch":
        return {"peak": peak_mb(torch_sdpa(tensors, options.threads))}
    ours = heed(case, tensors, options.repository, options.threads)
    if kind == "heed":
        return {"peak": peak_mb(ours)}
    if case in LINEAR:
        return times({"heed": ours}, options.repeats)
    theirs = torch_sdpa(tensors, options.threads)
    difference = float(abs(ours() - theirs()).max())
    return {"difference": difference, **times({"heed": ours, "torch": theirs}, options.repeats)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[*CASES, *LINEAR], choices=[*CASES, *LINEAR])
    parser.add_argument("--n", nargs="+", type=int, default=[2048, 4096, 8192, 16384], help="lengths beside torch")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--d", type=int, default=64, help="d_k and d_v")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--repository", type=Path, help="model repository (default: export one)")
    parser.add_argument("--worker", choices=("heed", "torch", "times"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run_worker(options.worker, options)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        if options.repository is None:
            options.repository = Path(scratch)
            blocks = ["scaled_dot_product", *{block for block, _ in LINEAR.values()}]
            command = [sys.executable, "-m", "export", *blocks, "--repository", scratch]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        print(f"heads {options.heads}, d {options.d}, batch 1, {options.threads} threads, median of {options.repeats}")
        compare_with_torch([case for case in options.cases if case in CASES], options)
        measure_lengths([case for case in options.cases if case in LINEAR], options)
    return 0


def compare_with_torch(cases: list[str], options: argparse.Namespace) -> None:
    columns = "Heed s", "torch s", "wall ratio", "cpu ratio", "Heed peak MB", "torch peak MB", "largest difference"
    print_header(cases, columns)
    for case in cases:
        for n in options.n:
            result = measure("times", case, n, options)
            ours, theirs = result["heed"], result["torch"]
            peaks = [measure(kind, case, n, options)["peak"] for kind in ("heed", "torch")]
            print(
                f"| {case} | {n} | {ours['wall']:.3f} | {theirs['wall']:.3f} | {ours['wall'] / theirs['wall']:.2f} | "
                f"{ours['cpu'] / theirs['cpu']:.2f} | {peaks[0]:.0f} | {peaks[1]:.0f} | {result['difference']:.1e} |",
                flush=True,
            )


def measure_lengths(cases: list[str], options: argparse.Namespace) -> None:
    print_header(cases, ("Heed s", "microseconds a row", "Heed peak MB", "bytes a row"))
    for case in cases:
        for n in LENGTHS:
            wall_s = measure("times", case, n, options)["heed"]["wall"]
            peak = measure("heed", case, n, options)["peak"]
            print(
                f"| {case} | {n} | {wall_s:.3f} | {1e6 * wall_s / n:.1f} | {peak:.0f} | {1e6 * peak / n:.0f} |",
                flush=True,
            )


def print_header(cases: list[str], columns: tuple[str, ...]) -> None:
    if cases:
        print(f"\n| case | n | {' | '.join(columns)} |\n| --- |{' ---: |' * (1 + len(columns))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
