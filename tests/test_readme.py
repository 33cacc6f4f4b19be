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
    """Each row has a workload's ratios to Triton, rounded, of the report that the page of benchmarks names."""
    rows = re.findall(r"^\| `.*? \| ([\d.]+ / [\d.]+ / [\d.]+) \| ([\d.]+ / [\d.]+ / [\d.]+) \|$", README, re.MULTILINE)
    assert len(rows) == 3
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    report = (ROOT / re.search(r"benchmarks/results/\S+\.md", page)[0]).read_text()
    header, _, *lines = re.search(r"^\| cell \|.*?\n\n", report.partition("each server's")[2], re.M | re.S)[
        0
    ].splitlines()
    triton = header.split("|").index(" triton ")
    ratios = {line.split("|")[1].strip(): line.split("|")[triton].strip(" *") for line in lines if line}
    for number, formats in enumerate(rows, 1):
        for format, shown in zip(("json", "binary"), formats, strict=True):
            for connections, text in zip((1, 8, 64), shown.split(" / "), strict=True):
                measured = float(ratios[f"W{number}/{format}/{connections}"].split(" ")[0].rstrip("†"))
                assert abs(float(text) - measured) <= 0.51 * 10 ** -len(text.partition(".")[2])


def test_links():
    for link in re.findall(r"\]\(([^):#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_tree():
    tree = re.search(r"```text\nmodels/.*?```", README, re.DOTALL)[0]
    said = re.findall(r"^(\w+/|\w+\.py) ", tree, re.MULTILINE)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {name.partition("/")[0] + "/" for name in tracked if "/" in name and not name.startswith(".")}
    assert set(said) == folders | {"heed.py"}
