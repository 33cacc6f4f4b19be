"""``heed run --sweep`` and ``--lens``: their answers as JSON, and a sweep as a heat map."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heed_client.command.matrix import Labels, Matrices, matrices
from heed_client.generation.answer import GeneratedToken
from heed_client.interpretation.answers import Lens, Sweep

POSITIONS = ("positions", "queries", "keys")  # axes whose labels are tokens
MAX_CHARACTERS = 14  # of a token in the table of a lens


def sweep_document(answer: Sweep) -> dict[str, Any]:
    """A sweep as JSON values."""
    return {
        "model": answer.model,
        "axes": [*answer.axes],
        **answer.indices,
        "metric": answer.metric,
        "unchanged": answer.unchanged,
        **({} if answer.source is None else {"source": answer.source}),
        "values": answer.values.tolist(),
        **_tokens(answer),
    }


def lens_document(answer: Lens) -> dict[str, Any]:
    """A lens as JSON values."""
    of_output = answer.output_probabilities
    return {
        "model": answer.model,
        "layers": [*answer.layers],
        "positions": [*answer.positions],
        "indices": answer.indices.tolist(),
        "predicted": answer.predicted,
        "probabilities": answer.probabilities.tolist(),
        **({} if of_output is None else {"output_probabilities": of_output.tolist()}),
        "ranks": answer.ranks.tolist(),
        **_tokens(answer),
    }


def lens_of_tokens(model: str, generated: Sequence[GeneratedToken]) -> str:
    """What each layer would predict in place of each generated token, as ``lens_table``."""
    lenses = [token.lens for token in generated if token.lens is not None]
    answer = Lens(
        model,
        range(len(lenses[0].ranks)),
        range(len(lenses)),
        np.stack([lens.indices for lens in lenses], 1),
        np.stack([lens.probabilities for lens in lenses], 1),
        np.stack([lens.ranks for lens in lenses], 1),
        None if lenses[0].predicted is None else [*zip(*(lens.predicted or () for lens in lenses), strict=True)],
    )
    return lens_table(answer, [str(token.id if token.token is None else token.token) for token in generated])


def lens_table(answer: Lens, tokens: Sequence[str] = ()) -> str:
    """The likeliest token of each layer and position with its probability; layers down, positions across.

    ``tokens`` are those of the positions, if they are not the text's.
    """
    tokens = tokens or _texts(answer)
    rows = [["layer", *(tokens[place] if tokens else str(place) for place in answer.positions)]]
    for place, layer in enumerate(answer.layers):
        names = answer.predicted[place] if answer.predicted else []
        known = (names[at][0] if names else None for at in range(len(answer.positions)))
        ids = answer.indices[place, :, 0].tolist()
        first = [str(index if token is None else token) for token, index in zip(known, ids, strict=True)]
        parts = zip(first, answer.probabilities[place, :, 0], strict=True)
        rows.append([str(layer), *(f"{_short(token)} {probability:.2f}" for token, probability in parts)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def sweep_matrices(answer: Sweep, at: Sequence[int]) -> Matrices:
    """The differences from the unchanged run, as matrices of the last two axes.

    Raises:
        ValueError: the grid has fewer than two axes, or the leading index ``at`` does not fit.
    """
    if len(answer.axes) < 2:
        raise ValueError(f"sweep: a heat map needs two axes or more, got {len(answer.axes)}")
    rows, columns = (_labels(answer, axis) for axis in answer.axes[-2:])
    unchanged = np.full_like(answer.values, answer.unchanged)
    names = [axis.removesuffix("s") for axis in answer.axes[:-2]]
    return matrices(answer.values, at, [Labels(rows, columns)], axes=names, subtracted=unchanged)


def _labels(answer: Sweep, axis: str) -> list[str]:
    tokens = _texts(answer) if axis in POSITIONS else []
    return [tokens[place] if tokens else f"{axis.removesuffix('s')} {place}" for place in answer.indices[axis]]


def _texts(answer: Sweep | Lens) -> list[str]:
    found: Mapping[str, Any] = answer.tokens or {}
    return list(found.get("target_tokens") or found.get("tokens") or [])


def _tokens(answer: Sweep | Lens) -> dict[str, Any]:
    return dict(answer.tokens or {})


def _short(token: str) -> str:
    return token if len(token) <= MAX_CHARACTERS else f"{token[: MAX_CHARACTERS - 1]}…"
