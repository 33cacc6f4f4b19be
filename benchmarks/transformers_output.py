"""A model of transformers without weights as an output: the service's graph beside transformers with sdpa, in one run.

usage: PYTHON benchmarks/transformers_output.py DIRECTORY VERSION [--n 32 128 512] [--threads 1]

DIRECTORY is the model's, VERSION the folder that ``heed export hf`` wrote. Both compute in float32, with the same
threads, in alternating turns; times are medians of wall time.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("version", type=Path)
    parser.add_argument("--n", nargs="+", type=int, default=[16, 128, 512])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()

    import torch

    from export.hf.pretrained import load
    from service.model.loader import open_version
    from service.ort.provider import Provider

    torch.set_num_threads(options.threads)
    original = load(options.directory).model
    original.set_attn_implementation("sdpa")
    model = open_version(options.version, Provider("cpu", "asked for"), options.threads)
    print("| batch | n | mask | graph | transformers ms | Heed ms | ratio |")
    print("| ---: | ---: | --- | --- | ---: | ---: | ---: |")
    for batch in options.batch:
        for n in options.n:
            for masked in (False, True):
                inputs = {"input_ids": np.random.default_rng(0).integers(5, 50, (batch, n))}
                if masked:
                    lengths = np.linspace(n // 2, n, batch).astype(int)
                    inputs["attention_mask"] = (np.arange(n) < lengths[:, None]).astype(np.int64)
                graph = model.graph_for(inputs, ["output"], model.bind(inputs))
                tensors = {name: torch.from_numpy(x) for name, x in inputs.items()}
                if options.threads > 1 and graph.multi_threaded:
                    graph = graph.multi_threaded.graph_with(graph)
                times_s: dict[str, list[float]] = {"transformers": [], "heed": []}
                for turn in range(options.repeats + 1):
                    start = time.perf_counter()
                    with torch.inference_mode():
                        original(**tensors)
                    middle = time.perf_counter()
                    model.run(graph, inputs, ["output"])
                    if turn:
                        times_s["transformers"].append(middle - start)
                        times_s["heed"].append(time.perf_counter() - middle)
                theirs, ours = (median(times) for times in times_s.values())
                name = graph.spec.fast_path if graph.spec else "model"
                print(
                    f"| {batch} | {n} | {'yes' if masked else 'no'} | {name} | {1e3 * theirs:.1f} | {1e3 * ours:.1f} "
                    f"| {ours / theirs:.2f} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
