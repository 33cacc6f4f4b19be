"""The requests of a load test: one kind from flags, or a mix of several from a TOML file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

APIS = ("native", "v2")
ENCODINGS = ("json", "binary")
DTYPES = ("", "float16", "float32", "float64")  # "": the model's


class ScenarioError(ValueError):
    """The requests are invalid."""


@dataclass(frozen=True)
class RequestSpec:
    """One kind of request: to a block, with random tensors; or to ``path``, with the file ``body``.

    ``sizes`` maps symbols of the block's shapes to a size, or to a list of sizes, each of which is sent. ``shapes``
    maps required and optional inputs to a shape. ``share`` is the relative frequency among the requests. ``generate``
    is the number of tokens that a language model generates, as a stream.
    """

    block: str = "scaled_dot_product"
    share: float = 1
    api: str = "native"
    encoding: str = "json"
    dtype: str = ""
    sizes: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, Any] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    generate: int = 0
    name: str = ""
    path: str = ""
    body: Path | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, known in (("api", APIS), ("encoding", ENCODINGS), ("dtype", DTYPES)):
            if getattr(self, key) not in known:
                raise ScenarioError(f"{key}: expected {', '.join(filter(None, known))}, got {getattr(self, key)!r}")
        if not self.share > 0:
            raise ScenarioError(f"share: expected more than 0, got {self.share}")
        if (self.body is None) != (not self.path):
            raise ScenarioError("path and body must be given together")
        if self.generate < 0 or (self.generate and self.api != "native"):
            raise ScenarioError("generate: expected a whole number of at least 1, with the native API")
        for key, minimum in (("sizes", 1), ("shapes", 0)):
            for name, value in getattr(self, key).items():
                numbers = value if isinstance(value, list) else [value]
                if not numbers or not all(type(size) is int and size >= minimum for size in numbers):
                    raise ScenarioError(f"{key}: {name}: expected whole numbers, got {value!r}")

    @property
    def title(self) -> str:
        form = f"generate {self.generate}" if self.generate else f"{self.api} {self.encoding}"
        return self.name or (self.path if self.body else f"{self.block}, {form}")


def read(file: Path) -> list[RequestSpec]:
    """The requests of a scenario file: tables ``[[request]]`` with the fields of RequestSpec.

    The paths of bodies are relative to the file's folder.

    Raises:
        ScenarioError: the file does not exist or is not TOML, or a field is unknown or wrong.
    """
    try:
        document = tomllib.loads(file.read_text())
    except OSError as error:
        raise ScenarioError(f"--scenario {file}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ScenarioError(f"--scenario {file}: not valid TOML: {error}") from error
    tables = document.get("request")
    if set(document) != {"request"} or not isinstance(tables, list):
        raise ScenarioError(f"{file}: expected tables [[request]], got {', '.join(document) or 'nothing'}")
    return [_spec(table, f"{file}: request {i}", file.parent) for i, table in enumerate(tables, 1)]


def _spec(table: Mapping[str, Any], location: str, folder: Path) -> RequestSpec:
    hints = get_type_hints(RequestSpec)
    values = {**table, "body": folder / table["body"]} if isinstance(table.get("body"), str) else dict(table)
    for name, value in values.items():
        if name not in hints:
            known = ", ".join(field.name for field in fields(RequestSpec))
            raise ScenarioError(f"{location}: unknown {name!r}; expected {known}")
        kind = Path if name == "body" else getattr(hints[name], "__origin__", hints[name])
        if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool):
            raise ScenarioError(f"{location}: {name}: expected {kind.__name__}, got {value!r}")
    try:
        return RequestSpec(**values)
    except ScenarioError as error:
        raise ScenarioError(f"{location}: {error}") from error
