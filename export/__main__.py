"""Export attention blocks from torch to ONNX files in a model repository. Each is verified before it is written."""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from export.artifact import ExportError, export_block, export_builtin
from export.hf import command as hf
from export.options import add_target, block_name, positive, seed_value
from export.scratch import remove_leftovers
from export.signals import blocked, prepare_worker, stopping
from export.weights.checkpoint import CheckpointError, listed, load
from export.weights.demonstration import with_seed
from export.weights.family import FAMILIES, family_of, from_checkpoint
from export.weights.memory import GIB, MANY_BYTES
from export.weights.naming import mapped, own_names
from heed_options import Parser, clean_end, nearest
from models.block import Block
from models.catalogue import BLOCKS, find
from models.learned import SEED
from models.precision import DTYPES, in_precision

Job = tuple[str, Callable[[], Path]]  # the name of a block, and a function that exports it and returns its folder

REFERENCE = "verified against the float64 reference"
OWN_WEIGHTS = "verified against Heed's float64 reference with these weights, not against their original model"


@clean_end
def main(arguments: Sequence[str] | None = None) -> int:
    """Export the given blocks, or all, or one of the user's own weights or sizes; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    with stopping(lambda signal: f"heed export: {signal}"):
        return hf.main(given[1:]) if given[:1] == ["hf"] else _export(given)


def _export(given: Sequence[str]) -> int:
    flags = parser()
    options = flags.parse_args(given)
    verified = REFERENCE
    try:
        _check_blocks(options.blocks)
        if options.weights is not None:
            block, extra_files = _import_block(flags, options)
            block = in_precision(block, options.dtype, options.name)
            verified = OWN_WEIGHTS
            where = options.repository, options.version
            job = partial(export_block, block, *where, extra_files, options.cuda, options.force)
            jobs = [(block.name, job)]
        elif options.map or options.prefix is not None:
            flags.error("--map and --prefix need --weights")
        elif options.name or options.set or options.seed is not None:
            block = in_precision(_demonstration_block(flags, options), options.dtype, options.name)
            verified = f"{block.weights}, {REFERENCE}"
            where = options.repository, options.version
            jobs = [(block.name, partial(export_block, block, *where, (), options.cuda, options.force))]
        else:
            names = options.blocks or reversed(BLOCKS)  # the stacks of layers take longest, so they start first
            blocks = {in_precision(find(name), options.dtype).name: name for name in names}
            common = options.repository, options.version, options.dtype, options.cuda, options.force
            jobs = [(name, partial(export_builtin, builtin, *common)) for name, builtin in blocks.items()]
    except (ValueError, CheckpointError) as error:
        print(f"heed export: {error}", file=sys.stderr)
        return 2
    remove_leftovers(options.repository)
    return _run(jobs, min(options.jobs, len(jobs)), verified, options.repository)


def _run(jobs: Sequence[Job], processes: int, verified: str, repository: Path) -> int:
    """Run the jobs in ``processes`` processes; return the exit status. A job that fails does not stop the others.

    ``verified`` says in the output what a block was compared with.
    """
    console = Console(highlight=False)
    unfinished = [name for name, _ in jobs]
    failed = False

    def describe_stop(signal: str) -> str:
        return f"heed export: {signal}; nothing was written for {', '.join(unfinished)}"

    progress = _progress(console)
    # The processes are forked before there is a thread that draws the progress.
    with stopping(describe_stop, progress), _started(jobs, processes) as results, progress:
        task = progress.add_task(f"exporting {', '.join(unfinished[:3])} ...", total=len(jobs))
        start = time.perf_counter()
        for name, result in results:
            try:
                folder = result()
            except (ExportError, OSError, MemoryError, BrokenExecutor) as error:
                failed = True
                reason = f"a process was ended: {error}" if isinstance(error, BrokenExecutor) else error
                print(f"heed export: {reason}\nNothing was written for {name}.", file=sys.stderr)
            else:
                seconds = time.perf_counter() - start
                console.print(f"{name}: {verified}, {folder}/ (after {seconds:.0f} s)", soft_wrap=True)
            unfinished.remove(name)
            progress.advance(task)
    remove_leftovers(repository)  # of a worker process that was killed
    return int(failed)


@contextmanager
def _started(jobs: Sequence[Job], processes: int) -> Iterator[Iterator[Job]]:
    """Each job's name once it has finished, and a function that returns its result or raises its error.

    With one process, that function is the job itself.
    """
    if processes == 1:  # run in the main thread, where a signal is handled at once
        yield iter(jobs)
        return
    # A forked process shares the imported modules; importing them takes five seconds.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(processes, context, prepare_worker) as executor:
        with blocked():
            running = {_submitted(executor, job): name for name, job in jobs}
        yield ((running[future], future.result) for future in as_completed(running))


def _submitted(executor: ProcessPoolExecutor, job: Callable[[], Path]) -> Future[Path]:
    try:
        return executor.submit(job)
    except BrokenExecutor as error:  # a process was killed before all jobs were submitted
        failed: Future[Path] = Future()
        failed.set_exception(error)
        return failed


def _progress(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _check_blocks(names: Sequence[str]) -> None:
    for name in names:
        if name not in BLOCKS and name not in FAMILIES:
            advice = nearest(name, [*BLOCKS, *FAMILIES]) or f"; there are {', '.join(BLOCKS)}"
            raise ValueError(f"unknown block {name!r}{advice}")


def _import_block(flags: Parser, options: argparse.Namespace) -> tuple[Block, Sequence[Path]]:
    """The block with the weights of a checkpoint, and the tokenizer files to copy with it."""
    if len(options.blocks) != 1 or not options.name:
        flags.error("--weights needs exactly one BLOCK, and --name")
    if options.seed is not None:
        flags.error("--seed draws weights, so --weights cannot be given with it")
    kind = options.blocks[0]
    starts = family_of(kind).starts
    checkpoint = load(options.weights)
    if options.map:
        named = mapped(checkpoint.tensors, options.map, options.prefix)
    else:
        named = own_names(checkpoint.tensors, starts, options.prefix)
    block = from_checkpoint(kind, options.name, checkpoint, named, _settings(options.set))
    if named.ignored:
        under = f" under {named.prefix!r}" if named.prefix else ""
        total = len(checkpoint.tensors)
        print(
            f"heed export: {kind} uses {total - len(named.ignored)} of {total} tensors{under}; "
            f"ignored, not part of the block: {listed(named.ignored)}",
            file=sys.stderr,
        )
    return block, checkpoint.tokenizer


def _demonstration_block(flags: Parser, options: argparse.Namespace) -> Block:
    """The block of the user's own sizes, with weights drawn from a seed."""
    if len(options.blocks) != 1 or not options.name:
        flags.error("--name, --set and --seed need exactly one BLOCK, and --name")
    seed = SEED if options.seed is None else options.seed
    drawn = with_seed(options.blocks[0], options.name, _settings(options.set), seed)
    if drawn.memory_bytes > MANY_BYTES:
        gib = drawn.memory_bytes / GIB
        print(f"heed export: {options.name} needs about {gib:,.0f} GiB of memory to be exported", file=sys.stderr)
    return drawn.block


def _settings(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The values of ``--set`` by key.

    Raises:
        ValueError: a key has two values.
    """
    settings: dict[str, str] = {}
    for key, value in pairs:
        if settings.setdefault(key, value) != value:
            raise ValueError(f"--set {key} is given as {settings[key]!r} and as {value!r}")
    return settings


def parser() -> Parser:
    """The flags."""
    parser = Parser(
        prog="heed export",
        usage="heed export [BLOCK ...] [flags]",
        description=__doc__,
        epilog="heed export hf DIR exports a transformers model; heed export hf --help lists its flags",
    )
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help=f"default: all, which are {', '.join(BLOCKS)}")
    add_target(parser)
    parser.add_argument(
        "--jobs", type=positive, default=min(8, os.cpu_count() or 1),
        help="number of processes (default: CPUs, at most 8)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=DTYPES, default=DTYPES[0],
        help="of tensors and weights (default float32); without --name the others write BLOCK_float16, BLOCK_bfloat16",
    )  # fmt: skip
    parser.add_argument(
        "--cuda", action="store_true", help="also export fast paths for CUDA, as float16 and bfloat16 always do"
    )
    own = parser.add_argument_group(
        "a block of your own",
        f"One BLOCK of {', '.join(FAMILIES)}, with your weights, or with your sizes and random demonstration weights.",
    )
    own.add_argument("--name", type=block_name, help="name of the block in the repository and the APIs")
    own.add_argument(
        "--set", action="append", default=[], type=_setting, metavar="KEY=VALUE",
        help="with --weights: a setting that cannot be read from the tensors, such as num_heads=8; without: any size "
        "or setting, such as d_model=256; may be given several times",
    )  # fmt: skip
    own.add_argument(
        "--seed", type=seed_value, metavar="N",
        help=f"without --weights: draw the random demonstration weights from this seed (default {SEED})",
    )  # fmt: skip
    weights = parser.add_argument_group("your weights", "Sizes are read from the tensors.")
    weights.add_argument(
        "--weights", type=Path, metavar="FILE",
        help="a safetensors file, a torch state dict, the index of its shards, or the folder of a BERT or RoBERTa",
    )  # fmt: skip
    weights.add_argument(
        "--prefix", metavar="PREFIX",
        help="use the tensors whose names begin with PREFIX, such as encoder.layers.3.self_attn; needed if several fit",
    )  # fmt: skip
    weights.add_argument(
        "--map", type=Path, metavar="FILE",
        help='JSON file that maps our tensor names to those in the file: {"q_proj.weight": "query/kernel"} or '
        '{"q_proj.weight": {"from": "query/kernel", "transpose": true}}',
    )  # fmt: skip
    return parser


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    return key, value


if __name__ == "__main__":
    sys.exit(main())
