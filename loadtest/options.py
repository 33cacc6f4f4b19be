"""The command line of ``heed loadtest``."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heed_options import DEFAULT_URL, Parser, add_access, positive, url_option, url_variable
from loadtest.measurement import thresholds
from loadtest.measurement.outcome import Level
from loadtest.requests import scenario
from loadtest.requests.scenario import RequestSpec, ScenarioError

DESCRIPTION = """\
Put load on an attention server; measure throughput and latency.

Closed loop (--concurrency): each connection sends its next request as soon as the response has arrived. Open loop
(--rate): requests arrive at random times (Poisson), independent of the server, and latency counts from the time at
which a request was due.

Each level of load is warmed up until three windows agree within 10 percent, then measured. A level is reported as
unsteady if the five windows of the measurement do not agree. Only responses with status 200 are timed; all others are
errors.
"""
EPILOG = """\
exit status: 0 on success; 1 if a --fail-if condition is met, or no request of a level was answered with 200; 2 if no
request of a server was, or an argument is wrong; 130 if interrupted.

examples:
heed loadtest --block multi_head --size m=128 --concurrency 1,8,64 --report report.html
heed loadtest --rate 100,1000 --api v2 --encoding binary --fail-if 'p99>20ms' --fail-if 'failed>0.1%'
heed loadtest --memory --size m=1 --size n=8192 --outputs output --concurrency 1,8
heed loadtest --block gpt2 --generate 64 --size n=128 --concurrency 1,4
heed loadtest --scenario mix.toml --compare http://127.0.0.1:8001 --concurrency 8
heed loadtest -c 1,8,64 --soak 3600 --fail-if 'growth>50MB' --fail-if unsteady --junit junit.xml --csv results.csv
"""


def parser() -> Parser:
    """The flags."""
    parser = Parser(
        prog="heed loadtest", usage="heed loadtest [URL] [flags]", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add, spec = parser.add_argument, RequestSpec
    add("server", nargs="?", type=url_option, metavar="URL", help="the server, as --url")
    add("--url", type=url_option, help=f"the server (HEED_URL, default {DEFAULT_URL})")
    add(
        "--compare",
        type=url_option,
        metavar="URL",
        help="a second server; turns alternate, and ratios of adjacent turns are reported",
    )
    add("--memory", action="store_true", help="store keys and values once and query them by the memory's id; turns "
        "alternate with stateless requests, which send them each time, and ratios are reported")  # fmt: skip
    add("--header", "-H", action="append", default=[], type=_header, metavar="'NAME: VALUE'",
        help="header to send with every request")  # fmt: skip
    add_access(parser)

    add = parser.add_argument_group("requests").add_argument
    add("--scenario", type=Path, metavar="FILE", help="TOML file with a mix of requests, instead of the flags below")
    add("--block", default=spec.block, help="a block, or any model of a V2 server (default %(default)s)")
    add("--api", choices=scenario.APIS, default=spec.api, help="v2: Open Inference Protocol (default %(default)s)")
    add(
        "--encoding",
        choices=scenario.ENCODINGS,
        default=spec.encoding,
        help="encoding of the tensors (native binary is base64)",
    )
    add("--dtype", choices=scenario.DTYPES[1:], default=spec.dtype, help="dtype of floats (default: the model's)")
    add(
        "--size",
        action="append",
        default=[],
        type=_sizes,
        metavar="SYMBOL=N[,N...]",
        help="size of an axis, e.g. m=128; m=64,128 sends both",
    )
    add("--shape", action="append", default=[], type=_sizes, metavar="INPUT=N,...", help="also adds optional inputs")
    add("--outputs", type=_list(str), default=[], metavar="NAME,...", help="requested outputs (default: the server's)")
    add("--generate", type=_whole, default=0, metavar="N", help="generate N tokens after a prompt of --size n= random "
        "tokens or of --set text=..., streamed; tokens/s and their times are reported")  # fmt: skip
    add("--set", action="append", default=[], type=_setting, metavar="PARAMETER=VALUE", help="e.g. is_causal=true")

    add = parser.add_argument_group("load").add_argument
    add("--concurrency", "-c", type=_list(_whole), metavar="N,...", help="closed loops of N connections, one after "
        "another: 1,8,64 is a ramp (default)")  # fmt: skip
    add("--rate", type=_list(positive), metavar="N,...", help="open loops of N requests per second")
    add(
        "--connections",
        type=_whole,
        default=512,
        help="maximum number of connections of an open loop (default %(default)s)",
    )
    add("--processes", type=_whole, default=1, help="processes that generate the load (default %(default)s)")
    add("--seconds", "--duration", "-d", type=positive, default=10.0, metavar="SECONDS",
        help="duration of each measurement (default 10)")  # fmt: skip
    add(
        "--soak",
        type=positive,
        metavar="SECONDS",
        help="then hold the last level for this long, to find drift and leaks",
    )
    add("--window", type=positive, default=1.0, metavar="SECONDS", help="length of a warm-up window (default 1)")
    add("--max-warmup", type=positive, default=20.0, metavar="SECONDS", help="longest warm-up (default 20)")
    add("--timeout", type=positive, default=30.0, metavar="SECONDS", help="longest wait for a response (default 30)")
    add("--rounds", type=_whole, help="turns over which each measurement is spread (default 1; 4 if two are compared)")
    add("--seed", type=int, default=0, help="seed of tensors, mix and arrivals (default 0)")

    add = parser.add_argument_group("results").add_argument
    add("--report", type=Path, metavar="FILE.html", help="write a self-contained report with plots and tables")
    add("--json", type=Path, metavar="FILE", help="write all results as JSON")
    add("--csv", type=Path, metavar="FILE", help="write a line for each level as CSV")
    add("--junit", type=Path, metavar="FILE", help="write levels and conditions as test cases, as JUnit's XML")
    add("--fail-if", action="append", default=[], type=_threshold, metavar="CONDITION",
        help=f"exit with status 1 if met: {thresholds.SYNTAX}".replace("%", "%%"))  # fmt: skip

    return parser


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[RequestSpec]]:
    """The options, with their ``levels``, and the requests to send. A wrong argument exits with status 2.

    ``url_is_given`` says whether an argument gave the URL, not a variable.
    """
    flags = parser()
    options = flags.parse_args(arguments)
    if options.server and options.url:
        flags.error("--url: the server is given twice")
    options.url_is_given = bool(options.server or options.url)
    options.url = options.server or options.url or url_variable(flags) or DEFAULT_URL
    if options.api_key and not any(name.lower() == "authorization" for name, _ in options.header):
        options.header.append(_header(f"Authorization: Bearer {options.api_key}"))
    if options.concurrency and options.rate:
        flags.error("--concurrency and --rate: give only one of them")
    options.levels = [Level(rate=rate) for rate in dict.fromkeys(options.rate or [])] or [
        Level(concurrency=concurrency) for concurrency in dict.fromkeys(options.concurrency or [1, 8, 64])
    ]
    if options.soak:
        options.levels.append(replace(options.levels[-1], soak_s=options.soak))
    options.trust = options.cacert, options.insecure
    if options.compare and options.memory:
        flags.error("--compare and --memory: give only one of them")
    is_comparison = options.compare or options.memory
    options.rounds = options.rounds or (4 if is_comparison else 1)
    if not is_comparison and any(threshold.metric == "ratio" for threshold in options.fail_if):
        flags.error("--fail-if: a ratio requires --compare or --memory")
    try:
        return options, scenario.read(options.scenario) if options.scenario else [_spec(options)]
    except ScenarioError as error:
        flags.error(str(error))


def _spec(options: argparse.Namespace) -> RequestSpec:
    return RequestSpec(
        block=options.block,
        api=options.api,
        encoding=options.encoding,
        dtype=options.dtype,
        sizes=dict(options.size),
        shapes=dict(options.shape),
        outputs=options.outputs,
        parameters=dict(options.set),
        generate=options.generate,
    )


def _list(parse_item: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [parse_item(item) for item in text.split(",")]


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _pair(text: str, separator: str = "=") -> tuple[str, str]:
    name, _, value = (part.strip() for part in text.partition(separator))
    if not (name and value):
        raise argparse.ArgumentTypeError(f"expected NAME{separator}VALUE, got {text!r}")
    return name, value


def _header(text: str) -> tuple[str, str]:
    if not (text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"expected printable ASCII, got {text!r}")
    return _pair(text, ":")


def _sizes(text: str) -> tuple[str, list[int]]:
    name, value = _pair(text)
    return name, _list(_whole)(value)


def _setting(text: str) -> tuple[str, Any]:
    name, value = _pair(text)
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _threshold(text: str) -> thresholds.Threshold:
    try:
        return thresholds.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
