"""The summary that ``heed run`` prints on a terminal in place of all numbers: shapes, ranges, and largest weights."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from heed_client.answer import Quantized, TopK
from heed_client.command.matrix import Matrices, Matrix

LARGEST = 8  # weights
HINT = "All numbers: --json, --out FILE, or a pipe. Heat maps: --show, --plot FILE, --html FILE."


def summary(
    outputs: Mapping[str, Any],
    selection: Matrices | None,
    others: Mapping[str, Any],
    differences: Sequence[Mapping[str, Any]] = (),
) -> str:
    """A line for each output, and the largest weights of ``selection``, with the labels of their queries and keys.

    ``differences`` are metrics of a run with interventions and of the one without.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, output in outputs.items():
        parts = output._asdict() if isinstance(output, TopK) else {"": output}
        for part, array in parts.items():
            levels = array.dequantized() if isinstance(array, Quantized) else array
            arrays[f"{name} {part}".strip()] = np.asarray(levels)
    rows = [(name, str(list(array.shape)), array.dtype.name, _range(array)) for name, array in arrays.items()]
    next_tokens = others.get("next_tokens", [])
    lists = {name: values for name, values in others.items() if values is not next_tokens}
    rows += [(name, str([len(values)]), "list", _shortened(values)) for name, values in lists.items()]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:3]]
    lines = ["  ".join([*map(str.ljust, row, widths), row[3]]) for row in rows]
    lines += _next_tokens(next_tokens)
    lines += ["", *map(_difference, differences)] if differences else []
    if selection is not None and any(matrix.weights.size for matrix in selection.all):
        lines += ["", *_largest(selection)]
    return "\n".join([*lines, "", HINT])


def _difference(found: Mapping[str, Any]) -> str:
    """A metric without the interventions, and with them; lists have a number for each text."""
    metric = found["metric"] if isinstance(found["metric"], str) else json.dumps(found["metric"], ensure_ascii=False)
    before, after = (
        ", ".join(_number(one) for one in (number if isinstance(number, list) else [number]))
        for number in (found["unchanged"], found["changed"])
    )
    return f"{metric}: {before} -> {after}"


def _range(array: np.ndarray) -> str:
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    if not finite.size:
        return "no finite number" if array.size else "empty"
    masked = array.size - finite.size
    note = f", and {masked} of -infinity (masked)" if masked else ""
    return f"{_number(finite.min())} to {_number(finite.max())}{note}"


def _number(value: Any) -> str:
    return f"{value:.4g}"


def _shortened(values: Sequence[Any]) -> str:
    text = " ".join(map(str, values))
    return text if len(text) <= 60 else f"{text[:59]}…"


def _next_tokens(found: Sequence[Any]) -> Iterator[str]:
    """A table of probabilities, tokens and ids for each text; ``found`` is a list for each of several texts."""
    is_batch = bool(found) and isinstance(found[0], list)
    for number, tokens in enumerate(found if is_batch else [found] if found else []):
        yield ""
        yield f"the next token of text {number}" if is_batch else "the next token"
        for token in tokens:
            text = "(no text)" if token["token"] is None else json.dumps(token["token"], ensure_ascii=False)
            yield f"  {token['probability']:.3f}  {text}  (id {token['id']})"


def _largest(selection: Matrices) -> list[str]:
    """The largest weight of each query of a text over all its matrices, the largest first."""
    texts: dict[tuple[str, ...], int] = {}
    largest: dict[tuple[int, int], tuple[float, Matrix, int]] = {}
    for matrix in selection.all:
        text = texts.setdefault(tuple(matrix.queries), len(texts))
        for query, key in enumerate(matrix.weights.argmax(axis=-1).tolist() if matrix.weights.size else ()):
            top = float(matrix.weights[query, key])
            if (text, query) not in largest or top > largest[text, query][0]:
                largest[text, query] = top, matrix, key
    found = sorted(
        ((top, query, matrix, key) for (_, query), (top, matrix, key) in largest.items()), key=lambda of: -of[0]
    )
    rows = [
        (top, _named("query", matrix.queries[query]), _named("key", matrix.keys[key]), matrix.name)
        for top, query, matrix, key in found[:LARGEST]
    ]
    width = max(len(query) for _, query, _, _ in rows)
    lines = ["the largest weight of each query"]
    if len(largest) > LARGEST:
        lines[0] += f", the first {LARGEST} of {len(largest)}"
    for top, query_label, key_label, name in rows:
        line = f"  {top:.3f}  {query_label:{width}} -> {key_label}"
        lines.append(f"{line}  {name}" if len(selection.all) > 1 else line)
    return lines


def _named(axis: str, label: str) -> str:
    """A label, with the name of its axis if it is a position."""
    return f"{axis} {label}" if label.isdecimal() else label
