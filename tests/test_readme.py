"""The README is short and true: what it shows, counts and links to is there. tests/export/hf runs its commands."""

import re
import subprocess
from itertools import product

from tests.support.attending import MODULES
from tests.support.documents import README, ROOT


def test_it_is_short():
    assert len(README.splitlines()) <= 120


def test_the_number_of_blocks():
    assert int(re.search(r"(\d+) \[blocks\]", README)[1]) == len(MODULES)


PAGE = (ROOT / "docs" / "benchmarks.md").read_text()


def table_of_report(title: str) -> dict[str, dict[str, str]]:
    """The table below ``title`` of the report that the page of benchmarks names: cell -> server -> its text."""
    report = (ROOT / re.search(r"benchmarks/results/\S+\.md", PAGE)[0]).read_text()
    table = report.partition(f"## {title}\n")[2].partition("\n## ")[0]
    header, _, *rows = ([cell.strip() for cell in row.split("|")] for row in table.splitlines() if row.startswith("|"))
    return {row[1]: dict(zip(header, row, strict=True)) for row in rows}


def median_of(text: str) -> str:
    """That of ``**1,655 (1,530 to 1,702)†**``."""
    return text.strip("*").partition(" ")[0]


def test_its_figures_are_those_of_the_report():
    """Each row has a workload's ratios to Triton, rounded."""
    rows = re.findall(r"^\| `.*? \| ([\d.]+ / [\d.]+ / [\d.]+) \| ([\d.]+ / [\d.]+ / [\d.]+) \|$", README, re.MULTILINE)
    assert len(rows) == 3
    ratios = table_of_report("Heed's requests a second / each server's")
    for number, formats in enumerate(rows, 1):
        for format, shown in zip(("json", "binary"), formats, strict=True):
            for connections, text in zip((1, 8, 64), shown.split(" / "), strict=True):
                measured = float(median_of(ratios[f"W{number}/{format}/{connections}"]["triton"]))
                assert abs(float(text) - measured) <= 0.51 * 10 ** -len(text.partition(".")[2])


def test_the_rates_of_the_page_are_those_of_the_report():
    rates = table_of_report("Requests a second")
    rows = re.findall(r"^\|(?: (W\d): .*?)? \| (\d+) \| (.*?) \| (.*?) \| (.*?) \| (.*?) ?\|$", PAGE, re.MULTILINE)
    assert len(rows) == 12
    workload, compared = "", 0
    for name, connections, *figures in rows:
        workload = name or workload
        for figure, (format, server) in zip(figures, product(("json", "binary"), ("heed", "triton")), strict=True):
            if rate := re.match(r"\**([\d,.]+)\**;", figure):
                assert rate[1] == median_of(rates[f"{workload}/{format}/{connections}"][server])
                compared += 1
    assert compared == 48


def test_links():
    for link in re.findall(r"\]\(([^):#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_tree():
    tree = re.search(r"```text\nmodels/.*?```", README, re.DOTALL)[0]
    said = re.findall(r"^(\w+/|\w+\.py) ", tree, re.MULTILINE)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {name.partition("/")[0] + "/" for name in tracked if "/" in name and not name.startswith(".")}
    assert set(said) == folders | {"heed.py"}
