"""Estimates of a run, from the sizes of its inputs: memory, and the size by which its cost is learned."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from math import prod

import numpy as np

from service.model.graph import Arrays, Graph
from service.model.spec import STACKS, BlockSpec, Signature
from service.tensors.dims import Sizes, dim_size

FOREIGN_MEMORY_FACTOR = 3  # bytes that a run of a foreign graph is assumed to need, for each byte of its inputs
ITEM_BYTES = 4
PAST, PAST_COPIES = ("past_key", "past_value"), 2  # one joined to the new keys, one as the graph's products take it
# The fused causal kernel takes one width for keys and values, a multiple of 8, and no groups: other tensors are made as
# wide before, and narrow again after it.
CAUSAL_WIDTH, CAUSAL_COPIES = 8, 8
# The weights of a model's further stacks. A run that does not return them has those of one layer in memory so many
# times, about: as scores, mask or bias, exponentials and weights.
STACK_COPIES = {"encoder_weights": 6, "cross_weights": 3, "vision_weights": 3}
LAYER_COPIES = 2  # of one layer's, beside those of all layers, alone and joined, in a run that returns them
# The numbers of each row (a token, a patch) that a layer has in memory at one time are so many times the square root of
# the layer's learned numbers, about: a layer of 12 times the width's square has 18 times the width.
ROW_FACTOR = 5.2
MASK_COPIES = 4  # of the mask that a model makes for all of its layers
# Of a block's scores, for their masks, biases and positions, in a graph that has any of these: they take 5 to 8 copies,
# the graph without them takes 2.
OPTION_COPIES = 6
# Of a block's queries, keys and values, split into heads. A block that projects fewer key heads copies them for each
# query head; one that computes only products of its inputs has its keys once or twice more.
HEAD_COPIES, GROUPED_COPIES, PRODUCT_COPIES = 3, 9, 1.25
# Rows of which causal linear attention has a state of its own (models/linear.py), and the copies of states and pairs.
CHUNK, STATE_COPIES, CHUNK_COPIES = 64, 3, 2
VISION_STACKS = frozenset(("vision_weights",))  # which the kernels of fast paths do not compute
PAIRWISE = frozenset(("scores", *STACKS))  # a run of most graphs has them in memory in any case
# Multiply-adds that take as long as a score (its exponential), a number of an input, and a matrix of scores.
SCORE_SIZE, NUMBER_SIZE, MATRIX_SIZE = 16, 8, 1 << 13


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """The graph of a run, and the run's needs."""

    sizes: Sizes
    graph: Graph
    size: int  # what its cost grows with: ``run_size``
    memory: int  # bytes at its peak, about


def number_count(signature: Signature, outputs: Collection[str], sizes: Sizes) -> int:
    """How many numbers these outputs have together."""
    return sum(prod(dim_size(dim, sizes) for dim in signature.outputs[name].shape) for name in outputs)


def score_count(signature: Signature, sizes: Sizes) -> int:
    """Pairs of query and key, over batch and heads; 0 for a model that is no block."""
    return number_count(signature, ["weights"], sizes) if signature.spec else 0


def pair_count(signature: Signature, sizes: Sizes) -> int:
    """Pairs of query and key that a fast path computes, over its stacks of layers, batch and heads; 0 for no block."""
    return number_count(signature, signature.stacks - VISION_STACKS, sizes) if signature.spec else 0


def query_count(signature: Signature, sizes: Sizes) -> int:
    """Queries of each row and head; 0 for a model that is no block."""
    return dim_size(signature.outputs["weights"].shape[-2], sizes) if signature.spec else 0


def pairs_in_memory(signature: Signature, graph: Graph, outputs: Collection[str], sizes: Sizes) -> int:
    """How many numbers the largest tensor of a run has that has one for each pair of query and key; 0 without one."""
    has_pairs = graph.workspace_bytes is None and (graph.spec is None or graph.spec.rows is None)
    if signature.spec is None or not has_pairs:
        return 0
    computed = {*outputs} if graph.spec else graph.outputs
    counts = []
    for name in signature.stacks:
        shape = signature.outputs[name].shape
        is_whole = name in computed or (name == "weights" and "scores" in computed)
        one_by_one = name in signature.layered and not is_whole
        counts.append(number_count(signature, [name], sizes) // (dim_size(shape[0], sizes) if one_by_one else 1))
    return max(counts) * max(1, signature.spec.pair_numbers)


def memory(signature: Signature, graph: Graph, inputs: Arrays, outputs: Collection[str], sizes: Sizes) -> int:
    """Bytes that a run of ``graph`` needs at its peak, about.

    Scores, mask and weights have a number for every pair of query and key. A fast path that never has all pairs in
    memory needs its tensors a few times, as it splits and joins them. Of a foreign graph only the inputs are known.

    Inputs of another type, or with gaps, as stored ones can be, are copied before; a past is joined to the new keys.
    """
    spec = signature.spec
    if spec is None:
        return FOREIGN_MEMORY_FACTOR * sum(array.nbytes for array in inputs.values())
    of_outputs = number_count(signature, outputs, sizes)
    if graph.workspace_bytes is not None:
        return graph.workspace_bytes + inputs["query"].nbytes + ITEM_BYTES * of_outputs
    copied = sum(array.size for name, array in inputs.items() if _is_copied(array, signature.inputs[name].dtype))
    copied += PAST_COPIES * sum(inputs[name].size for name in PAST if name in inputs)
    if graph.spec is None or graph.spec.rows is None:
        numbers = _with_all_pairs(signature, spec, graph, outputs, sizes)
    else:
        numbers = _in_parts(signature, spec, graph.spec.rows, of_outputs, sizes)
        if graph.spec.provider == "cpu" and graph.spec.fixes.get("is_causal"):
            numbers += _causal_copies(signature, spec, sizes)
    return ITEM_BYTES * (copied + numbers + of_outputs + _of_states(signature, spec, inputs, sizes))


def _with_all_pairs(signature: Signature, spec: BlockSpec, graph: Graph, outputs: Collection[str], sizes: Sizes) -> int:
    """Numbers of a run of a graph that has a number for each pair of query and key in memory, beside its outputs."""
    pairwise = PAIRWISE.intersection(signature.outputs) | set(outputs)
    if "layers" in map(str, signature.outputs["weights"].shape):  # it has the scores of one layer after the other
        pairwise -= {"scores"} - graph.outputs
    if graph.spec is None:  # it computes every output, whatever is requested
        pairwise |= graph.outputs
    layered = signature.layered
    of_others = number_count(signature, pairwise - layered, sizes) + _of_rows(signature, sizes)
    if layered:
        of_layers = sum(_of_layers(name, signature, graph, sizes) for name in layered)
        of_layers -= number_count(signature, layered & graph.outputs & {*outputs}, sizes)
        of_scores = spec.pair_numbers * score_count(signature, sizes)
        return of_others + of_layers + of_scores + _of_masks(signature, sizes)
    has_options = bool(graph.inputs - signature.required - {"scale"})
    copies = spec.pair_numbers + (OPTION_COPIES if has_options else 0)
    are_products = not (has_options or spec.learned or spec.linear or spec.pair_numbers)
    of_heads = _of_heads(signature, spec, are_products, sizes)
    return of_others + copies * score_count(signature, sizes) + of_heads


def _in_parts(signature: Signature, spec: BlockSpec, rows: int, of_outputs: int, sizes: Sizes) -> int:
    """Numbers of a run of a graph that has the scores of so many queries in memory, beside its outputs."""
    required = (
        tensor for name, tensor in signature.inputs.items() if tensor.required or name in signature.placeholders
    )
    tensors = sum(prod(dim_size(dim, sizes) for dim in tensor.shape) for tensor in required) + of_outputs
    shapes = [signature.outputs[name].shape for name in signature.stacks]
    pairs = sum(min(rows, dim_size(m, sizes)) * dim_size(n, sizes) for *_, m, n in shapes)
    of_masks = _of_masks(signature, sizes) if rows else 0
    of_rows = max(4 * tensors - of_outputs, _of_rows(signature, sizes))
    return of_rows + 3 * _group(spec, sizes) * pairs + of_masks


def _group(spec: BlockSpec, sizes: Sizes) -> int:
    """How many heads of queries share one of keys."""
    return prod(sizes[many] // sizes[few] for many, few in spec.multiples.items())


def _of_heads(signature: Signature, spec: BlockSpec, are_products: bool, sizes: Sizes) -> int:
    """Numbers of the queries, keys and values of all heads of a block."""
    *heads, m, n = (dim_size(dim, sizes) for dim in signature.outputs["weights"].shape)
    present = signature.outputs.get("present_key")
    group = heads[-1] // dim_size(present.shape[1], sizes) if present and len(present.shape) == len(heads) + 2 else 1
    is_copied = group > 1 and spec.learned > 0
    rows = m + (n if is_copied else n // group)
    copies = GROUPED_COPIES if is_copied else PRODUCT_COPIES if are_products else HEAD_COPIES
    return int(copies * prod(heads) * rows * dim_size(spec.depth, sizes))


def _of_states(signature: Signature, spec: BlockSpec, inputs: Arrays, sizes: Sizes) -> int:
    """Numbers of the states of linear attention: one for each head; if causal, one for each chunk of rows."""
    if not spec.linear:
        return 0
    *heads, m, _ = (dim_size(dim, sizes) for dim in signature.outputs["weights"].shape)
    width, of_values = sizes["d_k"], sizes["d_v"]
    if not inputs.get("is_causal", False):
        return prod(heads) * width * of_values
    of_chunk = STATE_COPIES * width * of_values + CHUNK * (width + of_values) + CHUNK_COPIES * CHUNK**2
    return prod(heads) * math.ceil(m / CHUNK) * of_chunk


def _of_masks(signature: Signature, sizes: Sizes) -> int:
    """Numbers of the masks that a model with layers makes, one for each stack."""
    stacks = (signature.outputs[name].shape for name in signature.layered)
    shapes = ((shape[1], *shape[-2:]) for shape in stacks)
    return MASK_COPIES * sum(prod(dim_size(dim, sizes) for dim in shape) for shape in shapes)


def _of_rows(signature: Signature, sizes: Sizes) -> int:
    """Numbers that a layer has in memory at one time of all rows."""
    numbers = row_numbers(signature, sizes)
    return numbers * row_count(signature, sizes) if numbers else 0


def row_numbers(signature: Signature, sizes: Sizes) -> int:
    """Numbers of a row that a layer has in memory at one time."""
    if signature.spec is None or not signature.spec.learned:
        return 0
    stacks = signature.layered - {"cross_weights"}
    layers = sum(dim_size(signature.outputs[name].shape[0], sizes) for name in stacks)
    return int(ROW_FACTOR * math.sqrt(signature.spec.learned / max(1, layers)))


def _of_layers(name: str, signature: Signature, graph: Graph, sizes: Sizes) -> int:
    """Numbers in memory at one time of the weights ``name`` of a model with layers."""
    layers = dim_size(signature.outputs[name].shape[0], sizes)
    copies = STACK_COPIES.get(name, layers)
    if name in graph.outputs:
        copies = max(copies, 2 * layers + LAYER_COPIES)
    return copies * number_count(signature, [name], sizes) // layers


def _causal_copies(signature: Signature, spec: BlockSpec, sizes: Sizes) -> int:
    """Numbers of the tensors that are made as wide as the causal kernel takes them, and narrow again."""
    *batch, m, n = (dim_size(dim, sizes) for dim in signature.outputs["weights"].shape)
    depth = dim_size(spec.depth, sizes)  # of keys and values together
    width = sizes.get("d_k", depth // 2)
    of_values = sizes.get("d_v", depth - width)
    if m == n and _group(spec, sizes) == 1 and width == of_values and width % CAUSAL_WIDTH == 0:
        return 0
    wide = CAUSAL_WIDTH * math.ceil(max(width, of_values) / CAUSAL_WIDTH)
    return CAUSAL_COPIES * prod(batch) * min(m, n) * wide


def _is_copied(array: np.ndarray, dtype: np.dtype) -> bool:
    return array.dtype != dtype or not array.flags.c_contiguous


def row_count(signature: Signature, sizes: Sizes) -> int:
    """The number of rows that the learned matrices of a block are multiplied with."""
    assert signature.spec is not None, "only blocks have rows"
    rows = prod(dim_size(dim, sizes) for dim in signature.spec.rows or signature.outputs["output"].shape[:-1])
    images = signature.spec.image_rows
    return rows + (prod(dim_size(dim, sizes) for dim in images) if images else 0)


def run_size(signature: Signature, inputs: Arrays, sizes: Sizes) -> int:
    """What the cost of a run grows with.

    For a block multiply-adds, about: those of each pair of query and key, those of each row with the learned matrices,
    and those that would take as long as the rest. For a foreign graph the numbers in its inputs.
    """
    numbers = sum(array.size for array in inputs.values())
    if signature.spec is None:
        return numbers
    matrices = prod(dim_size(dim, sizes) for dim in signature.outputs["weights"].shape[:-2])
    rest = NUMBER_SIZE * numbers + MATRIX_SIZE * matrices
    rows = row_count(signature, sizes)
    of_score = dim_size(signature.spec.depth, sizes) + SCORE_SIZE
    rest += SCORE_SIZE * _of_states(signature, signature.spec, inputs, sizes)
    return number_count(signature, signature.stacks, sizes) * of_score + rows * signature.spec.learned + rest
