"""``heed attend``: run a block of a server on tensors from files; write its outputs, look at its weights."""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from httpx import InvalidURL

from heed_client import files
from heed_client.arguments import NUMBERS, TENSORS, parser
from heed_client.block import Block
from heed_client.client import Client
from heed_client.errors import HeedError, Problem
from heed_client.files import FileError
from heed_client.matrix import Matrices, matrices


class Wrong(Exception):
    """An argument that cannot be followed; the message begins with its name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the block; answers the exit status: 2 for a wrong argument or request, 1 for a server that cannot."""
    options = parser().parse_args(arguments)
    try:
        with Client(options.url, api_key=options.api_key, timeout=options.timeout) as heed:
            if options.describe:
                _describe(heed.describe(options.block))
            else:
                _attend(heed, options)
    except (Wrong, FileError, ValueError, TypeError) as error:
        print(f"heed attend: {error}", file=sys.stderr)
        return 2
    except Problem as error:
        print(f"heed attend: {_blame(error)} ({error.status} {error.title})", file=sys.stderr)
        return 2 if error.status < 500 else 1
    except (HeedError, InvalidURL) as error:
        print(f"heed attend: --url: {error}", file=sys.stderr)
        return 1
    return 0


def _attend(heed: Client, options: argparse.Namespace) -> None:
    looks = [name for name in ("show", "plot", "html") if getattr(options, name)]
    given = _given(options)
    if looks and (options.weights_top_k or given.get("weights_top_k")):
        raise Wrong(f"--{looks[0]}: needs all weights, not those of --weights-top-k alone")
    queries, keys = _words("--labels", options.labels), _words("--key-labels", options.key_labels)
    answer = heed.attend(options.block, **given)
    if looks and "weights" not in answer:
        raise Wrong(f"--{looks[0]}: needs weights among --outputs")
    if looks:
        try:
            found = matrices(answer.weights, options.at, queries, keys)
        except ValueError as error:
            raise Wrong(f"--{error}") from None
        for name in looks:
            _look(name, getattr(options, name), found, options.block)
    if options.out or not looks:
        files.write(options.out or "-", answer)


def _look(name: str, where: Any, found: Matrices, block: str) -> None:
    """Draw the heat maps; each way imports what it needs, as a server machine may lack it."""
    try:
        if name == "show":
            console = import_module("rich.console").Console(highlight=False)
            import_module("heed_client.show").show(found, console)
        elif name == "plot":
            import_module("heed_client.plot").plot(found, where)
        else:
            import_module("heed_client.page").page(found, f"Attention weights of {block}", where)
    except ModuleNotFoundError as missing:
        raise Wrong(f"--{name}: needs the package {missing.name}") from None
    except OSError as error:
        raise Wrong(f"--{name} {where}: {error.strerror}") from None
    except ValueError as error:
        raise Wrong(f"--{name} {where}: {error}") from None


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The tensors and parameters: those of ``--request``, those named by flags in their place."""
    chosen = {name: path for name in TENSORS if (path := getattr(options, name))} | dict(options.tensor)
    paths = [*chosen.values(), *filter(None, (options.request, options.labels, options.key_labels))]
    if sum(path.partition(":")[0] == "-" for path in paths) > 1:
        raise Wrong("only one FILE can be standard input (-)")
    given: dict[str, Any] = {}
    if options.request:
        held = _read("--request", options.request)
        if not isinstance(held, dict):
            raise Wrong(f"--request {options.request}: expected tensors by name, got one without")
        given |= held
    for name, path in chosen.items():
        try:
            given[name] = files.pick(path, name)
        except FileError as error:
            raise Wrong(f"--{name.replace('_', '-')} {error}") from None
    flags = {name: getattr(options, name) for name in ("outputs", "is_causal", "average_attn_weights", *NUMBERS)}
    flags |= {"weights_top_k": options.weights_top_k, "binary": options.binary} | dict(options.set)
    return given | {name: value for name, value in flags.items() if value is not None}


def _words(flag: str, path: str | None) -> list[str]:
    if path is None:
        return []
    words = _read(flag, path)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Wrong(f"{flag} {path}: expected a JSON list of texts")
    return words


def _read(flag: str, path: str) -> Any:
    try:
        return files.read(path)
    except FileError as error:
        raise Wrong(f"{flag} {error}") from None


def _describe(block: Block) -> None:
    lines = [f"{block.block}, version {block.version}: {block.title}", block.description, block.formula, block.source]
    for title, tensors in (("inputs", block.inputs), ("outputs", block.outputs)):
        lines += ["", title]
        for one in tensors.values():
            must = ", required" if one.required else ""
            lines += [f"  {one.name} [{', '.join(map(str, one.shape))}] {one.dtype}{must}", f"      {one.description}"]
    if block.parameters:
        lines += ["", "parameters"]
    for of in block.parameters.values():
        default = "" if of.default is None else f" = {json.dumps(of.default)}"
        lines += [f"  {of.name} {of.dtype}{default}", f"      {of.description}"]
    print("\n".join(lines))


def _blame(error: Problem) -> str:
    """What the server says, with the flag in the place of the field's name."""
    if error.field is None:
        return error.detail
    return f"--{error.field.replace('_', '-')}: {error.detail.removeprefix(f'{error.field}: ')}"


if __name__ == "__main__":
    sys.exit(main())
