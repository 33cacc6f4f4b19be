"""The files by which a host of git repositories and its users build, test, cite and report: their schemas take them,
and they call what the Makefile has."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted(set((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})
FILES = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": FORMS,
    "github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}
MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("schema", FILES)
def test_the_schema_takes_the_files(schema):
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *FILES[schema]]
    checked = subprocess.run(check, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_citation_has_the_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version("heed-attention")


@pytest.mark.parametrize("file", [*WORKFLOWS, ROOT / "CONTRIBUTING.md"], ids=lambda file: file.name)
def test_the_makefile_has_each_target(file):
    lines = re.findall(r"(?:run: |^)make (.+)", file.read_text(), re.MULTILINE)
    targets = {target for line in lines for target in line.split()}
    assert targets
    assert targets <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_a_commit_is_checked_as_by_make_lint():
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1]
    (hooks,) = (repo["hooks"] for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"])
    commands = [hook["entry"].replace(".venv/bin/", "").replace(" --force-exclude", "") for hook in hooks]
    assert commands == [line.strip().replace("$(BIN)/", "").removesuffix(" .") for line in recipe.splitlines()]
    (npm,) = (hook["files"] for hook in hooks if hook["entry"].startswith("npm "))
    for file in ("tsconfig.json", "package.json", "tests/generated/typescript/call_all.ts", "a/view.js", "b.yml"):
        assert re.search(npm, file), file
    assert not re.search(npm, "docs/v2.md")
