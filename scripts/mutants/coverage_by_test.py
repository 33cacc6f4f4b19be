"""Run each file of tests under coverage, with its servers and commands, and store the lines that each file runs."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from coverage import Coverage, CoverageData

FOLDERS = ("service", "export", "models", "clients", "loadtest")
FAST, EXTENDED = "not extended", "extended and not family"  # markers of `make test`, and of `make test-all`
NO_TESTS = 5  # pytest's exit status
TIMEOUT_S = 3600
ELSEWHERE = ("tests/deploy/test_container.py", "tests/service/v2/test_perf_analyzer.py")  # need docker or perf_analyzer
CONFIGURATION = """
[run]
branch = true
parallel = true
patch = subprocess, fork, _exit, execv
context = {context}
data_file = {folder}/data
disable_warnings = module-not-measured, no-data-collected, couldnt-parse
source =
    {sources}
"""


class TestFile(NamedTuple):
    """A file of tests; only the tests with ``marker`` run."""

    path: str
    marker: str

    @property
    def context(self) -> str:
        """Its name in the coverage data."""
        return f"{self.marker}|{self.path}"


class Failure(NamedTuple):
    """A file of tests that failed, and the file with its output."""

    test: TestFile
    log: Path


def environment(root: Path) -> dict[str, str]:
    """The environment in which commands import the packages of the checkout ``root``."""
    path = os.pathsep.join((str(root), str(root / "clients")))
    return os.environ | {"PYTHONPATH": path, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_files(root: Path) -> list[TestFile]:
    """The files of tests of the checkout ``root``; a file with tests of both markers is listed twice."""
    files = {file.relative_to(root).as_posix(): file for file in sorted((root / "tests").rglob("test_*.py"))}
    return [
        TestFile(name, marker)
        for name, file in files.items()
        if name not in ELSEWHERE
        for marker in ((FAST, EXTENDED) if "mark.extended" in file.read_text() else (FAST,))
    ]


class Measurement:
    """Coverage data in ``folder`` of the tests of the checkout ``root``."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self._seconds = folder / "seconds.json"
        self._lines: dict[Path, dict[int, list[str]]] = {}

    @property
    def exists(self) -> bool:
        """Whether all tests have run."""
        return self._seconds.exists()

    def run(self, advance: Callable[[], None]) -> list[Failure]:
        """Run all tests, a file at a time on each CPU; ``advance`` is called after each. Return those that failed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        seconds: dict[str, float] = {}

        def run(test: TestFile) -> Failure | None:
            name = re.sub(r"[^\w.]+", ".", test.context)  # some tests use their folder's name in a URL
            start = time.monotonic()
            status = self._run_file(test, name)
            seconds[test.context] = time.monotonic() - start
            advance()
            return None if status in (0, NO_TESTS) else Failure(test, self.folder / f"{name}.log")

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            failures = [failure for failure in pool.map(run, test_files(self.root)) if failure]
        Coverage(data_file=str(self.folder / "data"), config_file=False, branch=True).combine()
        self._seconds.write_text(json.dumps(seconds))
        return failures

    def _run_file(self, test: TestFile, name: str) -> int:
        configuration = self.folder / f"{name}.cfg"
        sources = "\n    ".join(str(self.root / name) for name in FOLDERS)
        configuration.write_text(CONFIGURATION.format(context=test.context, folder=self.folder, sources=sources))
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={configuration}", "-m", "pytest", "-q"]
        flags = ["-m", test.marker, f"--basetemp={self.folder / name}.tmp", test.path]
        with (self.folder / f"{name}.log").open("w") as log:
            try:
                return subprocess.run(
                    [*command, *flags], cwd=self.root, env=environment(self.root), timeout=TIMEOUT_S,
                    stdout=log, stderr=subprocess.STDOUT,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                return -1

    def seconds(self) -> dict[TestFile, float]:
        """The duration of each file of tests."""
        stored = json.loads(self._seconds.read_text())
        return {_test_file(context): seconds for context, seconds in stored.items()}

    def tests_of(self, file: Path, line: int) -> list[TestFile]:
        """The files of tests that run this line of the file, whose path is relative to the checkout."""
        if file not in self._lines:
            data = CoverageData(basename=str(self.folder / "data"))
            data.read()
            self._lines[file] = data.contexts_by_lineno(str(self.root / file))
        return [_test_file(context) for context in self._lines[file].get(line, []) if context]

    def shares(self, *markers: str) -> Iterator[tuple[str, float, float]]:
        """For each folder, the shares of lines and branches that the tests with one of ``markers`` run."""
        coverage = Coverage(data_file=str(self.folder / "data"), config_file=False, branch=True)
        coverage.load()
        contexts = [rf"^{marker}\|" for marker in markers]
        for name in FOLDERS:
            report = self.folder / f"{name}.json"
            included = [f"{self.root / name}/*"]
            modules = _modules(self.root / name)
            coverage.json_report(outfile=str(report), include=included, morfs=modules, contexts=contexts)
            totals = json.loads(report.read_text())["totals"]
            yield (
                name,
                totals["covered_lines"] / totals["num_statements"],
                totals["covered_branches"] / totals["num_branches"],
            )


def _modules(folder: Path) -> list[str]:
    return [str(file) for file in sorted(folder.rglob("*.py"))]


def _test_file(context: str) -> TestFile:
    marker, _, path = context.partition("|")
    return TestFile(path, marker)
