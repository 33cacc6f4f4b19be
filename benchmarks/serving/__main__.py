"""Heed compared with baselines and other servers: ``make bench``, or ``python -m benchmarks.serving``."""

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks import CACHE, ROOT
from benchmarks.serving import graphs, profiling, report
from benchmarks.serving.cell import IDS, Timing, plan
from benchmarks.serving.load import wrk
from benchmarks.serving.options import parse
from benchmarks.serving.run import measure, start
from benchmarks.serving.servers import SERVERS, TRITON, Server, heed, triton_settings
from benchmarks.serving.turn import RunningServer


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or profile one cell, or only render the report; return the exit status."""
    options = parse(arguments)
    console = Console(highlight=False, stderr=True, soft_wrap=True)
    if options.report:
        print(report.render(options.report))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs the cleanup of context managers
    timing = Timing(options.seconds, options.warmup, options.quiet)
    servers: dict[str, Server | None]
    if options.profile:
        servers, cells = {"heed": heed(flags=options.profile_flags)}, {options.profile: ["heed"]}
    else:
        servers = {name: SERVERS.get(name) for name in options.servers if name != TRITON}
        servers |= {server.name: server for server in (*_triton(options, console), *options.heed, *options.url)}
        ids = IDS if options.vary_id else IDS[:1]
        cells = plan(options.workloads, options.formats, options.concurrency, ids, servers)
    status = 0
    try:
        wrk()
        if not cells:
            raise RuntimeError("no selected server supports a selected cell")
        models = options.models or CACHE / f"models-{graphs.fingerprint()}"
        _export(models, sorted(set.union(*(cell.models() for cell in cells))), console)
        with TemporaryDirectory() as scratch, ExitStack() as stack:
            started = start(stack, servers, cells, models.resolve(), Path(scratch), options, console)
            if not options.profile:
                measure(started, cells, timing, options, console)
            elif isinstance(profiled := started.get("heed"), RunningServer):
                file_name = f"{options.out.stem}-{str(options.profile).replace('/', '-')}.speedscope.json"
                profiling.profile(profiled, options.profile, timing, options.out.with_name(file_name))
    except KeyboardInterrupt:
        console.print("interrupted; the measurements so far are kept")
        status = 130
    except (FileNotFoundError, RuntimeError, subprocess.CalledProcessError) as error:
        console.print(f"benchmarks.serving: {error}\n{getattr(error, 'stderr', None) or ''}", markup=False)
        return 2
    if options.out.exists() and not options.profile:
        console.print(f"{report.render(options.out)}, from {options.out}")
    return status


def _triton(options: argparse.Namespace, console: Console) -> list[Server]:
    """Triton in each of its settings, if it is selected and installed."""
    if TRITON not in options.servers:
        return []
    if not options.triton_binary.exists():
        console.print(f"{TRITON} is omitted: no {options.triton_binary}; --triton-binary selects another", markup=False)
        return []
    every = triton_settings(options.triton_binary, options.triton_backends, options.triton_libraries)
    return [server for server in every if server.name.removeprefix(f"{TRITON}-") in options.triton_settings]


def _export(folder: Path, models: Sequence[str], console: Console) -> None:
    """Export missing models in another process, so that this one does not load torch."""
    missing = [name for name in models if not (folder / name / "1" / "model.onnx").exists()]
    if missing:
        console.print(f"exporting {', '.join(missing)} into {folder}")
        command = [sys.executable, "-m", "benchmarks.serving.graphs", str(folder.resolve()), *missing]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
