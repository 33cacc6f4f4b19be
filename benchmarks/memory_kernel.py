"""Attention over stored keys beside numpy's two products, faiss, and ONNX Runtime, over the same arrays.

The keys and values are memory-mapped files. The cases take turns, because the speed of the machine varies; a ratio is
the median of the ratios of each turn. numpy and faiss use as many threads as there are CPUs. faiss is not a dependency
of this project: without it (``pip install faiss-cpu``, perhaps into a folder of PYTHONPATH) its case is left out.

usage: python -m benchmarks.memory_kernel [REPOSITORY] [--n 1000000] [--d 64] [--repeats 15]
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.peak import sampled_peak
from benchmarks.report.markdown import table
from service import machine
from service.memories.blas import limit_blas_threads
from service.memories.streaming import StreamingSession
from service.ort.provider import Provider, open_session
from service.selection.reductions import largest

try:
    import faiss
except ImportError:
    faiss = None

K = 10
SAMPLE_S = 0.0005  # between two looks at the memory
MEBIBYTE = 1 << 20
Case = Callable[[], object]
HEADS, LENGTH = 8, 8192  # of the comparison with ONNX Runtime
GRAPHS = {"plain": ["output"], "weights": ["output", "weights"], "model": ["output", "weights"]}


def stored(folder: Path, name: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Standard normal numbers in a file; a view of it."""
    array = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, shape)
    rng = np.random.default_rng(len(name))
    for part in array.reshape(-1, shape[-1])[: shape[-2] * shape[-3]].reshape(-1, 1000 * shape[-1]):
        part[:] = rng.standard_normal(part.shape, dtype=np.float32)
    return array


def times(cases: dict[str, Case], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each case in each turn; each runs once before."""
    measured: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(repeats + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if turn:
                measured[name].append(1e3 * (time.perf_counter() - start))
            time.sleep(0.02)  # threads of OpenBLAS and OpenMP spin for a while after their work
    return measured


def report(measured: dict[str, list[float]], pairs: dict[str, str]) -> list[str]:
    """A table; ``pairs`` says beside which case each one is to be seen."""
    rows = []
    for name, ms in measured.items():
        other = pairs.get(name)
        ratio = median(a / b for a, b in zip(ms, measured[other], strict=True)) if other else 1.0
        rows.append((name, f"{median(ms):.2f}", f"{min(ms):.2f}", f"{ratio:.2f} x {other}" if other else ""))
    return table(("case", "median ms", "least ms", "ratio"), rows)


def anonymous_bytes() -> int:
    """The anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def many_keys(folder: Path, n: int, d: int, repeats: int) -> None:
    """One and eight queries over n keys, and the largest ten weights."""
    threads = machine.cpus()
    key, value = (stored(folder, name, (1, 1, n, d)) for name in ("key", "value"))
    key16, value16 = (stored(folder, name, (1, 1, n, d), "float16") for name in ("key16", "value16"))
    queries = np.random.default_rng(0).standard_normal((1, 8, 1, d), dtype=np.float32)
    session = StreamingSession(None, threads)

    def products() -> object:
        limit_blas_threads(threads)
        weights = key[0, 0] @ queries[0, 0, 0]
        output = value[0, 0].T @ weights
        limit_blas_threads(1)
        return output

    def streamed(rows: int, outputs: list[str], halves: bool = False) -> Case:
        inputs = {"query": queries[:, :rows], "key": key16 if halves else key, "value": value16 if halves else value}
        return lambda: session.run(inputs, outputs)

    def top() -> np.ndarray:
        weights = session.run({"query": queries[:, :1], "key": key}, ["weights"])["weights"]
        return largest(weights, K)[0].ravel()

    cases: dict[str, Case] = {
        "numpy's two products": products,
        "one query": streamed(1, ["output"]),
        "8 queries": streamed(8, ["output"]),
        "one query, output and weights": streamed(1, ["output", "weights"]),
        "one query, float16": streamed(1, ["output"], halves=True),
        "8 queries, float16": streamed(8, ["output"], halves=True),
        f"top {K}": top,
    }
    pairs = dict.fromkeys([*cases][1:], "numpy's two products") | {"8 queries": "one query"}
    pairs["8 queries, float16"] = "one query, float16"
    if faiss:
        faiss.omp_set_num_threads(threads)
        index = faiss.IndexFlatIP(d)
        index.add(key[0, 0])
        cases["faiss IndexFlatIP"] = lambda: index.search(queries[0, 0], K)
        pairs[f"top {K}"] = "faiss IndexFlatIP"
        same = index.search(queries[0, 0], K)[1].ravel().tolist() == top().tolist()
        print(f"top {K} of faiss and of the weights are {'the same' if same else 'DIFFERENT'}\n")
    print(f"{n:,} keys, d {d}, {threads} threads\n")
    print("\n".join(report(times(cases, repeats), pairs)))


def memory(folder: Path, n: int, d: int) -> None:
    """What runs over n keys need beside the mapped arrays and the outputs."""
    rows = []
    session = StreamingSession(None, machine.cpus())
    for dtype in ("float32", "float16"):
        key, value = (stored(folder, f"{name}-large", (1, 1, n, d), dtype) for name in ("key", "value"))
        for m in (1, 8, 1024):
            inputs = {"query": np.ones((1, 1, m, d), np.float32), "key": key, "value": value}
            before = anonymous_bytes()
            with sampled_peak(anonymous_bytes, SAMPLE_S) as peak:
                session.run(inputs, ["output"])
            rows.append((f"{n:,}", dtype, m, f"{(peak[0] - before) / MEBIBYTE:.0f}"))
    print("\n".join([*table(("keys", "type", "queries", "anonymous memory, MiB"), rows), ""]))


def beside_onnx_runtime(repository: Path, repeats: int) -> None:
    """One query, 8 heads, over keys that ONNX Runtime has in one array, and the streaming session as well."""
    rng = np.random.default_rng(0)
    inputs = {"query": rng.standard_normal((1, HEADS, 1, 64), dtype=np.float32)}
    inputs |= {name: rng.standard_normal((1, HEADS, LENGTH, 64), dtype=np.float32) for name in ("key", "value")}
    cases: dict[str, Case] = {}
    pairs = {}
    for threads in sorted({1, machine.cpus()}):
        session = StreamingSession(None, threads)
        for graph, outputs in GRAPHS.items():
            own = f"streaming {' and '.join(outputs)}, {threads} threads"
            onnx = open_session(
                repository / "scaled_dot_product" / "1" / f"{graph}.onnx", Provider("cpu", "benchmark"), threads
            )
            cases[own] = lambda session=session, outputs=outputs: session.run(inputs, outputs)  # type: ignore[misc]
            name = f"{graph}.onnx, {threads} threads"
            cases[name] = lambda onnx=onnx, outputs=outputs: onnx.run(outputs, inputs)  # type: ignore[misc]
            pairs[name] = own
    print(f"\nn = {LENGTH:,}, {HEADS} heads, d 64, one query\n")
    print("\n".join(report(times(cases, 3 * repeats), pairs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path, nargs="?")
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--d", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for n in (options.n, 4 * options.n):  # first, as later cases leave free memory in the heap
            memory(Path(folder), n, options.d)
        many_keys(Path(folder), options.n, options.d, options.repeats)
    if options.repository:
        beside_onnx_runtime(options.repository, options.repeats)


if __name__ == "__main__":
    main()
