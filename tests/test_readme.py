"""The README is true: its commands run and answer what it shows, its settings and its tree are the real ones."""

import os
import re
import subprocess
import sys

import pytest

from service.settings import Settings
from service.telemetry.families import FAMILIES
from tests.support.attending import MODULES
from tests.support.readme import CLIENT, CURLS, README, ROOT

IMPORTING = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'clients'}"}
RUNS = re.findall(r"```sh\n(heed run[^`]*)```\n\n```text\n([^`]*)```", README)
SCRIPTS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README + CLIENT, re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), CURLS)
def test_commands_answer_what_is_shown(client, command, shown):
    command = command.replace("http://127.0.0.1:8000", str(client.base_url).rstrip("/"))
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == shown.strip()


@pytest.mark.parametrize(("command", "shown"), RUNS)
def test_heed_run_answers_what_is_shown(client, command, shown):
    done = subprocess.run(
        ["bash", "-c", command.replace("heed", f"{sys.executable} -m heed", 1)],
        env=IMPORTING | {"HEED_URL": str(client.base_url)}, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == shown.strip()


@pytest.mark.parametrize(("script", "shown"), SCRIPTS)
def test_python_answers_what_is_shown(client, script, shown):
    script = script.replace("127.0.0.1:8000", f"{client.base_url.host}:{client.base_url.port}")
    done = subprocess.run([sys.executable, "-c", script], env=IMPORTING, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == shown.strip()


def test_all_were_found():
    assert (len(CURLS), len(RUNS), len(SCRIPTS)) == (2, 1, 3)


def test_settings():
    table = re.findall(r"^\| `HEED_(\w+)` \| `(.*?)` \| (.*) \|$", README, re.MULTILINE)
    real = [(name.upper(), str(field.default), field.description) for name, field in Settings.model_fields.items()]
    assert table == real


def test_metrics():
    table = re.search(r"\| metric \| labels \|.*?\n(.*?)\n\n", README, re.DOTALL)[1]
    said = re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in table.splitlines()))
    assert sorted(said) == sorted(name + "_total" * (of.kind == "counter") for name, of in FAMILIES.items())


def test_blocks():
    table = re.search(r"\| block \| formula \|\n(.*?)\n\n", README, re.DOTALL)[1]
    assert re.findall(r"`([a-z_]+)`", re.sub(r"\|[^|]*\|$", "", table, flags=re.MULTILINE)) == list(MODULES)


def test_tree():
    tree = re.search(r"```text\nmodels/.*?```", README, re.DOTALL)[0]
    said = re.findall(r"^(\w+/|\w+\.py) ", tree, re.MULTILINE)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {name.partition("/")[0] + "/" for name in tracked if "/" in name and not name.startswith(".")}
    assert set(said) == folders | {"heed.py"}


def test_targets():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
