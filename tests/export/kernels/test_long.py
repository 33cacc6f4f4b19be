"""A kernel of very many pairs of query and key is called in parts, between which a run can be ended."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from export.kernels import functions
from export.kernels.functions import DOMAIN, OPSETS, complete
from export.kernels.fused import LEAST_ROWS, MOST, PART

SHAPES = [  # batch, heads, kv_heads, m, n, d_k, d_v
    (1, 1, 1, 50, 50, 8, 8),
    (2, 4, 2, 37, 37, 16, 8),
    (1, 2, 2, 50, 7, 8, 8),
    (2, 2, 1, 7, 50, 5, 3),
    (1, 1, 1, 1, 90, 8, 8),
    (3, 5, 5, 20, 20, 1, 40),
]


def run(kernel, arrays):
    """The output of a kernel."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in "qkvo"]
    graph = helper.make_graph([helper.make_node(kernel, [*"qkv"], ["o"], domain=DOMAIN)], "g", values[:3], values[3:])
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    complete(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip("qkv", arrays, strict=True)))[0]


@pytest.fixture
def in_parts(monkeypatch):
    """Makes the kernels call ONNX Runtime's for some hundred multiply-adds at most."""

    def change(name, size, smaller):
        text = functions._TEXTS[name]
        assert f"[{size}]" in text
        monkeypatch.setitem(functions._TEXTS, name, text.replace(f"[{size}]", f"[{smaller}]"))

    def use(part):
        change("Causal", MOST, 20)
        for name in ("Flash", "LongSquare"):
            change(name, MOST, 20)
            change(name, PART, part)
            change(name, LEAST_ROWS, 4)

    return use


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", ["Flash", "Causal"])
@pytest.mark.parametrize("part", [1, 30_000, 700_000])  # of one head's queries, and of several heads
def test_parts_give_the_same_output(part, kernel, shape, in_parts):
    batch, heads, kv_heads, m, n, d_k, d_v = shape
    rng = np.random.default_rng(m + n)
    sizes = ((heads, m, d_k), (kv_heads, n, d_k), (kv_heads, n, d_v))
    arrays = [rng.standard_normal((batch, *size), np.float32) for size in sizes]
    at_once = run(kernel, arrays)
    in_parts(part)
    np.testing.assert_allclose(run(kernel, arrays), at_once, rtol=1e-5, atol=1e-6)
