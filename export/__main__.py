"""``heed export``: torch blocks into the model repository, each proven before it is written."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from export.artifact import ExportError, export_block
from models.catalogue import BLOCKS, find

STEPS = 4  # two graphs, verify, write


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the blocks named, or all; answers the exit status."""
    options = _parser().parse_args(arguments)
    try:
        chosen = [find(name) for name in options.blocks or BLOCKS]
    except ValueError as error:
        print(f"heed export: {error}", file=sys.stderr)
        return 2
    console = Console(highlight=False)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console,
        transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=STEPS * len(chosen))
        for block in chosen:
            start = time.perf_counter()

            def on_step(step: str, name: str = block.name) -> None:
                progress.update(task, advance=1, description=f"{name}: {step}")

            try:
                folder = export_block(block, options.repository, options.version, on_step)
            except ExportError as error:
                print(f"heed export: {error}\nNothing was written for {block.name}.", file=sys.stderr)
                return 1
            console.print(f"{block.name}: verified, {folder}/ ({time.perf_counter() - start:.1f} s)", soft_wrap=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="heed export", description=__doc__)
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help=f"all when none is named: {', '.join(BLOCKS)}")
    parser.add_argument(
        "--repository", type=Path, default=Path(os.environ.get("HEED_MODEL_REPOSITORY", "model_repository")),
        help="the folder that `heed serve` serves (HEED_MODEL_REPOSITORY, default model_repository)",
    )  # fmt: skip
    parser.add_argument("--version", type=_version, default=1, help="the version folder to write (default 1)")
    return parser


def _version(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a version is a whole number from 1, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
