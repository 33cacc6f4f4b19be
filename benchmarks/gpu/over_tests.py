"""The tests over HTTP, with the service on the provider."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu.cells import Suite
from benchmarks.gpu.rows import ROOT
from models.catalogue import BLOCKS

TIMEOUT_S = 400


def run(cell: Suite, repository: Path, provider: str) -> dict[str, Any]:
    """Run a file of tests; return the number of tests and the failed ones."""
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "junit.xml"
        command = [sys.executable, "-m", "pytest", str(cell), "-q", "-p", "no:cacheprovider", "-W", "default"]
        command.append(f"--junitxml={file}")
        copies = Path(scratch) / "repository"
        for name in BLOCKS:  # without other dtypes, which servers would load as well
            shutil.copytree(repository / name, copies / name)
        variables = {"HEED_TEST_PROVIDER": provider, "HEED_TEST_REPOSITORY": str(copies)}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not done after {TIMEOUT_S} s"}
        if done.returncode not in (0, 1) or not file.exists():
            return {"failed": f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}"}
        cases = list(ElementTree.parse(file).iter("testcase"))
    wrong = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    if not cases:
        return {"failed": "no test was found"}
    return {"tests": len(cases), "skipped": len(skipped), "wrong": [_failure(case) for case in wrong]}


def _failure(case: ElementTree.Element) -> str:
    failure = case.find("failure")
    failure = case.find("error") if failure is None else failure
    message = "" if failure is None else failure.get("message", "")
    return f"{case.get('name')}: {' '.join(message.split())}"[:600]
