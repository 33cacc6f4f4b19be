"""Heed with OpenTelemetry traces compared with Heed without: workload W1, in alternating turns of two servers.

``python -m benchmarks.tracing``; the collector is a process that discards what it receives. Options select the sampler.
"""

import argparse
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.server import Processes, Served, served
from benchmarks.serving import graphs
from benchmarks.serving.formats import bodies
from benchmarks.serving.load import load
from benchmarks.serving.options import CACHE
from benchmarks.serving.workloads import WORKLOADS

WORKLOAD = WORKLOADS["W1"]


class Discard(BaseHTTPRequestHandler):
    """Answers 200 to each request, over connections that are kept."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def _collect(ready: Connection) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Discard) as server:
        ready.send(server.server_port)
        server.serve_forever()


@contextmanager
def collector() -> Iterator[str]:
    """The URL of a collector in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_collect, args=(sender,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}"
    finally:
        process.terminate()
        process.join()


def main() -> int:
    """Compare at each format and number of connections, print medians, return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracing", description=__doc__)
    add = parser.add_argument
    add(
        "--models",
        type=Path,
        default=CACHE / f"models-{graphs.fingerprint()}",
        help="repository (default: %(default)s)",
    )
    add("--formats", default="binary,json")
    add("--concurrency", default="1,8")
    add("--sampler", default="parentbased_always_on", metavar="NAME[=ARGUMENT]", help="default: %(default)s")
    add("--workers", default="1", help="workers of each server (default 1)")
    add("--repeats", type=int, default=15, help="turns of each server (default 15)")
    add("--seconds", type=int, default=1, help="duration of each turn (default 1)")
    options = parser.parse_args()
    command = [sys.executable, "-m", "benchmarks.serving.graphs", str(options.models), WORKLOAD.graph]
    subprocess.run(command, cwd=graphs.ROOT, check=True, capture_output=True)
    flags = "--workers", options.workers, "--provider", "cpu"
    sampler, _, argument = options.sampler.partition("=")
    with collector() as url, TemporaryDirectory() as scratch:
        traced = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_TRACES_SAMPLER": sampler,
            "OTEL_TRACES_SAMPLER_ARG": argument or "1",
        }
        with (
            served(options.models, *flags) as plain,
            served(options.models, *flags, environment=traced) as other,
        ):
            for format in options.formats.split(","):
                for connections in map(int, options.concurrency.split(",")):
                    _compare(plain, other, format, connections, options, Path(scratch, format))
    return 0


def _compare(
    plain: Served, traced: Served, format: str, connections: int, options: argparse.Namespace, file: Path
) -> None:
    """Print the medians of the ratios of adjacent turns."""
    requests = bodies(WORKLOAD, WORKLOAD.graph, f"v2-{format}")
    file.write_bytes(requests.texts[0])
    rates: dict[Served, list[float]] = {plain: [], traced: []}
    costs_us: dict[Served, list[float]] = {plain: [], traced: []}  # processor time of a request
    for repeat in range(options.repeats):
        for server in (plain, traced) if repeat % 2 else (traced, plain):
            url = f"http://127.0.0.1:{server.port}/v2/models/{WORKLOAD.graph}/infer"
            processes = Processes(server.process)
            before_s = processes.cpu_s()
            result = load(url, [file], requests.headers, connections, options.seconds)
            if result["errors"]:
                raise RuntimeError(f"{result['errors']}\n{server.log()}")
            rates[server].append(result["rps"])
            costs_us[server].append(1e6 * (processes.cpu_s() - before_s) / result["requests"])
    ratios = [on / off for off, on in zip(rates[plain], rates[traced], strict=True)]
    print(
        f"W1/{format}/{connections}: traced / plain {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), "
        f"{median(rates[traced]):,.0f} / {median(rates[plain]):,.0f} requests a second; "
        f"processor time {median(costs_us[traced]):.0f} / {median(costs_us[plain]):.0f} microseconds a request",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
