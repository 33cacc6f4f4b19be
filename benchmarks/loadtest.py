"""``heed loadtest`` beside wrk: the same body, the same connections, in turns, on a server that runs.

``make bench-loadtest``, or ``python -m benchmarks.loadtest http://127.0.0.1:8000``. The exit status is 1 where the
rates are more than 10 percent apart, in the median of the rounds.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.serving.load import load
from loadtest.bodies import bodies
from loadtest.scenario import Ask
from loadtest.server import Server
from loadtest.signature import inputs

ROOT = Path(__file__).parents[1]
APART = 0.1


def main() -> int:
    """Compare at each concurrency; answers the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loadtest", description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--block", default="scaled_dot_product")
    parser.add_argument("--concurrency", default="1,8,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3, help="of each turn")
    options = parser.parse_args()
    server = Server(options.url, {})
    sizes = {"heads": 1, "m": 8, "n": 8, "d_k": 8, "d_v": 8}
    ask = Ask(block=options.block, sizes=sizes)
    (body,) = bodies(ask, inputs(server, ask.block), np.random.default_rng(0))
    apart = False
    print(f"{len(body.content)} bytes to {body.path}; heed loadtest over wrk: median (least to most)")
    with TemporaryDirectory() as scratch:
        file, out = Path(scratch, "body.json"), Path(scratch, "out.json")
        file.write_bytes(body.content)
        scenario = Path(scratch, "scenario.toml")
        scenario.write_text(f'[[request]]\npath = "{body.path}"\nbody = "{file.name}"\n')
        for connections in map(int, options.concurrency.split(",")):
            ratios: dict[str, list[float]] = {"rps": [], "p50_ms": [], "p99_ms": []}
            for i in range(options.rounds):
                first = (
                    load(options.url + body.path, [file], body.headers, connections, options.seconds) if i % 2 else None
                )
                ours = _loadtest(options.url, scenario, connections, options.seconds, out)
                theirs = first or load(options.url + body.path, [file], body.headers, connections, options.seconds)
                for of, ratio in ratios.items():
                    ratio.append(ours[{"rps": "rate", "p50_ms": "p50", "p99_ms": "p99"}[of]] / theirs[of])
            apart |= abs(median(ratios["rps"]) - 1) > APART
            said = [f"{of} {median(r):.3f} ({min(r):.3f} to {max(r):.3f})" for of, r in ratios.items()]
            used = f"{ours['generator']['cores']:.2f} and {theirs['wrk_cpu_s'] / options.seconds:.2f} cores"
            print(
                f"{connections} connections: {', '.join(said)}; last: {theirs['rps']:,.0f}/s by wrk; {used}", flush=True
            )
    return int(apart)


def _loadtest(url: str, scenario: Path, connections: int, seconds: int, out: Path) -> dict:
    command = [sys.executable, "-m", "loadtest", url, "--scenario", scenario, "--concurrency", str(connections)]
    command += ["--seconds", str(seconds), "--window", "0.4", "--patience", "2", "--json", out]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    found: dict = json.loads(out.read_text())["results"][0]
    return found


if __name__ == "__main__":
    sys.exit(main())
