"""``heed export``: torch blocks into the model repository, each proven before it is written."""

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from export.artifact import ExportError, export_block, export_builtin
from export.checkpoint import CheckpointError, load
from export.family import FAMILIES, from_checkpoint
from export.naming import mapped, own_names
from models.block import Block
from models.catalogue import BLOCKS, find
from models.precision import DTYPES, in_precision


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the blocks named, or all, or one with weights of a checkpoint; answers the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.weights is not None:
            block, beside = _imported(parser, options)
            block = in_precision(block, options.dtype)
            work = partial(export_block, block, options.repository, options.version, beside, options.cuda)
            jobs = [(block.name, work)]
        elif options.name or options.map or options.set:
            parser.error("--name, --map and --set come with --weights")
        else:
            blocks = {in_precision(find(name), options.dtype).name: name for name in options.blocks or BLOCKS}
            jobs = [
                (name, partial(export_builtin, of, options.repository, options.version, options.dtype, options.cuda))
                for name, of in blocks.items()
            ]
    except (ValueError, CheckpointError) as error:
        print(f"heed export: {error}", file=sys.stderr)
        return 2
    return _run(jobs, min(options.jobs, len(jobs)))


def _run(jobs: Sequence[tuple[str, Callable[[], Path]]], processes: int) -> int:
    """Run the jobs, each a block, in so many processes; one that fails stops no other."""
    console = Console(highlight=False)
    failed = False
    with _executor(processes) as executor, _progress(console) as progress:
        task = progress.add_task(f"exporting {', '.join(name for name, _ in jobs[:3])} ...", total=len(jobs))
        start = time.perf_counter()
        running = {executor.submit(job): name for name, job in jobs}
        for done in as_completed(running):
            progress.advance(task)
            try:
                folder = done.result()
            except ExportError as error:
                failed = True
                print(f"heed export: {error}\nNothing was written for {running[done]}.", file=sys.stderr)
            else:
                seconds = time.perf_counter() - start
                console.print(f"{running[done]}: verified, {folder}/ (after {seconds:.0f} s)", soft_wrap=True)
    return int(failed)


def _executor(processes: int) -> Executor:
    if processes == 1:
        return ThreadPoolExecutor(1)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,))  # more would spin beside the others


def _progress(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _imported(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[Block, Sequence[Path]]:
    """The block with weights of a checkpoint, and the files to copy beside it."""
    if len(options.blocks) != 1 or not options.name:
        parser.error("--weights takes one BLOCK and a --name")
    checkpoint = load(options.weights)
    tensors = mapped(checkpoint.tensors, options.map) if options.map else own_names(checkpoint.tensors)
    block = from_checkpoint(options.blocks[0], options.name, checkpoint, tensors, dict(options.set))
    return block, checkpoint.tokenizer


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="heed export", description=__doc__)
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help=f"all when none is named: {', '.join(BLOCKS)}")
    parser.add_argument(
        "--repository", type=Path, default=Path(os.environ.get("HEED_MODEL_REPOSITORY", "model_repository")),
        help="the folder that `heed serve` serves (HEED_MODEL_REPOSITORY, default model_repository)",
    )  # fmt: skip
    parser.add_argument("--version", type=_whole, default=1, help="the version folder to write (default 1)")
    parser.add_argument("--jobs", type=_whole, default=min(8, os.cpu_count() or 1), help="processes (default: CPUs)")
    parser.add_argument(
        "--dtype", choices=DTYPES, default=DTYPES[0],
        help="of tensors and weights (default float32); others make blocks of their own, NAME_float16, NAME_bfloat16",
    )  # fmt: skip
    parser.add_argument(
        "--cuda", action="store_true", help="fast paths for CUDA, too; float16 and bfloat16 always have them"
    )
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


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
