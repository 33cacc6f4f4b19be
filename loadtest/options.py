"""The flags of ``heed loadtest``."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest import scenario, thresholds
from loadtest.outcome import Level
from loadtest.scenario import Ask, ScenarioError

ABOUT = """\
Load on an attention server, and what came of it.

Closed loop (--concurrency): so many connections, each asks again as soon as it is answered. Open loop (--rate):
requests come as strangers do, whatever the server does, and wait from the instant they should have begun.

Each level of load warms up until three windows agree within 10 percent, and is then measured; where the five windows of
the measurement do not agree, it says so. Only answers with status 200 are timed; all others are errors.
"""
ENDS = """\
exit status: 0; 1 if --fail-if says so; 2 if nothing could be measured; 130 interrupted.

heed loadtest --block multi_head --size m=128 --concurrency 1,8,64 --report report.html
heed loadtest --rate 100,1000 --face v2 --encoding binary --fail-if 'p99>20ms' --fail-if 'failed>0.1%'
heed loadtest --scenario mix.toml --compare http://127.0.0.1:8001 --concurrency 8
"""


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[Ask]]:
    """The flags, with ``levels``; and what is asked. A mistake ends the process with status 2."""
    parser = argparse.ArgumentParser(
        prog="heed loadtest", description=ABOUT, epilog=ENDS, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("url", nargs="?", default="http://127.0.0.1:8000", metavar="URL", help="the server (default %(default)s)")
    add("--compare", metavar="URL", help="a second server, in turns with the first; ratios are of adjacent turns")
    add("--header", action="append", default=[], type=_header, metavar="'NAME: VALUE'", help="with every request")

    asked = parser.add_argument_group("what is asked")
    add = asked.add_argument
    add("--scenario", type=Path, metavar="FILE", help="a mix of requests, in TOML, instead of the flags below")
    add("--block", default=Ask.block, help="or any model of a V2 server (default %(default)s)")
    add("--face", choices=scenario.FACES, default=Ask.face, help="the API: v1 native, v2 Open Inference Protocol")
    add("--encoding", choices=scenario.ENCODINGS, default=Ask.encoding, help="of tensors; binary in v1 is base64")
    add("--dtype", choices=scenario.DTYPES[1:], default=Ask.dtype, help="of floats (default: the model's)")
    add("--size", action="append", default=[], type=_sizes, metavar="SYMBOL=N[,N...]", help="m=128; several: all")
    add("--shape", action="append", default=[], type=_sizes, metavar="INPUT=N,...", help="attn_mask=64,64 adds it, too")
    add("--outputs", type=lambda text: text.split(","), default=[], metavar="NAME,...", help="default: the server's")
    add("--set", action="append", default=[], type=_setting, metavar="PARAMETER=VALUE", help="is_causal=true")

    load = parser.add_argument_group("load")
    add = load.add_argument
    add("--concurrency", type=_several(_whole), metavar="N,...", help="closed loops (default 1,8,64)")
    add("--rate", type=_several(_positive), metavar="N,...", help="open loops: requests a second")
    add("--connections", type=_whole, default=512, help="the most an open loop opens; more wait (default %(default)s)")
    add("--processes", type=_whole, default=1, help="that make the load (default %(default)s)")
    add("--seconds", type=_positive, default=10.0, help="each measurement takes (default 10)")
    add("--window", type=_positive, default=1.0, help="seconds of a window of the warm-up (default 1)")
    add("--patience", type=_positive, default=20.0, help="most seconds of a warm-up (default 20)")
    add("--timeout", type=_positive, default=30.0, help="seconds until an answer counts as an error (default 30)")
    add("--rounds", type=_whole, help="turns each level is measured in (default 1; 4 to compare)")
    add("--seed", type=int, default=0, help="of tensors, mix and arrivals (default 0)")

    ends = parser.add_argument_group("results")
    add = ends.add_argument
    add("--report", type=Path, metavar="FILE.html", help="plots and tables in one file that needs no internet")
    add("--json", type=Path, metavar="FILE", help="everything measured")
    add("--fail-if", action="append", default=[], type=_threshold, metavar="CONDITION", help=_escaped(thresholds.KNOWN))

    options = parser.parse_args(arguments)
    if options.concurrency and options.rate:
        parser.error("--concurrency and --rate are two kinds of load: choose one")
    options.levels = [Level(rate=rate) for rate in dict.fromkeys(options.rate or [])] or [
        Level(concurrency=concurrency) for concurrency in dict.fromkeys(options.concurrency or [1, 8, 64])
    ]
    options.rounds = options.rounds or (4 if options.compare else 1)
    if not options.compare and any(threshold.what == "ratio" for threshold in options.fail_if):
        parser.error("a ratio needs --compare")
    try:
        return options, scenario.read(options.scenario) if options.scenario else [_asked(options)]
    except ScenarioError as error:
        parser.error(str(error))


def _asked(options: argparse.Namespace) -> Ask:
    return Ask(
        block=options.block,
        face=options.face,
        encoding=options.encoding,
        dtype=options.dtype,
        sizes=dict(options.size),
        shapes=dict(options.shape),
        outputs=options.outputs,
        parameters=dict(options.set),
    )


def _several(one: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [one(each) for each in text.split(",")]


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def _pair(text: str, separator: str = "=") -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not (found and name.strip() and value.strip()):
        raise argparse.ArgumentTypeError(f"expected NAME{separator}VALUE, got {text!r}")
    return name.strip(), value.strip()


def _header(text: str) -> tuple[str, str]:
    if not (text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"expected printable ASCII, got {text!r}")
    return _pair(text, ":")


def _sizes(text: str) -> tuple[str, list[int]]:
    name, value = _pair(text)
    return name, [_whole(each) for each in value.split(",")]


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


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
