"""What a run is estimated to cost, from its sizes."""

import numpy as np
import pytest

from service.model.estimate import MATRIX_SIZE, SCORE_SIZE, memory, pairs_in_memory, run_size
from service.model.graph import Graph
from service.model.spec import BlockSpec, FastPathSpec, Signature
from service.tensors.spec import TensorSpec

FLOAT = np.dtype(np.float32)
SIZES = {"batch": 2, "n": 10, "m": 3}


def signature(**entries):
    """A classifier of token ids."""
    spec = BlockSpec.model_construct(depth=16, learned=1000, **entries)
    outputs = {"output": ("batch", 5), "weights": (4, "batch", 2, "n", "n")}
    return Signature(spec, {}, {name: TensorSpec(name, FLOAT, shape) for name, shape in outputs.items()})


@pytest.mark.parametrize(
    ("entries", "rows"), [({}, 2), ({"rows": ("batch", "n")}, 20), ({"rows": ("batch", "n + m")}, 26)]
)
def test_rows_are_those_of_the_output_unless_the_block_says_which(entries, rows):
    pairs, matrices = 4 * 2 * 2 * 10 * 10, 4 * 2 * 2
    of_scores = (16 + SCORE_SIZE) * pairs + MATRIX_SIZE * matrices
    assert run_size(signature(**entries), {}, SIZES) == of_scores + 1000 * rows


def attention():
    """A block of attention in one graph, with a past."""
    past, present = ("batch", "heads", "past", "d"), ("batch", "heads", "past + n", "d")
    outputs = {"weights": ("batch", "heads", "m", "past + n"), "output": ("batch", "heads", "m", "d")}
    signature = Signature(
        BlockSpec.model_construct(depth="d", learned=0, rows=None),
        {name: TensorSpec(name, FLOAT, past) for name in ("query", "key", "value", "past_key", "past_value")},
        {name: TensorSpec(name, FLOAT, shape) for name, shape in (outputs | {"present_key": present}).items()},
    )
    return signature, Graph(None, frozenset(signature.inputs), frozenset(outputs))


@pytest.mark.parametrize(("heads", "m", "n", "d"), [(250_000, 1, 1, 1), (1, 2000, 2000, 1), (8, 1, 8192, 64)])
def test_a_run_has_the_size_of_multiply_adds_that_take_as_long(heads, m, n, d):
    """Clients could have as many multiply-adds cheaply, after which this run seemed to be short."""

    def size(heads, m, n, d):
        inputs = {"query": np.zeros((1, heads, m, d)), "key": np.zeros((1, heads, n, d))}
        return run_size(attention()[0], inputs, {"batch": 1, "heads": heads, "m": m, "n": n, "past": 0, "d": d})

    assert size(heads, m, n, d) > 6 * size(1, 128, heads * m * n * d // 128 // 64, 64)


@pytest.mark.parametrize(
    ("graph", "outputs", "share"),
    [
        (Graph(None, frozenset(), frozenset(("output", "weights"))), ["output"], 1),
        (Graph(None, frozenset(), frozenset(("output",)), FastPathSpec(fast_path="output")), ["output"], 1 / 4),
        (Graph(None, frozenset(), frozenset(("output", "weights")), FastPathSpec(fast_path="weights")), ["weights"], 1),
        (Graph(None, frozenset(), frozenset(("output",)), FastPathSpec(fast_path="fused", rows=256)), ["output"], 0),
    ],
)
def test_pairs_in_memory_are_those_of_the_layers_that_a_graph_has_at_once(graph, outputs, share):
    assert pairs_in_memory(signature(), graph, outputs, SIZES) == share * 4 * 2 * 2 * 10 * 10


def test_copies_of_inputs_are_counted():
    """ONNX Runtime takes arrays without gaps, of its own type; a past is joined to the new keys."""
    numbers, sizes = 1000 * 8, {"batch": 1, "heads": 2, "m": 1, "n": 1000, "past": 0, "d": 4}

    def bytes_with(**inputs):
        return memory(*attention(), inputs, ["output"], sizes)

    whole = np.zeros((1, 2, 1000, 4), np.float32)
    least = bytes_with(key=whole)
    assert bytes_with(key=whole.astype(np.float16)) == bytes_with(key=whole[..., ::-1, :]) == least + 4 * numbers
    assert bytes_with(past_key=whole) == least + 2 * 4 * numbers
    assert bytes_with(past_key=whole, past_value=whole.astype(np.float16)) == least + 5 * 4 * numbers


@pytest.mark.parametrize(("d_k", "d_v", "kv_heads", "least"), [(1, 1, 4, 20), (9, 9, 4, 5.2), (64, 64, 1, 5.1)])
def test_copies_of_the_causal_kernel_are_counted(d_k, d_v, kv_heads, least):
    """``least`` was measured: peaks of memory, in bytes of all tensors."""
    of_keys = {"key": ("batch", "kv_heads", "n", "d_k"), "value": ("batch", "kv_heads", "n", "d_v")}
    inputs = {"query": ("batch", "heads", "m", "d_k"), **of_keys}
    outputs = {"output": ("batch", "heads", "m", "d_v"), "weights": ("batch", "heads", "m", "n")}
    specs = [{name: TensorSpec(name, FLOAT, shape) for name, shape in tensors.items()} for tensors in (inputs, outputs)]
    block = BlockSpec.model_construct(depth="d_k + d_v", learned=0, rows=None, multiples={"heads": "kv_heads"})
    fixed = FastPathSpec(fast_path="causal", provider="cpu", fixes={"is_causal": True}, rows=0)
    graph = Graph(None, frozenset(inputs), frozenset(["output"]), fixed)

    def in_tensors(d_k, d_v, kv_heads):
        heads = 32 if kv_heads == 1 else kv_heads
        sizes = {"batch": 1, "heads": heads, "kv_heads": kv_heads, "m": 4096, "n": 4096, "d_k": d_k, "d_v": d_v}
        numbers = 4096 * (heads + kv_heads) * (d_k + d_v)
        return memory(Signature(block, *specs), graph, {}, ["output"], sizes) / (4 * numbers)

    assert least <= in_tensors(d_k, d_v, kv_heads) < 2 * least
    assert in_tensors(64, 64, 4) == 4
