"""Export a small random model of each model type of transformers, and write into docs/families.md what came of it.

``python -m scripts.families.sweep [TYPE ...]`` appends a JSON line for each type, and for each model in it that can be
exported alone, to a file; a later run goes on where one was interrupted. With the last type the page is written. An
export compares every graph with transformers in float64 before it is written.
"""

import gc
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import resource
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch
import transformers
from rich.progress import Progress
from transformers import CONFIG_MAPPING

from benchmarks.report.markdown import table
from export.__main__ import main as export
from scripts.families.describe import DESCRIBED, FAILED, NOT_BUILT, REFUSED, Line, save_small
from scripts.families.models import MAX_PARAMETERS

ROOT = Path(__file__).parents[2]
PAGE, LINES = ROOT / "docs" / "families.md", ROOT / ".exports" / "families.jsonl"
EXPORTED, WRONG, LATE = "exported", "failed a check", "not done in time"
OUTCOMES = (EXPORTED, REFUSED, WRONG, FAILED, LATE, NOT_BUILT)
NAME = "small"  # of each exported model
DESCRIPTIONS = "lines.json"  # of a task's folder
MEMORY = 12 << 30  # bytes of a process: a model that needs more fails, without affecting the others
MAX_REASON = 300  # characters
FORK = multiprocessing.get_context("fork")  # a fork has torch and transformers, whose import takes seconds
ABOUT = """\
# Model types of transformers

A small model of each type of transformers {version}, with random weights, was given to `heed export hf`. *Exported*
means that every graph was compared with transformers' eager attention in float64; *error* is the largest error that is
allowed in the weights. A type is *not built* where no small config of it works, or has more than {limit} million
numbers in any case; one that is not in the table was not run. *type/part* is one model of several in one, exported
alone by `--part`. `python -m scripts.families.sweep` writes this page.

{summary}.

"""


@dataclass
class Task:
    """The export of a type, or of the ``part`` of one, in a process of its own."""

    type: str
    folder: TemporaryDirectory[str]
    part: str | None = None
    flags: tuple[str, ...] = ()
    process: Any = None
    began: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"{self.type}/{self.part}" if self.part else self.type

    @property
    def path(self) -> Path:
        return Path(self.folder.name)

    @property
    def log(self) -> Path:
        return self.path / f"{self.part or 'whole'}.log"

    def start(self) -> None:
        self.process = FORK.Process(target=_run, args=(self,))
        self.began = time.monotonic()
        self.process.start()


def main() -> int:
    options = _options()
    torch.set_num_threads(1)  # the models are small, and several are exported at once
    rows = _rows(options.out)
    known = {row["type"] for row in rows}
    waiting: deque[str] = deque(name for name in options.types or CONFIG_MAPPING if name not in known)
    with Progress(disable=not sys.stderr.isatty()) as progress, options.out.open("a") as file:
        bar = progress.add_task("exporting", total=len(waiting))
        for row in _swept(waiting, options):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{row['name']}: {row['outcome']}; {row['detail'][:MAX_REASON]}", flush=True)
            progress.advance(bar, float(row["name"] == row["type"]))
    if {*CONFIG_MAPPING} <= {row["type"] for row in rows}:
        options.page.write_text(_page(rows))
        print(f"written: {options.page}")
    counts = Counter(row["outcome"] for row in rows)
    return int(any(counts[outcome] for outcome in (WRONG, FAILED, LATE)))


def _swept(waiting: deque[str], options: Namespace) -> Iterator[dict[str, Any]]:
    """The row of each type, followed by those of its parts; ``options.jobs`` processes at a time."""
    parts: deque[Task] = deque()
    running: dict[Any, Task] = {}
    try:
        while waiting or parts or running:
            while (waiting or parts) and len(running) < options.jobs:
                task = parts.popleft() if parts else Task(waiting.popleft(), TemporaryDirectory())
                task.start()
                running[task.process.sentinel] = task
            multiprocessing.connection.wait([*running], timeout=1)
            for sentinel, task in [*running.items()]:
                seconds = time.monotonic() - task.began
                if task.process.is_alive() and seconds < options.timeout:
                    continue
                del running[sentinel]
                is_late = task.process.is_alive()
                task.process.kill()
                task.process.join()
                yield _row(task, is_late, round(seconds, 1))
                for line in _described(task)[1:] if not task.part else ():
                    if line.outcome == DESCRIBED:
                        parts.append(Task(task.type, task.folder, line.name.partition("/")[2], tuple(line.flags)))
                    else:
                        yield _row_of(task.type, line)
    finally:
        for task in running.values():
            task.process.kill()


def _run(task: Task) -> None:
    """Save the model of a type, unless its part is exported, and export it; in a process of its own."""
    gc.freeze()  # to destroy a session of the parent would wait for threads that a fork does not have
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    log = os.open(task.log, os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    flags = task.flags
    if not task.part:
        lines = save_small(task.type, task.path)
        (task.path / DESCRIPTIONS).write_text(json.dumps(lines))
        flags = lines[0].flags
        if lines[0].outcome != DESCRIBED:
            return
    repository = task.path / f"models {task.part}"
    flags = (*flags, "--name", NAME, "--repository", str(repository), *(("--part", task.part) if task.part else ()))
    sys.exit(export(["hf", str(task.path / "saved"), *flags]))


def _described(task: Task) -> list[Line]:
    """The lines of a type and its parts; empty if its process ended before it wrote them."""
    file = task.path / DESCRIPTIONS
    return [Line(*line) for line in json.loads(file.read_text())] if file.exists() else []


def _row(task: Task, is_late: bool, seconds: float) -> dict[str, Any]:
    line = next((line for line in _described(task) if line.name == task.name), None)
    if line and line.outcome != DESCRIBED:
        return _row_of(task.type, line, seconds=seconds)
    line = line or Line(task.name, "", FAILED, "")
    text = task.log.read_text(errors="replace") if task.log.exists() else ""
    logged = [one for one in text.replace(str(task.path / "saved"), "DIR").splitlines() if one.strip()]
    outcome, detail, error = LATE if is_late else FAILED, logged[-1] if logged else "", None
    if not is_late and "Traceback" not in text:
        outcome = {0: EXPORTED, 1: WRONG, 2: REFUSED}.get(task.process.exitcode, FAILED)
    if outcome == EXPORTED:
        card = _card(task.path / f"models {task.part}" / NAME / "1" / "model.onnx")
        detail = f"{', '.join(card['inputs'])} → {', '.join(card['outputs'])}"
        error = card["tolerance"].get("weights")
    elif outcome in (REFUSED, WRONG):
        start = max((i for i, one in enumerate(logged) if one.startswith("heed export hf: ")), default=0)
        detail = " ".join(one for one in logged[start:] if not one.startswith("Nothing was written"))
    detail = " ".join(detail.removeprefix("heed export hf: ").split())[:MAX_REASON]
    return _row_of(task.type, line._replace(outcome=outcome, detail=detail), error, seconds)


def _row_of(kind: str, line: Line, error: float | None = None, seconds: float = 0) -> dict[str, Any]:
    return {
        "type": kind, "name": line.name, "class": line.kind, "outcome": line.outcome, "detail": line.detail,
        "flags": line.flags, "error": error, "seconds": seconds, "transformers": transformers.__version__,
    }  # fmt: skip


def _card(file: Path) -> dict[str, Any]:
    model = onnx.load(file, load_external_data=False)
    card: dict[str, Any] = json.loads(next(entry.value for entry in model.metadata_props if entry.key == "heed"))
    return card


def _rows(file: Path) -> list[dict[str, Any]]:
    """The rows of this version of transformers."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in rows if row["transformers"] == transformers.__version__]


def _page(rows: list[dict[str, Any]]) -> str:
    wholes = Counter(row["outcome"] for row in rows if row["name"] == row["type"])
    parts = Counter(row["outcome"] for row in rows if row["name"] != row["type"])
    summary = f"Of {wholes.total()} types {_counted(wholes)}; of {parts.total()} parts {_counted(parts)}"
    columns = ("name", "class", "outcome", "inputs and outputs, or the reason", "error")
    cells = [
        [
            _escaped(" ".join((row["name"], *row["flags"]))), row["class"], row["outcome"], _escaped(row["detail"]),
            None if row["error"] is None else f"{row['error']:.1g}",
        ]
        for row in sorted(rows, key=lambda row: row["name"])
    ]  # fmt: skip
    return (
        ABOUT.format(version=transformers.__version__, limit=MAX_PARAMETERS // 10**6, summary=summary)
        + "\n".join(table(columns, cells))
        + "\n"
    )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])


def _escaped(text: str) -> str:
    """Text for a cell of a Markdown table, without the paths of modules."""
    return re.sub(r"([|<>*_`\[\]])", r"\\\1", re.sub(r" from '/[^']*'", "", text))


def _options() -> Namespace:
    parser = ArgumentParser(
        "python -m scripts.families.sweep", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("types", nargs="*", metavar="TYPE", help="such as bert or clip (default: all)")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="exports at once (default: one for each CPU)")
    add("--timeout", type=float, default=300, metavar="SECONDS", help="of one export (default 300)")
    add("--out", type=Path, default=LINES, help=f"file of JSON lines (default: {LINES.relative_to(ROOT)})")
    add("--page", type=Path, default=PAGE, help=f"written once all types are done (default: {PAGE.relative_to(ROOT)})")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
