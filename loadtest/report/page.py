"""The report of a load test: one self-contained HTML file."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtest.report import plots
from loadtest.report.terminal import format_number


def render(document: dict[str, Any]) -> str:
    """The HTML page of ``document``, which has the content of the JSON file."""
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = format_number
    template = environment.get_template("page.html")
    return template.render(**document, plots=plots.render(document["results"]), script=plots.SCRIPT())
