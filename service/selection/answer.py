"""The answer to a request with options: planned from the sizes of its tensors, applied to the outputs of its run.

The order is: select layers, heads and queries; derive; reduce heads, then layers; pool; apply the threshold; take the
largest; convert.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod

import numpy as np

from service.base.errors import Invalid
from service.model.spec import Signature
from service.selection.derived import (
    DERIVED,
    OWN,
    SOURCE,
    derived_outputs,
    entropy,
    head_statistics,
    received,
    rollout,
)
from service.selection.indices import Pick
from service.selection.options import AXES, BY_HEAD, OPTIONS, SELECTED, WEIGHTS, Reduction, Selection
from service.selection.reductions import largest, pool, quantize, reduce, select
from service.tensors.bfloat16 import astype, to_float32
from service.tensors.dims import Sizes, dim_size, format_dims

LAYERS, BATCH, HEADS, QUERIES, KEYS = range(-5, 0)
AXIS = dict(zip(AXES, (LAYERS, HEADS, QUERIES), strict=True))
# Nanoseconds for one number, about: the relative costs of kinds of work. The time of a unit is learned.
COPY_NS, REDUCE_NS, ENTROPY_NS, STATISTICS_NS, SORT_NS, ROLLOUT_NS = 0.5, 0.7, 5.0, 10.0, 2.0, 0.05
INDICES, VALUES, SCALE = "_indices", "_values", "_scale"
SCALES = frozenset(name + SCALE for name in WEIGHTS)


@dataclass(frozen=True, slots=True)
class AnsweredOutput:
    """One array of an answer. ``axes`` are those of its source that it has, counted from the end, and OWN."""

    name: str
    source: str
    axes: tuple[int, ...]
    count: int  # numbers
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one requested output is computed from that of the graph."""

    name: str
    source: str
    picks: Mapping[int, Pick]
    reductions: Sequence[tuple[int, Reduction]]  # place of the axis in the array, one after another
    selection: Selection

    def apply(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """The contiguous arrays that are answered for this output, by name."""
        options, declared = self.selection, array.dtype
        if self.name == "rollout":
            picks = {axis: pick for axis, pick in self.picks.items() if axis != QUERIES}
            queries = self.picks.get(QUERIES, slice(None))
            array = rollout(select(array, picks), options.reduce_heads or "mean", queries)
        else:
            m, n = array.shape[-2:]
            array = select(array, self.picks)
            if self.name == "entropy":
                array = entropy(array)
            elif self.name == "received":
                array = received(array)
            elif self.name == "head_statistics":
                array = head_statistics(array, np.arange(n - m, n)[self.picks.get(QUERIES, slice(None))])
            for axis, by in self.reductions:
                array = reduce(array, axis, by)
        k = options.weights_pool
        if k and self.name in OPTIONS["weights_pool"].outputs and max(array.shape[-2:]) > k:
            array = pool(array, k, options.weights_pool_by or "mean")
        if self.name in DERIVED:
            return {self.name: np.ascontiguousarray(array)}
        return self._converted(array, declared)

    def _converted(self, array: np.ndarray, declared: np.dtype) -> dict[str, np.ndarray]:
        name, answer = self.name, {}
        if self.selection.weights_threshold is not None and name in WEIGHTS:
            array = to_float32(array)
            array = np.where(array < array.dtype.type(self.selection.weights_threshold), array.dtype.type(0), array)
        if self.selection.weights_top_k and name == SOURCE:
            answer[name + INDICES], array = largest(array, self.selection.weights_top_k)
            name += VALUES
        dtype = self.selection.weights_dtype if self.name in WEIGHTS else None
        if dtype == "uint8":
            answer[name], answer[self.name + SCALE] = quantize(self.name, array)
        elif dtype:
            answer[name] = np.ascontiguousarray(to_float32(array), dtype)
        else:
            answer[name] = np.ascontiguousarray(astype(array, declared))
        return answer


@dataclass(frozen=True, slots=True)
class Answer:
    """The outputs of an answer in their order, and how to compute them from those of the graph."""

    outputs: Sequence[AnsweredOutput]
    recipes: Sequence[Recipe]
    work: int  # about nanoseconds
    memory: int  # bytes beside the outputs of the graph and those of the answer, about

    @property
    def index_count(self) -> int:
        """The indices and ranges that it holds, as requested and as resolved."""
        picks = (pick for recipe in self.recipes for pick in recipe.picks.values() if not isinstance(pick, slice))
        selections = [recipe.selection for recipe in self.recipes[:1]]
        fields = (getattr(selection, field) for selection in selections for field in AXIS)
        return sum(pick.size for pick in picks) + sum(len(indices.items) for indices in fields if indices)

    def apply(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The answered arrays, by name, from those of the graph.

        Raises:
            Invalid: weights that are negative or not finite where these cannot be used.
        """
        answer = dict(arrays)
        with np.errstate(over="ignore", invalid="ignore"):  # NaN and infinity pass, as they do without options
            for recipe in self.recipes:
                answer |= recipe.apply(arrays[recipe.source])
        return {output.name: answer[output.name] for output in self.outputs}


def graph_outputs(requested: Iterable[str], signature: Signature) -> list[str]:
    """The outputs of the graph that an answer with these outputs needs, each once."""
    return list(dict.fromkeys(name if name in signature.outputs else SOURCE for name in requested))


def answered_names(name: str, selection: Selection) -> list[str]:
    """The names under which the output ``name`` is answered."""
    names = [name]
    if name == SOURCE and selection.weights_top_k:
        names = [name + INDICES, name + VALUES]
    if name in WEIGHTS and selection.weights_dtype == "uint8":
        names.append(name + SCALE)
    return names


def needs_answer(requested: Iterable[str], selection: Selection, signature: Signature) -> bool:
    """Whether an answer with these outputs is more than those of the graph."""
    return bool(selection.given()) or any(name not in signature.outputs for name in requested)


def plan_answer(
    signature: Signature, requested: Sequence[str], selection: Selection, sizes: Sizes, block: str
) -> Answer:
    """The answer to a request to ``block`` for the outputs ``requested``, whose tensors have these ``sizes``.

    Raises:
        Invalid: an index out of range, an axis that the block lacks, or an option that none of the outputs has.
    """
    available = {*signature.outputs, *derived_outputs(signature)}
    for option in selection.given():
        fitting = [name for name in OPTIONS[option].outputs if name in available]
        if not set(requested) & set(fitting):
            raise Invalid(f"requires {' or '.join(fitting)} among the outputs", option)
    planner = _Planner(signature, selection, sizes, block)
    for name in requested:
        planner.add(name)
    return Answer(planner.outputs, planner.recipes, round(planner.work), planner.memory)


class _Planner:
    def __init__(self, signature: Signature, selection: Selection, sizes: Sizes, block: str) -> None:
        self.signature, self.selection, self.sizes, self.block = signature, selection, sizes, block
        self.outputs: list[AnsweredOutput] = []
        self.recipes: list[Recipe] = []
        self.work: float = 0
        self.memory = 0

    def add(self, name: str) -> None:
        (source,) = graph_outputs([name], self.signature)
        tensor = self.signature.outputs[source]
        shape = {axis - len(tensor.shape): dim_size(dim, self.sizes) for axis, dim in enumerate(tensor.shape)}
        if name in self.signature.outputs and name not in BY_HEAD:
            self.outputs.append(AnsweredOutput(name, source, tuple(shape), prod(shape.values()), tensor.dtype.itemsize))
            return
        if name == "rollout" and shape[QUERIES] != shape[KEYS]:
            raise Invalid(
                f"rollout requires as many queries as keys, got {shape[QUERIES]} and {shape[KEYS]}", "outputs"
            )
        picks = self._picks(name, source, shape)
        if any(not isinstance(pick, slice) for pick in picks.values()):
            self._use(prod(shape.values()), COPY_NS, tensor.dtype.itemsize)
        item_bytes, reductions = tensor.dtype.itemsize, list[tuple[int, Reduction]]()
        if name in DERIVED:
            self._derive(name, shape)
            item_bytes = 4
        if name in SELECTED and name != "rollout":
            reductions = self._reductions(shape)
        self._pool(name, shape)
        self.recipes.append(Recipe(name, source, picks, reductions, self.selection))
        self._convert(name, source, shape, item_bytes)

    def _picks(self, name: str, source: str, shape: dict[int, int]) -> dict[int, Pick]:
        picks = {}
        for field, axis in AXIS.items():
            indices = getattr(self.selection, field)
            if indices is None or name not in OPTIONS[field].outputs:
                continue
            if axis not in shape:
                dims = format_dims(self.signature.outputs[source].shape)
                raise Invalid(f"'{self.block}' has no axis of {field}: its {source} are {dims}", field)
            try:
                picks[axis] = pick = indices.resolve(field, shape[axis])
            except Invalid as error:
                if sum(name in WEIGHTS for name in self.signature.outputs) < 2:
                    raise
                raise Invalid(f"{error.detail.removeprefix(f'{field}: ')} (of {source})", field) from None
            shape[axis] = len(range(shape[axis])[pick]) if isinstance(pick, slice) else len(pick)
        return picks

    def _derive(self, name: str, shape: dict[int, int]) -> None:
        count = prod(shape.values())
        if name == "rollout":
            matrix = shape[BATCH] * shape[KEYS] ** 2
            self._use(count, REDUCE_NS, 0)
            self._use(matrix, 4, 12)
            self._use(shape[LAYERS] * shape[BATCH] * shape[QUERIES] * shape[KEYS] ** 2, ROLLOUT_NS, 0)
        else:
            self._use(count, {"entropy": ENTROPY_NS, "head_statistics": STATISTICS_NS}.get(name, REDUCE_NS), 0)
        if name == "head_statistics":
            self._use(count // shape[KEYS], 0, 5 * 8 + 8)
            shape[OWN] = DERIVED[name].own_size
        for axis in [axis for axis in shape if axis not in DERIVED[name].axes]:
            del shape[axis]

    def _reductions(self, shape: dict[int, int]) -> list[tuple[int, Reduction]]:
        reductions = []
        for field, axis in (("reduce_heads", HEADS), ("reduce_layers", LAYERS)):
            by: Reduction | None = getattr(self.selection, field)
            if by is None:
                continue
            if axis not in shape:
                raise Invalid(f"'{self.block}' has no axis of {field.removeprefix('reduce_')}", field)
            place, size = [*shape].index(axis), shape.pop(axis)
            self._use(size * prod(shape.values()), REDUCE_NS, 0)
            self._use(prod(shape.values()), 0, 4)
            reductions.append((place, by))
        return reductions

    def _pool(self, name: str, shape: dict[int, int]) -> None:
        k = self.selection.weights_pool
        if k and name in OPTIONS["weights_pool"].outputs and max(shape[QUERIES], shape[KEYS]) > k:
            self._use(prod(shape.values()), REDUCE_NS, 0)
            self._use(shape[QUERIES] * min(shape[KEYS], k), 0, 12)
            shape[QUERIES], shape[KEYS] = min(shape[QUERIES], k), min(shape[KEYS], k)
            self._use(prod(shape.values()), 0, 4)

    def _convert(self, name: str, source: str, shape: dict[int, int], item_bytes: int) -> None:
        """Add the answered arrays, of this ``shape`` before the largest are taken."""
        axes, dtype, k = tuple(shape), self.selection.weights_dtype, self.selection.weights_top_k
        if self.selection.weights_threshold is not None and name in WEIGHTS:
            self._use(prod(shape.values()), REDUCE_NS, 9)
        if k and name == SOURCE:
            keys, count = shape[KEYS], prod(shape.values())
            if k > keys:
                raise Invalid(f"expected at most {keys}, the number of keys, got {k}", "weights_top_k")
            self._use(count, SORT_NS * (1 + log2(keys)), 0)
            shape[KEYS] = k
        if dtype and name in WEIGHTS:
            item_bytes = np.dtype(dtype).itemsize
        self._use(prod(shape.values()), COPY_NS, 4)
        for answered in answered_names(name, self.selection):
            if answered in SCALES:
                self.outputs.append(AnsweredOutput(answered, source, (), 1, 4))
            else:
                size = 8 if answered.endswith(INDICES) else item_bytes
                self.outputs.append(AnsweredOutput(answered, source, axes, prod(shape.values()), size))

    def _use(self, numbers: int, each_ns: float, each_bytes: int) -> None:
        self.work += numbers * each_ns
        self.memory += numbers * each_bytes
