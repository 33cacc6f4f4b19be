"""``heed loadtest`` compared with wrk: the same body and connections, in alternating turns, on a running server.

``make bench-loadtest``, or ``python -m benchmarks.loadtest http://127.0.0.1:8000``. The exit status is 1 if the median
ratio of the rates is more than 10 percent from 1.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import ROOT
from benchmarks.report.spread import spread_of
from benchmarks.serving.load import load
from loadtest.requests.bodies import bodies
from loadtest.requests.scenario import RequestSpec
from loadtest.requests.server import Server
from loadtest.requests.signature import inputs

TOLERANCE = 0.1
METRICS = {"rps": "rate", "p50_ms": "p50", "p99_ms": "p99"}  # names in wrk's result -> in heed loadtest's


def main() -> int:
    """Compare at each concurrency; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loadtest", description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--block", default="scaled_dot_product")
    parser.add_argument("--concurrency", default="1,8,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3, help="duration of each turn (default 3)")
    options = parser.parse_args()
    server = Server(options.url, {})
    spec = RequestSpec(block=options.block, sizes={"heads": 1, "m": 8, "n": 8, "d_k": 8, "d_v": 8})
    (body,) = bodies(spec, inputs(server, spec.block), np.random.default_rng(0))
    differs = False
    print(f"{len(body.content)} bytes to {body.path}; heed loadtest / wrk: median (smallest to largest)")
    with TemporaryDirectory() as scratch:
        file, out = Path(scratch, "body.json"), Path(scratch, "out.json")
        file.write_bytes(body.content)
        scenario = Path(scratch, "scenario.toml")
        scenario.write_text(f'[[request]]\npath = "{body.path}"\nbody = "{file.name}"\n')
        for connections in map(int, options.concurrency.split(",")):
            arguments = options.url + body.path, [file], body.headers, connections, options.seconds
            ratios: dict[str, list[float]] = {metric: [] for metric in METRICS}
            for i in range(options.rounds):
                wrk_first = load(*arguments) if i % 2 else None
                ours = _loadtest(options.url, scenario, connections, options.seconds, out)
                wrk = wrk_first or load(*arguments)
                for metric, values in ratios.items():
                    values.append(ours[METRICS[metric]] / wrk[metric])
            differs |= abs(median(ratios["rps"]) - 1) > TOLERANCE
            summary = [f"{metric} {spread_of(values)}" for metric, values in ratios.items()]
            cores = f"{ours['generator']['cores']:.2f} and {wrk['wrk_cpu_s'] / options.seconds:.2f} cores"
            print(
                f"{connections} connections: {', '.join(summary)}; wrk's last turn: {wrk['rps']:,.0f}/s; {cores}",
                flush=True,
            )
    return int(differs)


def _loadtest(url: str, scenario: Path, connections: int, seconds: int, out: Path) -> dict:
    command = [sys.executable, "-m", "loadtest", url, "--scenario", scenario, "--concurrency", str(connections)]
    command += ["--seconds", str(seconds), "--window", "0.4", "--max-warmup", "2", "--json", out]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    result: dict = json.loads(out.read_text())["results"][0]
    return result


if __name__ == "__main__":
    sys.exit(main())
