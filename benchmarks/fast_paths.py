"""Output-only attention: time against torch's scaled_dot_product_attention in the same run, and peak extra memory.

Then the blocks that are linear in n: their time and peak over n.

Each line is measured in processes of its own: one that takes turns between Heed's path and torch, and one for each
where the peak of the process is read around a single call, inputs not counted. Processor time (cpu) of all threads is
shown beside wall time: on a machine that others use, it is the steadier one.
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
    """What Heed is asked; ``window`` looks back 512 keys and ahead none."""
    import numpy as np

    rng = np.random.default_rng(0)
    given: dict[str, Any] = {
        name: rng.standard_normal((1, heads, n, d), dtype=np.float32) for name in ("query", "key", "value")
    }
    if case in ("causal", "window", "linear_causal"):
        given["is_causal"] = np.array(True)
    if case == "window":
        given["left_window_size"] = np.array(WINDOW)
    if case == "padding":
        given["nonpad_kv_seqlen"] = np.array([3 * n // 4])
    if case == "mask":
        given["attn_mask"] = np.full((1, 1, n, n), -np.inf, np.float32)
        given["attn_mask"][0, 0][rng.random((n, n), dtype=np.float32) < 0.7] = 0
    return given


def heed(case: str, given: dict[str, Any], repository: Path, threads: int) -> Callable[[], Any]:
    """The graph the service would choose, with the threads of a long run."""
    from service.model import Model
    from service.provider import Provider

    block = LINEAR[case][0] if case in LINEAR else "scaled_dot_product"
    model = Model(repository / block / "1", Provider("cpu", "asked for"), threads)
    graph = model.graph_for(given, ["output"], model.bind(given))
    graph = graph.wide.of(graph) if graph.wide else graph
    return lambda: model.run(graph, given, ["output"])["output"]


def torch_sdpa(given: dict[str, Any], threads: int) -> Callable[[], Any]:
    """The same through torch, which wants a boolean mask for windows and padding."""
    import torch

    torch.set_num_threads(threads)
    query, key, value = (torch.from_numpy(given[name]) for name in ("query", "key", "value"))
    n = query.shape[2]
    options: dict[str, Any] = {}
    if "attn_mask" in given:
        options["attn_mask"] = torch.from_numpy(given["attn_mask"]) == 0
    elif "left_window_size" in given:
        i, j = torch.arange(n)[:, None], torch.arange(n)
        options["attn_mask"] = (j <= i) & (j >= i - WINDOW)
    elif "nonpad_kv_seqlen" in given:
        options["attn_mask"] = (torch.arange(n) < int(given["nonpad_kv_seqlen"][0]))[None, :].expand(n, n)
    elif "is_causal" in given:
        options["is_causal"] = True
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(query, key, value, **options).numpy()


def times(run: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Median wall and processor seconds of each, taking turns."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in run}
    for turn in range(repeats + 1):
        for name, call in run.items():
            time.sleep(0.2)  # torch's threads spin on for a while after a call
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            if turn:
                spent[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: {"wall": median(w for w, _ in each), "cpu": median(c for _, c in each)} for name, each in spent.items()
    }


def peak(call: Callable[[], Any]) -> float:
    """MB by which the process grows at most during a call (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 1000


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def measure(what: str, case: str, n: int, options: argparse.Namespace) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--one", what, "--cases", case, "--n", str(n), "--heads", str(options.heads)]
    command += ["--threads", str(options.threads), "--repeats", str(options.repeats), "--d", str(options.d)]
    command += ["--repository", str(options.repository)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ORT_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def one(what: str, options: argparse.Namespace) -> dict[str, Any]:
    case = options.cases[0]
    given = inputs(case, options.heads, options.n[0], options.d)
    if what == "torch":
        return {"peak": peak(torch_sdpa(given, options.threads))}
    ours = heed(case, given, options.repository, options.threads)
    if what == "heed":
        return {"peak": peak(ours)}
    if case in LINEAR:
        return times({"heed": ours}, options.repeats)
    theirs = torch_sdpa(given, options.threads)
    difference = float(abs(ours() - theirs()).max())
    return {"difference": difference, **times({"heed": ours, "torch": theirs}, options.repeats)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[*CASES, *LINEAR], choices=[*CASES, *LINEAR])
    parser.add_argument(
        "--n", nargs="+", type=int, default=[2048, 4096, 8192, 16384], help="queries, and keys, beside torch"
    )
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--d", type=int, default=64, help="d_k and d_v")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--repository", type=Path, help="an exported one; by default it is exported first")
    parser.add_argument("--one", choices=("heed", "torch", "times"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        if options.repository is None:
            options.repository = Path(scratch)
            blocks = ["scaled_dot_product", *{block for block, _ in LINEAR.values()}]
            command = [sys.executable, "-m", "export", *blocks, "--repository", scratch]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        print(f"heads {options.heads}, d {options.d}, batch 1, {options.threads} threads, median of {options.repeats}")
        beside_torch([case for case in options.cases if case in CASES], options)
        over_length([case for case in options.cases if case in LINEAR], options)
    return 0


def beside_torch(cases: list[str], options: argparse.Namespace) -> None:
    columns = "Heed s", "torch s", "wall ratio", "cpu ratio", "Heed peak MB", "torch peak MB", "largest difference"
    head(cases, columns)
    for case in cases:
        for n in options.n:
            found = measure("times", case, n, options)
            ours, theirs = found["heed"], found["torch"]
            peaks = [measure(who, case, n, options)["peak"] for who in ("heed", "torch")]
            print(
                f"| {case} | {n} | {ours['wall']:.3f} | {theirs['wall']:.3f} | {ours['wall'] / theirs['wall']:.2f} | "
                f"{ours['cpu'] / theirs['cpu']:.2f} | {peaks[0]:.0f} | {peaks[1]:.0f} | {found['difference']:.1e} |",
                flush=True,
            )


def over_length(cases: list[str], options: argparse.Namespace) -> None:
    head(cases, ("Heed s", "microseconds a row", "Heed peak MB", "bytes a row"))
    for case in cases:
        for n in LENGTHS:
            wall = measure("times", case, n, options)["heed"]["wall"]
            grown = measure("heed", case, n, options)["peak"]
            print(
                f"| {case} | {n} | {wall:.3f} | {1e6 * wall / n:.1f} | {grown:.0f} | {1e6 * grown / n:.0f} |",
                flush=True,
            )


def head(cases: list[str], columns: tuple[str, ...]) -> None:
    if cases:
        print(f"\n| case | n | {' | '.join(columns)} |\n| --- |{' ---: |' * (1 + len(columns))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
