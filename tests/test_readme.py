"""The README is short and true: what it shows, counts and links to is there. tests/export/hf runs its commands."""

import re
import subprocess

from tests.support.attending import MODULES
from tests.support.documents import README, ROOT


def test_it_is_short():
    assert len(README.splitlines()) <= 120


def test_the_number_of_blocks():
    assert int(re.search(r"(\d+) \[blocks\]", README)[1]) == len(MODULES)


def test_its_figures_are_those_of_the_report():
    """Each row has the medians of one line of the report, as the page of benchmarks, which names the report, has it."""
    rows = re.findall(r"^\| (`.*?) \| ([\d,.]+) \| ([\d,.]+) \| ([\d,.]+) \| ([\d,.]+) \|$", README, re.MULTILINE)
    assert len(rows) == 3
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    report = (ROOT / re.search(r"`(benchmarks/results/\S+\.md)`", page)[1]).read_text()
    rates = report.partition("## Requests a second")[2]
    for name, *figures in rows:
        assert f"| {name} | {' | '.join(figures)} | " in page
        in_order = r".*\| ".join(map(re.escape, figures))
        assert re.search(rf"^\| W\d/json/1 \| {in_order} ", rates, re.MULTILINE), name


def test_links():
    for link in re.findall(r"\]\(([^):#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_tree():
    tree = re.search(r"```text\nmodels/.*?```", README, re.DOTALL)[0]
    said = re.findall(r"^(\w+/|\w+\.py) ", tree, re.MULTILINE)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {name.partition("/")[0] + "/" for name in tracked if "/" in name and not name.startswith(".")}
    assert set(said) == folders | {"heed.py"}
