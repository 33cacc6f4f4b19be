"""What is asked: one kind of request, from flags; or a mix of several, from a TOML file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

FACES = ("v1", "v2")
ENCODINGS = ("json", "binary")
DTYPES = ("", "float16", "float32", "float64")  # the first: as the model says


class ScenarioError(ValueError):
    """What is asked makes no sense."""


@dataclass(frozen=True)
class Ask:
    """One kind of request: to a block, with tensors made for it, or ``body`` as it is, to ``path``.

    ``sizes`` gives the symbols of the block's shapes one size or several, each of which is then asked; ``shapes`` gives
    an input its shape, optional inputs too. ``share`` is how often it is asked, beside the others'.
    """

    block: str = "scaled_dot_product"
    share: float = 1
    face: str = "v1"
    encoding: str = "json"
    dtype: str = ""
    sizes: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, Any] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    path: str = ""
    body: Path | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, known in (("face", FACES), ("encoding", ENCODINGS), ("dtype", DTYPES)):
            if getattr(self, what) not in known:
                raise ScenarioError(f"{what}: there are {', '.join(filter(None, known))}, got {getattr(self, what)!r}")
        if not self.share > 0:
            raise ScenarioError(f"share: expected more than 0, got {self.share}")
        if (self.body is None) != (not self.path):
            raise ScenarioError("path and body come together")
        for what, least in (("sizes", 1), ("shapes", 0)):
            for name, value in getattr(self, what).items():
                several = value if isinstance(value, list) else [value]
                if not several or not all(type(size) is int and size >= least for size in several):
                    raise ScenarioError(f"{what}: {name}: expected whole numbers, got {value!r}")

    @property
    def title(self) -> str:
        return self.name or (self.path if self.body else f"{self.block}, {self.face} {self.encoding}")


def read(file: Path) -> list[Ask]:
    """The requests of a scenario file: tables ``[[request]]`` with the fields of Ask; bodies lie beside the file.

    Raises:
        ScenarioError: no such file, not TOML, or a field that is unknown or wrong.
    """
    try:
        found = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ScenarioError(f"{file}: {error}") from error
    tables = found.get("request")
    if set(found) != {"request"} or not isinstance(tables, list):
        raise ScenarioError(f"{file}: expected tables [[request]], got {', '.join(found) or 'nothing'}")
    return [_ask(table, f"{file}: request {i}", file.parent) for i, table in enumerate(tables, 1)]


def _ask(table: Mapping[str, Any], where: str, beside: Path) -> Ask:
    hints = get_type_hints(Ask)
    given = {**table, "body": beside / table["body"]} if isinstance(table.get("body"), str) else dict(table)
    for name, value in given.items():
        if name not in hints:
            raise ScenarioError(f"{where}: unknown {name!r}; there are {', '.join(each.name for each in fields(Ask))}")
        kind = Path if name == "body" else getattr(hints[name], "__origin__", hints[name])
        if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool):
            raise ScenarioError(f"{where}: {name}: expected {kind.__name__}, got {value!r}")
    try:
        return Ask(**given)
    except ScenarioError as error:
        raise ScenarioError(f"{where}: {error}") from error
