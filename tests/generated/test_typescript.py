"""openapi-typescript makes types of the document, with which tsc compiles every call of openapi-fetch; all succeed."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.documents import ADDRESS, EXAMPLES
from tests.support.operations import MEMORY, Call

HERE = Path(__file__).parent / "typescript"
MODULES = Path(__file__).parents[2] / "node_modules"
pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(not (HERE / "node_modules").exists(), reason="no node_modules here: npm ci"),
]
ATTEND, TEXT = (example for example in EXAMPLES if example.language == "ts")
STRICT = ["--strict", "--skipLibCheck", "false", "--module", "nodenext", "--target", "es2022"]
HEAD = """import type { Client } from "openapi-fetch";
import type { paths } from "./heed.js";

type Made = Promise<{ response: Response; data?: unknown }>;
export function calls(client: Client<paths>): [string, (memory: string) => Made][] {
  return [
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A project in which the packages are installed."""
    modules = tmp_path / "node_modules"
    modules.mkdir()
    (modules / "openapi-fetch").symlink_to(MODULES / "openapi-fetch")
    (modules / ".bin").symlink_to(HERE / "node_modules" / ".bin")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    return tmp_path


def test_the_page(client, folder):
    assert run_page(folder, str(client.base_url), ATTEND.code).endswith(ATTEND.shown)


def test_the_text_of_the_page(shared_server, generating, folder):
    """With a small model in place of minilm, whose tokens and weights are others."""
    shown = run_page(folder, shared_server(generating / "models").url, TEXT.code.replace("minilm", "gpt"))
    numbers = [float(number) for number in re.findall(r"\b\d\.\d\d\b", shown.splitlines()[-1])]
    assert sum(numbers) == pytest.approx(1, abs=0.1)


def run_page(folder: Path, url: str, code: str) -> str:
    (commands,) = (example.code for example in EXAMPLES if "npx" in example.code)
    (folder / "attend.ts").write_text(code.replace(ADDRESS, url))
    after_install = [line for line in commands.replace(ADDRESS, url).splitlines() if line.startswith("npx")]
    return run(folder, "bash", "-ec", "\n".join(after_install))


def test_every_call(api, document, every_call, folder):
    (folder / "call_all.ts").write_text((HERE / "call_all.ts").read_text())
    (folder / "calls.ts").write_text(HEAD + "".join(map(written, every_call)) + "  ];\n}\n")
    run(folder, "npx", "openapi-typescript", document, "--default-non-nullable=false", "--output", "heed.d.ts")
    run(folder, "npx", "tsc", *STRICT, "call_all.ts", "heed.d.ts")
    first, *answers = map(json.loads, run(folder, "node", "call_all.js", str(api.base_url)).splitlines())
    assert first == [[[2, 0]], [[2, 0]], "key"]
    assert [name for name, _ in answers] == [call.operation for call in every_call]
    assert {status for _, status in answers} == {200, 201, 204}


def written(call: Call) -> str:
    """One call as an element of the list in calls.ts."""
    path = json.dumps(call.arguments).replace(json.dumps(MEMORY), "memory")
    options = [
        *([f"params: {{ path: {path} }}"] if call.arguments else []),
        *([f"body: {json.dumps(call.body)}"] if call.body is not None else []),
        *(['parseAs: "text"'] if call.is_text else []),
    ]
    given = f", {{ {', '.join(options)} }}" if options else ""
    return f'    ["{call.operation}", (memory) => client.{call.method}("{call.path}"{given})],\n'


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
