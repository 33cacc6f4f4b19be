"""Example inputs of a model of transformers in several sizes, with padding at the right, at the left, or anywhere."""

from collections.abc import Iterator, Mapping
from math import ceil
from zlib import crc32

import numpy as np

from export.hf.wrapper import HEAD_MASKS
from models.block import Input, Placeholder, Sizes, size
from models.examples import within

SIZES: dict[str, Sizes] = {
    "one": {"batch": 1, "n": 1, "m": 1, "images": 1},
    "distinct": {"batch": 2, "n": 7, "m": 5, "images": 3},
    "rows": {"batch": 3, "n": 12, "m": 17, "images": 1},
    "long": {"batch": 2, "n": 70, "m": 40, "images": 2},
}
PADDINGS = ("right", "left", "scattered")
HEADS = "heads"  # as "scattered", with masks of heads
REAL = 0.7  # probability that a token is real where padding is anywhere
DOCUMENTED = {"batch": 1, "n": 3, "m": 2, "images": 1}
MAX_DOCUMENTED = 1000  # numbers in an example for the documentation


def draw(inputs: Mapping[str, Input], sizes: Sizes, padding: str | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of ``sizes``: the required ones and, with ``padding``, the optional ones, too.

    Head masks are only included with the padding "heads".
    """
    rng = np.random.default_rng(seed)
    drawn: dict[str, np.ndarray] = {}
    for name, spec in inputs.items():
        shape = [size(dim, sizes) for dim in spec.shape]
        if name in HEAD_MASKS and padding != HEADS:
            continue
        if spec.dtype != "int64":
            drawn[name] = rng.standard_normal(shape, np.float32)
        elif spec.required or (padding and not name.endswith("mask")):
            drawn[name] = rng.integers(0, size(spec.maximum or 0, sizes) + 1, shape)
        elif padding:
            drawn[name] = _mask(padding, shape, rng)
    for name, spec in inputs.items():
        if spec.placeholder:
            ids = drawn["input_ids"]
            drawn[name] = drawn[name][: ids.size // spec.placeholder.count]
            place(ids, spec.placeholder, len(drawn[name]), rng)
    return drawn


def place(ids: np.ndarray, placeholder: Placeholder, rows: int, rng: np.random.Generator) -> None:
    """Put the tokens that stand for ``rows`` rows of an input at random places in ``ids``, and none elsewhere."""
    ids[ids == placeholder.token] = 1 if placeholder.token == 0 else 0
    ids.reshape(-1)[rng.choice(ids.size, rows * placeholder.count, replace=False)] = placeholder.token


def with_room(sizes: Sizes, inputs: Mapping[str, Input]) -> Sizes:
    """``sizes`` with a larger ``n``, so that the rows have room for the tokens of all images."""
    counts = (spec.placeholder.count for spec in inputs.values() if spec.placeholder)
    return {**sizes, "n": sizes["n"] + sum(ceil(sizes["images"] / sizes["batch"]) * count for count in counts)}


def _mask(padding: str, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    """1 for real tokens, at least one in each row; padding at one side leaves the first row without any.

    For pictures, [rows, height, width], 1 for the pixels before the padding at the right and below.
    """
    if len(shape) == 3:
        count, *sides = shape
        down, right = (np.arange(side) < rng.integers(1, side + 1, (count, 1)) for side in sides)
        return (down[:, :, None] & right[:, None]).astype(np.int64)
    rows, length = shape
    if padding in ("scattered", HEADS):
        real = rng.random(shape) < REAL
        real[np.arange(rows), rng.integers(0, length, rows)] = True
        return real.astype(np.int64)
    lengths = rng.integers(1, length + 1, (rows, 1))
    lengths[0] = length
    real = np.arange(length) < lengths
    return (real if padding == "right" else real[:, ::-1]).astype(np.int64)


def examples(
    inputs: Mapping[str, Input], every: Mapping[str, Sizes], limits: Mapping[str, int]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """For each of the sizes ``every``, within ``limits``, and each padding: a name and an example."""
    optional = {name for name, spec in inputs.items() if not spec.required}
    paddings: list[str | None] = [None]
    if optional.difference(HEAD_MASKS):
        paddings += PADDINGS
    if optional.intersection(HEAD_MASKS):
        paddings.append(HEADS)
    for size_name, sizes in every.items():
        limited = within(sizes, limits)
        for padding in paddings:
            name = f"{size_name}/{padding or 'plain'}"
            yield name, draw(inputs, limited, padding, crc32(name.encode()))


def documented(inputs: Mapping[str, Input]) -> dict[str, object]:
    """A small request for the documentation; empty if the inputs are large, as images are."""
    drawn = {name: array for name, array in draw(inputs, DOCUMENTED).items() if array.size}
    if sum(array.size for array in drawn.values()) > MAX_DOCUMENTED:
        return {}
    return {name: np.round(array.astype(float), 2).astype(array.dtype).tolist() for name, array in drawn.items()}
