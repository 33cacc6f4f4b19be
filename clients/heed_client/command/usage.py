"""Check which flags of ``heed run`` can be combined."""

import argparse
from collections.abc import Sequence

from heed_client.calls import COMPARED
from heed_client.command.arguments import GENERATION


class UsageError(Exception):
    """An argument is wrong; the message begins with its name."""


def check_flags(options: argparse.Namespace, formats: Sequence[str]) -> None:
    """Check the flags that need another, or cannot be combined; ``formats`` are those of heat maps.

    Raises:
        UsageError: one of them is wrong.
    """
    for flag in GENERATION:
        if getattr(options, flag) is not None and not options.generate:
            raise UsageError(f"--{flag.replace('_', '-')}: needs --generate")
    for flag in ("metric", "position"):
        if getattr(options, flag) is not None and options.sweep is None:
            raise UsageError(f"--{flag}: needs --sweep")
    for flag in ("sweep", "baseline", "compare"):
        if getattr(options, flag) is not None and "html" in formats:
            raise UsageError(f"--html: does not draw differences; use --plot or --show with --{flag}")
    for flag in ("title", "cmap", "size"):
        if getattr(options, flag) and not options.plot:
            raise UsageError(f"--{flag}: needs --plot")
    for flag in COMPARED:
        if getattr(options, flag) and options.interventions is None:
            raise UsageError(f"--{flag}: needs --intervene")
        if getattr(options, flag) and (options.generate or options.sweep is not None or options.lens):
            raise UsageError(f"--{flag}: cannot be combined with --generate, --sweep or --lens")
    if options.baseline and options.compare:
        raise UsageError("--compare: cannot be combined with --baseline")
    if options.compare and not formats:
        raise UsageError("--compare: needs --plot or --show")
