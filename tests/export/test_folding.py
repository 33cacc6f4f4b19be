"""Matrices of an exported block can be folded without changing its outputs."""

import numpy as np
import torch

from export.graph import export_graph
from export.verification import session
from models.multi_head import MultiHeadConfig, block


def outputs_of(config, state, **inputs):
    """Output and attention weights of an exported block with the weights ``state``."""
    learned = block(config, state=state)
    required = [name for name, spec in learned.inputs.items() if spec.required]
    graph = export_graph(learned, learned.build(), required, ["output", "weights"])
    return session(graph.SerializeToString()).run(None, inputs)


def random_state(config):
    return block(config).build().state_dict()


def test_value_and_output_projections_fold_into_one():
    """W^V W^O of head i is one matrix from the input to the output; the output projection only sums over heads."""
    heads = 2
    config = MultiHeadConfig(d_model=12, num_heads=heads, d_k=6, d_v=4, inputs="x")
    state = random_state(config)
    x = np.random.default_rng(0).standard_normal((2, 5, 12), np.float32)
    w_v, b_v = state["v_proj.weight"].unflatten(0, (heads, 4)), state["v_proj.bias"].unflatten(0, (heads, 4))
    w_o = state["out_proj.weight"].unflatten(1, (heads, 4))
    folded = {
        **state,
        "v_proj.weight": torch.einsum("ohe,hec->hoc", w_o, w_v).flatten(0, 1),
        "v_proj.bias": torch.einsum("ohe,he->ho", w_o, b_v).flatten(),
        "out_proj.weight": torch.eye(12).repeat(1, heads),
    }
    wide = MultiHeadConfig(d_model=12, num_heads=heads, d_k=6, d_v=12, inputs="x")
    for plain, fold in zip(outputs_of(config, state, x=x), outputs_of(wide, folded, x=x), strict=True):
        np.testing.assert_allclose(fold, plain, rtol=1e-5, atol=1e-6)


def test_biases_are_a_column_of_ones():
    """[x 1] times [W b] is x W + b."""
    sizes = {"num_heads": 1, "d_k": 5, "d_v": 7, "out_proj": False}
    config = MultiHeadConfig(d_model=6, kdim=8, vdim=4, **sizes)
    state = random_state(config)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal((2, n, d), np.float32)
        for name, n, d in (("query", 3, 6), ("key", 4, 8), ("value", 4, 4))
    }
    wider = MultiHeadConfig(d_model=7, kdim=9, vdim=5, bias=False, **sizes)
    columns = {
        f"{part}_proj.weight": torch.cat([state[f"{part}_proj.weight"], state[f"{part}_proj.bias"][:, None]], 1)
        for part in "qkv"
    }
    ones = {name: np.concatenate([x, np.ones_like(x[..., :1])], -1) for name, x in inputs.items()}
    for plain, fold in zip(outputs_of(config, state, **inputs), outputs_of(wider, columns, **ones), strict=True):
        np.testing.assert_allclose(fold, plain, rtol=1e-5, atol=1e-6)
