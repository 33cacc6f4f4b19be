"""``heed export``: torch blocks into the model repository, each proven before it is written."""

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from export.artifact import ExportError, export_block
from export.checkpoint import CheckpointError, load
from export.family import FAMILIES, from_checkpoint
from export.naming import mapped, own_names
from models.block import Block
from models.catalogue import BLOCKS, find


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the blocks named, or all, or one with weights of a checkpoint; answers the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        chosen, beside = _chosen(parser, options)
    except (ValueError, CheckpointError) as error:
        print(f"heed export: {error}", file=sys.stderr)
        return 2
    console = Console(highlight=False)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console,
        transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=len(chosen))
        for block in chosen:
            start = time.perf_counter()

            def on_step(step: str, name: str = block.name) -> None:
                progress.update(task, description=f"{name}: {step}")

            try:
                folder = export_block(block, options.repository, options.version, on_step, beside)
            except ExportError as error:
                print(f"heed export: {error}\nNothing was written for {block.name}.", file=sys.stderr)
                return 1
            progress.advance(task)
            console.print(f"{block.name}: verified, {folder}/ ({time.perf_counter() - start:.1f} s)", soft_wrap=True)
    return 0


def _chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[list[Block], Sequence[Path]]:
    """The blocks to export, and the files to copy beside them."""
    if options.weights is None:
        if options.name or options.map or options.set:
            parser.error("--name, --map and --set come with --weights")
        return [find(name) for name in options.blocks or BLOCKS], ()
    if len(options.blocks) != 1 or not options.name:
        parser.error("--weights takes one BLOCK and a --name")
    checkpoint = load(options.weights)
    tensors = mapped(checkpoint.tensors, options.map) if options.map else own_names(checkpoint.tensors)
    block = from_checkpoint(options.blocks[0], options.name, checkpoint, tensors, dict(options.set))
    return [block], checkpoint.tokenizer


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="heed export", description=__doc__)
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help=f"all when none is named: {', '.join(BLOCKS)}")
    parser.add_argument(
        "--repository", type=Path, default=Path(os.environ.get("HEED_MODEL_REPOSITORY", "model_repository")),
        help="the folder that `heed serve` serves (HEED_MODEL_REPOSITORY, default model_repository)",
    )  # fmt: skip
    parser.add_argument("--version", type=_version, default=1, help="the version folder to write (default 1)")
    weights = parser.add_argument_group(
        "your weights", f"Blocks that take a checkpoint: {', '.join(FAMILIES)}. Sizes are read off the tensors."
    )
    weights.add_argument(
        "--weights", type=Path, metavar="FILE",
        help="safetensors, a torch state dict, or the directory of a Hugging Face BERT (for encoder)",
    )  # fmt: skip
    weights.add_argument("--name", type=_name, help="what the block is called in the repository and the APIs")
    weights.add_argument(
        "--set", action="append", default=[], type=_setting, metavar="KEY=VALUE",
        help="what cannot be read off the tensors, num_heads=8 say; may be given several times",
    )  # fmt: skip
    weights.add_argument(
        "--map", type=Path, metavar="FILE",
        help='JSON, for other names: {"q_proj.weight": "query/kernel"} or '
        '{"q_proj.weight": {"from": "query/kernel", "transpose": true}}',
    )  # fmt: skip
    return parser


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", text):
        raise argparse.ArgumentTypeError(f"a name is letters, digits, '_', '-' and '.', got {text!r}")
    return text


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    return key, value


def _version(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a version is a whole number from 1, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
