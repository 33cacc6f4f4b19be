"""The files for other load tools: Locust runs its own; k6's is run with k6's modules played by node."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCUSTFILE = ROOT / "deploy" / "locust" / "locustfile.py"
SCRIPT = ROOT / "deploy" / "k6" / "attention.js"

# k6's http.post over node's fetch, each exported function once.
PLAYED = """
import { pathToFileURL } from 'node:url';
import { readFileSync, writeFileSync } from 'node:fs';
globalThis.__ENV = { HEED_URL: process.argv[2], HEED_M: '4', HEED_D: '8' };
const [source, made] = process.argv.slice(3);
writeFileSync(made, `const posts = globalThis.posts = [];
const http = { post: (url, body, params) => { posts.push([url, body, params.headers]); return { status: 200 }; } };
const check = (answer, checks) => { for (const of of Object.values(checks)) if (!of(answer)) throw Error('check'); };
` + readFileSync(source, 'utf8').replace(/^import .*$/gm, ''));
const script = await import(pathToFileURL(made));
const ran = Object.values(script.options.scenarios).map((scenario) => script[scenario.exec]());
const answers = await Promise.all(globalThis.posts.map(async ([url, body, headers]) =>
  (await fetch(url, { method: 'POST', body, headers })).status));
console.log(JSON.stringify(answers));
"""


# Ends Locust's run when both endpoints have answered: on a busy machine a fixed time may be too short.
UNTIL_BOTH_ANSWERED = """
from locust import events

names = set()

@events.init.add_listener
def listen(environment, **_):
    @environment.events.request.add_listener
    def stop(name, **_):
        names.add(name)
        if len(names) == 2:
            environment.runner.quit()
"""


@pytest.mark.extended
def test_locust(client, tmp_path):
    host = str(client.base_url).rstrip("/")
    (tmp_path / "until.py").write_text(UNTIL_BOTH_ANSWERED)
    command = [sys.executable, "-m", "locust", "-f", f"{LOCUSTFILE},until.py", "--host", host, "--headless", "--json"]
    command += ["--users", "2", "--spawn-rate", "2", "--run-time", "40s", "--stop-timeout", "5", "--only-summary"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {row["name"]: row for row in json.loads(done.stdout[done.stdout.index("[") :])}
    assert found.keys() == {"/v1/attention/scaled_dot_product", "/v2/models/scaled_dot_product/infer"}
    for row in found.values():
        assert row["num_requests"] > 0
        assert row["num_failures"] == 0


@pytest.mark.extended
@pytest.mark.skipif(not shutil.which("node"), reason="no Node.js here: apt-get install nodejs")
def test_k6_script(client, tmp_path):
    """k6 is a program of its own and does not run here; the script's syntax and its requests are real."""
    (tmp_path / "play.mjs").write_text(PLAYED)
    command = ["node", "play.mjs", str(client.base_url).rstrip("/"), str(SCRIPT), str(tmp_path / "made.mjs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [200, 200]
