"""The report: one HTML file, from what the JSON file holds, that needs nothing from elsewhere."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtest import plots
from loadtest.terminal import short


def render(document: dict[str, Any]) -> str:
    """The page."""
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["short"] = short
    template = environment.get_template("report.html")
    return template.render(**document, plots=plots.all_of(document["results"]), script=plots.SCRIPT())
