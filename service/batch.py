"""Works joined into one run along the batch axis, and its answer taken apart again.

Works of equal shapes are stacked, on the graph each would have run on. Works of different lengths are padded, on a
graph that takes a mask, which forbids every padded key; queries that are padded are cut off the answer. A padded place
holds a copy of the last real one, a value that the block is known to take.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from service.bfloat16 import astype
from service.layout import Layout
from service.model import Model, Tensor
from service.shape import Sizes, length
from service.work import Work

Arrays = dict[str, np.ndarray]


def stack(works: Sequence[Work], layout: Layout) -> Arrays:
    """The inputs of works that are alike, row after row."""
    joined = {}
    for name, array in works[0].inputs.items():
        axis = layout.inputs[name]
        if axis is not None:
            array = np.concatenate([_of_every_row(work.inputs[name], axis, work.batch) for work in works], axis)
        joined[name] = array
    return joined


def _of_every_row(array: np.ndarray, axis: int, rows: int) -> np.ndarray:
    """A tensor with one row for all, with that row for each."""
    if array.shape[axis] == rows:
        return array
    return np.broadcast_to(array, (*array.shape[:axis], rows, *array.shape[axis + 1 :]))


def pad(works: Sequence[Work], layout: Layout, model: Model) -> Arrays:
    """The inputs of works that are akin, row after row, all as long as the longest; the mask forbids what was added."""
    most = {name: max(work.sizes[name] for work in works) for name in layout.lengths}
    sizes = works[0].sizes | most | {"batch": sum(work.batch for work in works)}
    assert layout.mask is not None
    joined = {layout.mask: _mask(works, model.inputs[layout.mask], sizes)}
    for name, array in works[0].inputs.items():
        axis = layout.inputs[name]
        if name != layout.mask:
            joined[name] = array if axis is None else _padded(works, name, axis, model.inputs[name], sizes)
    return joined


def _padded(works: Sequence[Work], name: str, axis: int, of: Tensor, sizes: Sizes) -> np.ndarray:
    """The tensor of all works; where one broadcasts along an axis, it fills it."""
    joined = np.empty([length(dim, sizes) for dim in of.shape], of.dtype)
    row = 0
    for work in works:
        array = work.inputs[name]
        own = [length(dim, work.sizes) for dim in of.shape]
        place: list[slice] = [slice(size) for size in own]
        place[axis] = slice(row, row + work.batch)
        row += work.batch
        joined[tuple(place)] = array
        for along, size in enumerate(own):  # one axis after the other, so that corners are filled, too
            if along != axis and size < joined.shape[along]:
                beyond, last = list(place), list(place)
                beyond[along], last[along] = slice(size, None), slice(size - 1, size)
                joined[tuple(beyond)] = joined[tuple(last)]
                place[along] = slice(None)
    return joined


def _mask(works: Sequence[Work], of: Tensor, sizes: Sizes) -> np.ndarray:
    """Zero, or the work's own mask, where a key is real; -inf where it is not. Axes that nobody needs are 1 long."""
    own = [work.inputs[of.name] for work in works if of.name in work.inputs]
    broadcast = [all(array.shape[axis] == 1 for array in own) for axis in range(len(of.shape))]
    shape = [1 if broadcast[axis] else length(dim, sizes) for axis, dim in enumerate(of.shape)]
    shape[0], shape[-1] = sizes["batch"], length(of.shape[-1], sizes)
    mask, forbidden = np.zeros(shape, of.dtype), astype(np.array(-np.inf), of.dtype)
    row = 0
    for work in works:
        rows = slice(row, row + work.batch)
        row += work.batch
        m, n = (length(dim, work.sizes) for dim in of.shape[-2:])
        if of.name in work.inputs:
            mask[rows, :, :m, :n] = work.inputs[of.name]
        mask[rows, :, :, n:] = forbidden
    return mask


def split(found: Mapping[str, np.ndarray], works: Sequence[Work], layout: Layout, model: Model) -> list[Arrays]:
    """The answer of each work: its rows, as long as its own sizes say; contiguous, a view where that can be."""
    answers: list[Arrays] = [{} for _ in works]
    for name, array in found.items():
        axis, dims = layout.outputs[name], model.outputs[name].shape
        assert axis is not None
        row = 0
        for work, answer in zip(works, answers, strict=True):
            place = [slice(length(dim, work.sizes) if model.card else None) for dim in dims]
            place[axis] = slice(row, row + work.batch)
            row += work.batch
            answer[name] = np.ascontiguousarray(array[tuple(place)])
    return answers
