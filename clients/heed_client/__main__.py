"""``heed run``: run a block of a server on tensors from files, save its outputs, draw its weights."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from heed_client.answer import Answer
from heed_client.block import Block
from heed_client.client import Client
from heed_client.command import files
from heed_client.command.arguments import FLAGS, NUMBERS, OPTIONS, TENSORS, parser
from heed_client.command.files import FileError
from heed_client.command.labels import pool_labels, select_labels, weights_size
from heed_client.command.matrix import Matrices, expanded, matrices
from heed_client.command.summary import summary
from heed_client.errors import HeedError, Problem
from heed_options import clean_end

TEXTS = ("text", "text_pair", "text_target", "truncation")
INDICES = re.compile(r"[-+\d:,\s]*\d[-+\d:,\s]*|:+")  # a selection, and no name of a FILE
MEMORY_ID = re.compile(r"[\w-]{24}")  # as the server makes them


class UsageError(Exception):
    """An argument is wrong; the message begins with its name."""


@clean_end
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 2 for a wrong argument or request, 1 if the server fails."""
    options = parser().parse_args(arguments)
    try:
        access = {"cacert": options.cacert, "verify": not options.insecure}
        with Client(options.url, api_key=options.api_key, timeout=options.timeout, **access) as heed:
            if options.describe:
                _describe(heed.describe(options.block), options.json)
            else:
                _run(heed, options)
    except (UsageError, FileError, ValueError, TypeError) as error:
        print(f"heed run: {error}", file=sys.stderr)
        return 2
    except Problem as error:
        print(f"heed run: {_detail(error)} ({error.status} {error.title})", file=sys.stderr)
        return 2 if error.status < 500 else 1
    except HeedError as error:
        print(f"heed run: --url: {error}", file=sys.stderr)
        return 1
    return 0


def _run(heed: Client, options: argparse.Namespace) -> None:
    formats = [name for name in ("show", "plot", "html") if getattr(options, name)]
    inputs = _inputs(options)
    if formats and (options.weights_top_k or inputs.get("weights_top_k")):
        raise UsageError(f"--{formats[0]}: needs all weights, not only those of --weights-top-k")
    queries, keys = _labels("--labels", options.labels), _labels("--key-labels", options.key_labels)
    answer = heed.attend(options.block, **inputs)
    tokens = _tokens(answer)
    queries = queries or tokens
    if formats and "weights" not in answer:
        raise UsageError(f"--{formats[0]}: needs weights among --outputs")
    is_summary = not (formats or options.out or options.json) and sys.stdout.isatty()
    selection = None
    if formats or (is_summary and isinstance(answer.get("weights"), np.ndarray)):
        try:
            given = inputs if "text" not in inputs else {**inputs, **_ids(answer)}
            rows, columns = _shown(heed, options.block, given, queries, keys)
            selection = matrices(answer.weights, options.at, rows, columns, _indices(inputs))
        except ValueError as error:
            raise UsageError(f"--{error}") from None
    if selection is not None:
        for name in formats:
            _draw(
                name,
                getattr(options, name),
                selection,
                lambda: answer.page(options.at, rows, columns, _about(heed.describe(options.block), inputs, tokens)),
            )
    others = {"tokens": tokens, "next_tokens": getattr(answer, "next_tokens", [])}
    others = {name: value for name, value in others.items() if value}
    if is_summary:
        print(summary(answer, selection, others))
        return
    out = options.out or ("" if formats and not options.json else "-")
    if out:
        files.write(out, answer, others)
    if "next_tokens" in others and not out.endswith(("-", ".json")):
        print(json.dumps(others["next_tokens"]))


def _about(block: Block, inputs: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    """Where the weights are from, as a page says it."""
    options = [f"{name} = {json.dumps(inputs[name])}" for name in block.parameters if name in inputs]
    texts = {name.replace("_", " "): str(inputs.get(name) or "") for name in TEXTS[:3]}
    return {
        "model": f"{block.block}, version {block.version}",
        "weights": block.weights if block.weights != "none" else "",
        **texts,
        "input": f"{len(tokens)} tokens" if tokens else "",
        "options": ", ".join(options),
    }


def _ids(answer: Answer) -> dict[str, Any]:
    """The token ids of a call with a text."""
    names = ("input_ids", "decoder_input_ids")
    return {name: getattr(answer, name) for name in names if hasattr(answer, name)}


def _shown(
    heed: Client, block: str, inputs: Mapping[str, Any], queries: Sequence[str], keys: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """The labels of the rows and columns of the weights, of which some may be selected or pooled to cells."""
    if inputs.get("queries") is None and not inputs.get("weights_pool"):
        return queries, keys
    m, n = weights_size(heed.describe(block), inputs)
    keys = keys or (queries if m == n else ())
    rows = select_labels(queries or [str(place) for place in range(m)], inputs.get("queries"))
    columns = keys or [str(place) for place in range(n)]
    k = inputs.get("weights_pool")
    return (pool_labels(rows, k), pool_labels(columns, k)) if k else (rows, columns)


def _draw(format: str, path: Any, matrices: Matrices, page: Callable[[], str]) -> None:
    """Draw the heat maps. Modules are imported here, because the libraries that they need are optional."""
    try:
        if format == "show":
            console = import_module("rich.console").Console(highlight=False)
            import_module("heed_client.command.show").show(matrices, console)
        elif format == "plot":
            import_module("heed_client.command.plot").plot(matrices, path)
        else:
            Path(path).write_text(page(), encoding="utf-8")
        if format != "show":
            count, m, n = matrices.weights.shape
            what = f"{count} matrices" if count > 1 else matrices.names[0]
            print(f"wrote {path}: {what} of {m} queries and {n} keys", file=sys.stderr)
    except ModuleNotFoundError as missing:
        raise UsageError(f"--{format}: needs the package {missing.name}: pip install {missing.name}") from None
    except OSError as error:
        raise UsageError(f"--{format} {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--{format} {path}: {error}") from None


def _inputs(options: argparse.Namespace) -> dict[str, Any]:
    """The tensors and parameters of the flags, which override those of the ``--request`` file."""
    paths = {name: path for name in TENSORS if (path := getattr(options, name))} | dict(options.tensor)
    if options.layers and not INDICES.fullmatch(options.layers):
        paths["layers"] = options.layers
    all_paths = [*paths.values(), *filter(None, (options.request, options.labels, options.key_labels))]
    if sum(path.partition(":")[0] == "-" for path in all_paths) > 1:
        raise UsageError("only one FILE can be standard input (-)")
    inputs: dict[str, Any] = {}
    if options.request:
        content = _read("--request", options.request)
        if not isinstance(content, dict):
            raise UsageError(f"--request {options.request}: expected tensors by name, got one without a name")
        inputs |= content
    for name, path in paths.items():
        if name == "memory" and MEMORY_ID.fullmatch(path) and not Path(path).exists():
            inputs[name] = path
            continue
        try:
            inputs[name] = files.pick(path, name)
        except FileError as error:
            raise UsageError(f"--{name.replace('_', '-')} {error}") from None
    flags = {
        name: getattr(options, name)
        for name in (*TEXTS, *FLAGS, "next_tokens", "outputs", "binary", *OPTIONS, *NUMBERS)
    }
    flags |= {"layers": options.layers if "layers" not in paths else None} | dict(options.set)
    for name in TEXTS:
        if isinstance(flags[name], list) and len(flags[name]) == 1:
            (flags[name],) = flags[name]  # one text, whose answer has no batch axis
    return inputs | {name: value for name, value in flags.items() if value is not None}


def _tokens(answer: Answer) -> list[str]:
    """The tokens of a call with one text: of the decoder if the model has one, as its weights are."""
    tokens: list[str] = getattr(answer, "target_tokens", None) or getattr(answer, "tokens", None) or []
    return tokens if all(isinstance(token, str) for token in tokens) else []


def _labels(flag: str, path: str | None) -> list[str]:
    if path is None:
        return []
    labels = _read(flag, path)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UsageError(f"{flag} {path}: expected a JSON list of texts")
    return labels


def _read(flag: str, path: str) -> Any:
    try:
        return files.read(path)
    except FileError as error:
        raise UsageError(f"{flag} {error}") from None


def _indices(inputs: Mapping[str, Any]) -> dict[str, list[int]]:
    """The layers and heads that are selected by non-negative numbers and ranges: what heat maps call them."""
    chosen = {}
    for axis in ("layers", "heads"):
        numbers = expanded(inputs.get(axis))
        is_reduced = inputs.get(f"reduce_{axis}") or (axis == "heads" and inputs.get("average_attn_weights"))
        if numbers and not is_reduced:
            chosen[axis] = numbers
    return chosen


def _describe(block: Block, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(block), indent=2, ensure_ascii=False))
        return
    lines = [f"{block.block}, version {block.version}: {block.title}", block.description, block.formula, block.source]
    sections = {"inputs": block.inputs, "outputs": block.outputs, "outputs on request": block.derived}
    for title, tensors in sections.items():
        lines += ["", title]
        for tensor in tensors.values():
            shape, required = ", ".join(map(str, tensor.shape)), ", required" if tensor.required else ""
            lines += [f"  {tensor.name} [{shape}] {tensor.dtype}{required}", f"      {tensor.description}"]
    if block.parameters:
        lines += ["", "parameters"]
    for parameter in block.parameters.values():
        default = "" if parameter.default is None else f" = {json.dumps(parameter.default)}"
        lines += [f"  {parameter.name} {parameter.dtype}{default}", f"      {parameter.description}"]
    print("\n".join(lines))


def _detail(error: Problem) -> str:
    """The server's message, with the name of the flag instead of the field."""
    if error.field is None:
        return error.detail
    return f"--{error.field.replace('_', '-')}: {error.detail.removeprefix(f'{error.field}: ')}"


if __name__ == "__main__":
    sys.exit(main())
