"""Export a model of the transformers library from its directory: config, weights, tokenizer. Nothing is downloaded."""

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from export.artifact import ExportError
from export.options import add_target, block_name, minutes
from export.scratch import remove_leftovers
from export.signals import limited, stopping
from export.weights.checkpoint import listed
from export.weights.memory import GIB, MANY_BYTES, bytes_for, machine_bytes
from heed_options import Parser

MISSING = "transformers is not installed; pip install 'heed-attention[hf]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Export one model; return the exit status: 2 if it is refused or too large, 1 if it failed a check."""
    options = _parser().parse_args(arguments)
    try:
        from export.hf.artifact import export_model
        from export.hf.pretrained import ModelRefused, load
    except ModuleNotFoundError as missing:
        if missing.name != "transformers":
            raise
        print(f"heed export hf: {MISSING}", file=sys.stderr)
        return 1
    console, start = Console(highlight=False), time.perf_counter()
    name = options.name or _name_of(options.directory)
    progress = _progress(console)
    task = progress.add_task(f"{name}: reading {options.directory}")
    remove_leftovers(options.repository)

    def describe_stop(signal: str) -> str:
        if expired.is_set():
            signal = f"not done after {options.timeout:g} min (--timeout), at {progress.tasks[0].description}"
        return f"heed export hf: {signal}; nothing was written for {name}"

    def report(step: str) -> None:
        progress.update(task, description=f"{name}: {step}")
        if not console.is_terminal:
            print(f"heed export hf: {name}: {step}", file=sys.stderr, flush=True)

    with progress, stopping(describe_stop, progress), limited(60 * options.timeout) as expired:
        try:
            if said := memory_of(options.directory, is_part=options.part is not None):
                print(f"heed export hf: {name}: {said}", file=sys.stderr)
            pretrained = load(options.directory, options.head, options.part, dict(options.input))
            if pretrained.ignored:
                print(
                    f"heed export hf: ignored, {pretrained.kind} does not have them: {listed(pretrained.ignored)}",
                    file=sys.stderr,
                )
            for warning in pretrained.warnings:
                print(f"heed export hf: {warning}", file=sys.stderr)
            folder = export_model(
                pretrained, name, options.repository, options.version, options.force, report, bool(options.quantize)
            )
        except (ModelRefused, ExportError, OSError, MemoryError) as error:
            progress.stop()
            reason = f"not enough memory: {error}" if isinstance(error, MemoryError) else str(error)
            print(f"heed export hf: {reason}\nNothing was written for {name}.", file=sys.stderr)
            return 2 if isinstance(error, ModelRefused | MemoryError) else 1
    seconds = time.perf_counter() - start
    console.print(
        f"{name}: {pretrained.kind}, equal to transformers within twice its own float32 error, {folder}/ "
        f"(after {seconds:.0f} s)",
        soft_wrap=True,
    )
    if options.quantize:
        console.print(f"{name}: {_cost(folder)}", soft_wrap=True)
    return 0


def memory_of(folder: Path, *, is_part: bool) -> str:
    """A sentence about the memory that a large export needs; "" for a small one.

    Raises:
        MemoryError: the export needs more than the machine has.
    """
    needed, available = bytes_for(folder, is_part), machine_bytes()
    if needed < MANY_BYTES:
        return ""
    said = f"about {needed / GIB:,.0f} GiB of {available / GIB:,.0f} GiB that this machine has"
    if needed > available:
        raise MemoryError(f"{folder} needs {said}")
    return f"needs {said}"


def _cost(folder: Path) -> str:
    """The errors of steps with 8-bit weights, from the metadata of ``folder``, or why there are no such steps."""
    import onnx

    model = onnx.load(folder / "model.onnx", load_external_data=False)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    generation = json.loads(metadata["heed"])["generation"]
    if "refused" in generation:
        return f"--quantize has no effect: {generation['refused']}"
    errors = dict(generation["quantized"]["errors"])
    below = errors.pop("tokens", 0.0)
    largest = ", ".join(f"{output} {error:.3g}" for output, error in errors.items())
    return (
        f"generates with weights of 8 bits, whose largest errors against float64 are: {largest}; the logit of a chosen "
        f"token is at most {below:.3g} below the largest"
    )


def _name_of(directory: Path) -> str:
    """The name of the directory, with "_" for characters that a block's name may not have."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", directory.resolve().name)
    return re.sub(r"^[^A-Za-z0-9]+", "", name)[:100] or "model"


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """The name of an input and its shape, from NAME=SHAPE."""
    name, _, shape = text.partition("=")
    if not re.fullmatch(r"[a-z_]+=[1-9]\d{0,6}(,[1-9]\d{0,6})*", text):
        raise argparse.ArgumentTypeError(f"expected a name and a shape, as pixel_values=3,224,224, got {text!r}")
    return name, tuple(map(int, shape.split(",")))


def _progress(console: Console) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _parser() -> Parser:
    parser = Parser(prog="heed export hf", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory with config.json and the weights")
    parser.add_argument(
        "--name", type=block_name, help="name of the model in the repository and the APIs (default: the directory's)"
    )
    parser.add_argument(
        "--head", choices=("config", "none"), default="config",
        help="config: the task head that config.json names (architectures); none: the hidden states",
    )  # fmt: skip
    parser.add_argument(
        "--part", metavar="NAME",
        help="part of a composite model to export: vision_tower, language_model (without it, an error lists them)",
    )  # fmt: skip
    parser.add_argument(
        "--input", metavar="NAME=N,...", type=_shape, action="append", default=[],
        help="shape of one example of an input whose size the config lacks: pixel_values=3,224,224; input_values=16000",
    )  # fmt: skip
    parser.add_argument(
        "--quantize", choices=("int8",),
        help="int8: generate with 8-bit weights; all else stays float32, and the description has the errors",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=minutes, default=30.0, metavar="MINUTES",
        help="stop the export after this time, with status 143; 0 = no limit (default 30)",
    )  # fmt: skip
    add_target(parser)
    return parser
