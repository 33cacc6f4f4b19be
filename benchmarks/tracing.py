"""Heed with OpenTelemetry traces beside Heed without: workload W1 of ``benchmarks.serving``, whose flags work, too.

The collector is a process that discards what it receives.

usage: python -m benchmarks.tracing [--sampler NAME[=ARGUMENT]] [flags of benchmarks.serving]
"""

import argparse
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection

from benchmarks import CACHE
from benchmarks.serving.__main__ import main as serving

DEFAULTS = ["--workloads", "W1", "--formats", "binary,json", "--concurrency", "1,8", "--servers", "heed"]


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
    """Compare both servers; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sampler", default="parentbased_traceidratio=0.01", metavar="NAME[=ARGUMENT]", help="(%(default)s)"
    )
    options, others = parser.parse_known_args()
    sampler, _, argument = options.sampler.partition("=")
    with collector() as url:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_TRACES_SAMPLER": sampler,
            "OTEL_TRACES_SAMPLER_ARG": argument or "1",
        }
        traced = "traced=" + " ".join(f"{name}={value}" for name, value in variables.items())
        return serving([*DEFAULTS, "--out", str(CACHE / "tracing.jsonl"), "--heed", traced, *others])


if __name__ == "__main__":
    sys.exit(main())
