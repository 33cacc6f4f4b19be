"""One call of each operation of an OpenAPI document, with its own examples."""

from dataclasses import dataclass
from typing import Any

BLOCK = "dot_product"
LANGUAGE_MODEL = "gpt"
MEMORY = "{memory}"  # stands for the id of the memory that an earlier call stored
GENERATING = ("/generate", "/generate_stream")  # the ends of paths of operations of a language model
VALUES = {"block": BLOCK, "model": BLOCK, "version": 1, "memory": MEMORY}
LAST = ("DELETE", "/v2/repository/models/{model}/unload")  # other calls need what these remove


@dataclass(frozen=True)
class Call:
    """``operation`` is its operationId, ``path`` a template for ``arguments``."""

    operation: str
    tag: str
    method: str
    path: str
    arguments: dict[str, Any]
    body: Any  # None: it takes none
    schema: str  # of the body
    is_text: bool  # the answer


def calls(document: dict[str, Any]) -> list[Call]:
    """In an order in which all succeed."""
    found = [
        _call(document, path, method.upper(), operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    return sorted(found, key=lambda call: call.method in LAST or call.path in LAST)


def _call(document: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> Call:
    names = [of["name"] for of in operation.get("parameters", ()) if of["in"] == "path"]
    body, schema = None, ""
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        body = content["example"] if "example" in content else content["examples"][BLOCK]["value"]
        schema = content["schema"]["$ref"].rpartition("/")[2]
    values = VALUES | ({"model": LANGUAGE_MODEL} if path.endswith(GENERATING) else {})
    arguments = {name: values[name] for name in names}
    answers = next(of for status, of in operation["responses"].items() if status.startswith("2")).get("content", {})
    is_text = any(kind.startswith("text/") for kind in answers)
    return Call(operation["operationId"], operation["tags"][0], method, path, arguments, body, schema, is_text)
