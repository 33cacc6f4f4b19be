"""Markdown tables of the settings and the metrics."""

from collections.abc import Iterable, Sequence

from service.settings import Settings
from service.telemetry.families import FAMILIES


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of one line a row. ``|`` and ``<`` are escaped in cells that do not begin with code."""
    lines = [head, ["---"] * len(head), *([_escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(cell: str) -> str:
    return cell if cell.startswith("`") else cell.replace("<", "&lt;").replace("|", "\\|")


def settings() -> str:
    """Every setting by its variable, with its default and its meaning."""
    return table(
        ("variable", "default", "meaning"),
        (
            (
                f"`HEED_{name.upper()}`",
                "" if field.default in ("", None) else f"`{field.default}`",
                field.description or "",
            )
            for name, field in Settings.model_fields.items()
        ),
    )


def metrics() -> str:
    """Every metric family by its exported name, with its kind, its labels and its help text."""
    return table(
        ("metric", "kind", "labels", "meaning"),
        (
            (
                f"`{name}{'_total' * (family.kind == 'counter')}`",
                family.kind,
                ", ".join(f"`{label}`" for label in family.labels),
                family.help,
            )
            for name, family in FAMILIES.items()
        ),
    )
