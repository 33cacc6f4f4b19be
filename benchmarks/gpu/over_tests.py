"""The tests that ask over HTTP, with the service on the provider."""

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

SECONDS = 400


def run(cell: Suite, repository: Path, provider: str) -> dict[str, Any]:
    """How many tests ran, and which failed."""
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "junit.xml"
        command = [sys.executable, "-m", "pytest", str(cell), "-q", "-p", "no:cacheprovider", "-W", "default"]
        command.append(f"--junitxml={file}")
        own = Path(scratch) / "repository"
        for name in BLOCKS:  # without other dtypes, which a server would load, too
            shutil.copytree(repository / name, own / name)
        surroundings = {"HEED_TEST_PROVIDER": provider, "HEED_TEST_REPOSITORY": str(own)}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ | surroundings, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not done after {SECONDS} s"}
        if done.returncode not in (0, 1) or not file.exists():
            return {"failed": f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}"}
        cases = list(ElementTree.parse(file).iter("testcase"))
    wrong = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    if not cases:
        return {"failed": "no test was found"}
    return {"tests": len(cases), "skipped": len(skipped), "wrong": [_said(case) for case in wrong]}


def _said(case: ElementTree.Element) -> str:
    trouble = case.find("failure")
    trouble = case.find("error") if trouble is None else trouble
    message = "" if trouble is None else trouble.get("message", "")
    return f"{case.get('name')}: {' '.join(message.split())}"[:600]
