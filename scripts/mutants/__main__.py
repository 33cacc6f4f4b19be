"""Count the mutants of the code that the tests kill, and report those that survive.

usage: PYTHON -m scripts.mutants [--seed N] [--count N] [--folder FOLDER] [REPORT]

First each file of tests runs once under coverage, for half an hour. Then each mutant is applied in a copy of the last
commit, and the files of tests that run its line are run: those of `make test`, and if the mutant survives, those of
`make test-all`. Those beside the mutated file are run, then the fastest others until all would take BUDGET_S. A mutant
is killed by a failure or a test that hangs. FOLDER keeps the coverage and the outcomes: a run that was ended goes on
there.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scripts.exported import ROOT
from scripts.mutants.coverage_by_test import EXTENDED, FAST, FOLDERS, Measurement, TestFile, environment, test_files
from scripts.mutants.drawing import Mutant, draw

BUDGET_S = 120  # of tests, as they took under coverage, for one mutant and marker
KEPT = "outcomes.jsonl"  # in FOLDER
NOT_KILLED = (0, 5)  # pytest's exit statuses: all passed, no tests


class Outcome(NamedTuple):
    """``killed_by`` is the marker of the tests that killed the mutant; ``tests`` is the number of files that run it."""

    mutant: Mutant
    killed_by: str | None
    tests: int


def main() -> int:
    """Return the exit status: 0 even if mutants survive, 1 if a test fails without a mutant."""
    options = _options()
    measurement = Measurement(options.root.resolve(), options.folder.resolve())
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        if not measurement.exists:
            task = progress.add_task("files of tests, under coverage", total=len(test_files(measurement.root)))
            for failure in measurement.run(lambda: progress.advance(task)):
                progress.print(f"failed: {failure.test.path} ({failure.test.marker}): {failure.log}")
        mutants = draw(measurement.root, FOLDERS, options.count, options.seed)
        task = progress.add_task("mutants", total=len(mutants))
        known = kept_outcomes(measurement.folder)
        outcomes = [known[mutant] for mutant in mutants if mutant in known]
        progress.advance(task, len(outcomes))
        with (measurement.folder / KEPT).open("a") as file:
            for outcome in _outcomes(measurement, [mutant for mutant in mutants if mutant not in known]):
                file.write(outcome_line(outcome))
                file.flush()
                outcomes.append(outcome)
                progress.advance(task)
    report = "\n".join(_report(measurement, outcomes, options.seed))
    print(report)
    if options.report:
        options.report.write_text(report + "\n")
    return 0


def outcome_line(outcome: Outcome) -> str:
    """A line of the file of outcomes."""
    return json.dumps([*outcome.mutant, *outcome[1:]], default=str) + "\n"


def kept_outcomes(folder: Path) -> dict[Mutant, Outcome]:
    """The outcomes of earlier runs with this coverage."""
    file = folder / KEPT
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    outcomes = (
        Outcome(Mutant(Path(name), *rest), *result) for name, *rest, result in ((*line[:4], line[4:]) for line in lines)
    )
    return {outcome.mutant: outcome for outcome in outcomes}


def _outcomes(measurement: Measurement, mutants: Sequence[Mutant]) -> Iterator[Outcome]:
    seconds = measurement.seconds()
    copies: SimpleQueue[Path] = SimpleQueue()

    def outcome(mutant: Mutant) -> Outcome:
        tests = measurement.tests_of(mutant.file, mutant.line)
        copy = copies.get()
        try:
            with _applied(mutant, copy):
                for marker in (FAST, EXTENDED):
                    chosen = chosen_tests([test for test in tests if test.marker == marker], mutant, seconds)
                    if chosen and _fails(copy, chosen, marker, sum(map(seconds.__getitem__, chosen))):
                        return Outcome(mutant, marker, len(tests))
        finally:
            copies.put(copy)
        return Outcome(mutant, None, len(tests))

    processes = os.cpu_count() or 1
    with ExitStack() as stack, ThreadPoolExecutor(processes) as pool:
        for _ in range(processes):
            copy = stack.enter_context(_copy(measurement.root))
            _run(copy, ["--collect-only", "-m", FAST]).check_returncode()
            copies.put(copy)
        for future in as_completed([pool.submit(outcome, mutant) for mutant in mutants]):
            yield future.result()


@contextmanager
def _copy(root: Path) -> Iterator[Path]:
    """A clone of the last commit of ``root``, with its exported blocks."""
    with tempfile.TemporaryDirectory(prefix="heed-mutants-") as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "--quiet", str(root), str(clone)], check=True)
        if (root / ".exports").exists():
            shutil.copytree(root / ".exports", clone / ".exports")
        for name in ("node_modules", ".venv"):
            if (root / name).exists():
                (clone / name).symlink_to((root / name).resolve())
        yield clone


@contextmanager
def _applied(mutant: Mutant, root: Path) -> Iterator[None]:
    path = root / mutant.file
    source = path.read_text()
    path.write_text(mutant.code(source))
    try:
        yield
    finally:
        path.write_text(source)


def chosen_tests(tests: Sequence[TestFile], mutant: Mutant, seconds: dict[TestFile, float]) -> list[TestFile]:
    """The tests to run, in order: those beside the mutant, then others as the budget allows, and at least one."""
    beside = f"tests/{mutant.file.parent}/".replace("tests/clients/heed_client", "tests/clients")
    chosen: list[TestFile] = []
    left = float(BUDGET_S)
    for test in sorted(tests, key=lambda test: (not test.path.startswith(beside), seconds[test])):
        left -= seconds[test]
        if chosen and left < 0 and not test.path.startswith(beside):
            break
        chosen.append(test)
    return chosen


def _fails(root: Path, tests: Sequence[TestFile], marker: str, seconds: float) -> bool:
    with tempfile.TemporaryDirectory(prefix="heed-mutants-") as folder:
        arguments = ["-x", "-m", marker, f"--basetemp={folder}/tmp", *(test.path for test in tests)]
        try:
            return _run(root, arguments, 120 + 3 * seconds).returncode not in NOT_KILLED
        except subprocess.TimeoutExpired:
            return True


def _run(root: Path, arguments: Sequence[str], timeout_s: float | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments],
        cwd=root, env=environment(root) | {"PYTHONDONTWRITEBYTECODE": "1"}, timeout=timeout_s,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _report(measurement: Measurement, outcomes: Sequence[Outcome], seed: int) -> Iterator[str]:
    by = {marker: [outcome for outcome in outcomes if outcome.killed_by == marker] for marker in (FAST, EXTENDED)}
    killed = len(by[FAST]) + len(by[EXTENDED])
    yield f"# Mutants\n\n{len(outcomes)} mutants, seed {seed}: {killed} killed, {len(by[FAST])} by `make test`.\n"
    yield "| folder | lines | branches | lines by `make test` | branches by `make test` | killed |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    shares = zip(measurement.shares(FAST, EXTENDED), measurement.shares(FAST), strict=True)
    for (folder, *both), (_, *fast) in shares:
        own = [outcome for outcome in outcomes if outcome.mutant.file.parts[0] == folder]
        dead = sum(outcome.killed_by is not None for outcome in own)
        yield f"| {folder} | " + " | ".join(f"{share:.2%}" for share in (*both, *fast)) + f" | {dead} of {len(own)} |"
    yield "\nSurvivors:\n"
    for mutant, killed_by, tests in outcomes:
        if not killed_by:
            source = (measurement.root / mutant.file).read_text()
            before, after = source.splitlines(), mutant.code(source).splitlines()
            pairs = ((old.strip(), new.strip()) for old, new in zip(before, after, strict=False))
            old, new = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
            yield f"- {mutant.file}:{mutant.line} ({tests} files of tests): `{old}` -> `{new}`"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default 1)")
    parser.add_argument("--count", type=int, default=200, help="of mutants (default 200)")
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout to measure (default: this one)")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/mutants"), help="for coverage (default build/mutants)"
    )
    parser.add_argument("report", nargs="?", type=Path, help="file for the report, in Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
