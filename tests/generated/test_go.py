"""openapi-generator makes a Go client of the document, which compiles, and every call of it succeeds."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.documents import ADDRESS, EXAMPLES

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(not shutil.which("go"), reason="no Go here: apt-get install golang-go"),
]
PROGRAM = Path(__file__).parent / "go" / "call_all.go"
GENERATED, _, ATTEND = (example for example in EXAMPLES if example.language == "go")  # test_minilm.py has the other
ENVIRONMENT = os.environ | {"GOPROXY": "off", "GOFLAGS": "-mod=mod"}  # the client needs no module of others


def test_the_page(client, tmp_path):
    (tmp_path / "attend.go").write_text(ATTEND.code.replace(ADDRESS, str(client.base_url)))
    assert run(tmp_path, "go", "run", "attend.go") == ATTEND.shown


@pytest.mark.skipif(not shutil.which("java"), reason="no Java here: apt-get install default-jre-headless")
def test_every_call(generators, api, document, every_call, calls_file, tmp_path):
    properties = ["--additional-properties", "packageName=heed,withGoMod=false"]
    left_out = ["--global-property", "apiTests=false,modelTests=false,apiDocs=false,modelDocs=false"]
    options = ["-g", "go", "-i", document, "-o", tmp_path / "heed", *properties, *left_out]
    run(tmp_path, generators / "openapi-generator-cli", "generate", *options)
    (tmp_path / "go.mod").write_text("module example.com\n\ngo 1.19\n")
    shutil.copy(PROGRAM, tmp_path)
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "main.go").write_text(GENERATED.code.replace(ADDRESS, str(api.base_url)))
    run(tmp_path, "go", "vet", "./...")
    assert run(tmp_path, "go", "run", "./page") == GENERATED.shown
    answers = [*map(json.loads, run(tmp_path, "go", "run", ".", str(api.base_url), calls_file).splitlines())]
    assert [name for name, _ in answers] == [call.operation for call in every_call]
    assert {status for _, status in answers} == {200, 201, 204}


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
