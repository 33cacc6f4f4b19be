"""openapi-python-client makes a client of the document, without a warning, and every call of it succeeds."""

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended
PROGRAM = Path(__file__).parent / "python" / "call_all.py"


def test_every_call(generators, api, document, every_call, calls_file, tmp_path):
    options = ["--path", document, "--output-path", tmp_path / "client", "--meta", "none", "--fail-on-warning"]
    environment = {"PATH": str(generators)}  # of ruff, which writes the files' format
    command = [generators / "openapi-python-client", "generate", *options]
    made = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    program = [generators / "python", PROGRAM, str(api.base_url), calls_file]
    done = subprocess.run(program, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in answers] == [call.operation for call in every_call]
    assert not [answer for answer in answers if answer[1] not in (200, 201, 204) or answer[2] in ("Error", "Problem")]
