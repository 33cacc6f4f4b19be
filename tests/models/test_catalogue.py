"""Properties that distinguish the blocks, by their formulas."""

import numpy as np
import pytest
import torch

from models import multi_head, reference
from models.additive import Additive, AdditiveConfig
from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, draw
from models.linear import CHUNK, Linear
from models.multi_head import MultiHeadConfig


def test_every_source_is_a_paper_and_every_formula_latex():
    for block in BLOCKS.values():
        assert "https://arxiv.org/abs/" in block.source
        assert block.formula.count("{") == block.formula.count("}")


@pytest.mark.parametrize("name", [name for name, block in BLOCKS.items() if "q_proj_weight" in block.inputs])
def test_replaced_matrices_are_those_of_a_block_that_has_them(name):
    block = BLOCKS[name]
    inputs = draw(block, SIZES["distinct"], OPTIONS["learned"])
    state = {spec.learned: inputs[key] for key, spec in block.inputs.items() if spec.learned}
    other = block.build()
    assert other.state_dict().keys() == state.keys()
    other.load_state_dict({key: torch.tensor(x) for key, x in state.items()})
    plain = {key: x for key, x in inputs.items() if not block.inputs[key].learned}
    expected = block.reference(other, plain, np.float64)
    actual = block.reference(block.build(), inputs, np.float64)
    for output, array in expected.items():
        np.testing.assert_array_equal(actual[output], array)
    with torch.no_grad():
        attended = block.build()(**{key: torch.tensor(x) for key, x in inputs.items()})
    np.testing.assert_allclose(attended.output, expected["output"], atol=1e-4)


def test_a_large_block_takes_no_matrices():
    """A request of that size would be no lesson, and the file would have every matrix twice."""
    small, large = (multi_head.block(MultiHeadConfig(d_model, 4)) for d_model in (496, 504))
    assert "q_proj_weight" in small.inputs
    assert "q_proj_weight" not in large.inputs
    assert "rope_theta" in large.inputs


@pytest.mark.parametrize("scale", [1.0, 0.25, 4.0])
def test_additive_by_its_formula(scale):
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((2, 3)), rng.standard_normal((4, 5)), rng.standard_normal((4, 2))
    w_q, w_k, v = rng.standard_normal((6, 3)), rng.standard_normal((6, 5)), rng.standard_normal((1, 6))
    scores = [[scale * v[0] @ np.tanh(w_q @ q + w_k @ k) for k in key] for q in query]
    block = Additive(AdditiveConfig(3, 5, 6, 2)).double()
    state = {"q_proj.weight": w_q, "k_proj.weight": w_k, "v.weight": v}
    block.load_state_dict({name: torch.tensor(x) for name, x in state.items()})
    with torch.no_grad():
        actual = block(*(torch.tensor(x)[None] for x in (query, key, value)), scale=scale)
    np.testing.assert_allclose(actual.scores[0, 0], scores, rtol=1e-12)
    np.testing.assert_allclose(actual.output[0], reference.softmax(np.array(scores)) @ value, rtol=1e-12)


def test_luong_concat_is_one_matrix_over_both():
    block = BLOCKS["luong_concat"].build().double()
    query, key = torch.randn(1, 32, dtype=torch.float64), torch.randn(1, 32, dtype=torch.float64)
    concatenated = torch.cat([block.q_proj.weight, block.k_proj.weight], 1)
    score = block.v.weight[0] @ torch.tanh(concatenated @ torch.cat([query[0], key[0]]))
    torch.testing.assert_close(block(query[None], key[None], key[None]).scores[0, 0, 0, 0], score)


def test_linear_by_the_definition_of_its_kernel():
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 1, 2, 9, 4))

    def phi(x):
        return np.where(x > 0, x + 1, np.exp(x))

    for is_causal in (False, True):
        kernel = np.einsum("bhmd,bhnd->bhmn", phi(query), phi(key)) * (np.tri(9) if is_causal else 1)
        weights = kernel / kernel.sum(-1, keepdims=True)
        actual = reference.linear_attention(query, key, value, is_causal=is_causal)
        np.testing.assert_allclose(actual["weights"], weights, rtol=1e-12)
        np.testing.assert_allclose(actual["output"], weights @ value, rtol=1e-10)


@pytest.mark.parametrize("m", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("n", [1, CHUNK, 2 * CHUNK + 7])
def test_linear_causal_over_every_shape_of_chunks(m, n):
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, 2, length, 3)) for length in (m, n, n))
    actual = Linear()(*map(torch.tensor, (query, key, value)), is_causal=True)
    exact = reference.linear_attention(query, key, value, is_causal=True)
    np.testing.assert_allclose(actual.output, exact["output"], rtol=1e-9)
    np.testing.assert_allclose(actual.weights, exact["weights"], rtol=1e-9)


def test_efficient_by_its_two_softmaxes():
    rng = np.random.default_rng(0)
    query, key, value = (torch.tensor(x) for x in rng.standard_normal((3, 1, 1, 6, 4)))
    truth = torch.softmax(query, -1) @ (torch.softmax(key, -2).transpose(-1, -2) @ value)
    np.testing.assert_allclose(reference.efficient(query, key, value)["output"], truth, rtol=1e-12)


def test_cosine_ignores_length_and_kernel_ignores_place():
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 1, 1, 5, 4))
    truth = torch.nn.functional.cosine_similarity(torch.tensor(query[0, 0])[:, None], torch.tensor(key[0, 0])[None], -1)
    np.testing.assert_allclose(reference.cosine(7 * query, 0.1 * key, value)["scores"][0, 0], truth, rtol=1e-12)
    moved, actual = (reference.kernel(query + by, key + by, value)["output"] for by in (3, 0))
    np.testing.assert_allclose(moved, actual, rtol=1e-9)


def test_kernel_of_far_keys_is_the_nearest_value():
    query, key = np.array([[[[0.0], [10.0]]]]), np.array([[[[1.0], [9.0]]]])
    actual = reference.kernel(query, key, np.array([[[[3.0], [4.0]]]]), bandwidth=0.5)
    np.testing.assert_allclose(actual["output"][0, 0, :, 0], [3, 4], atol=1e-9)


def test_multiplicative_with_a_mask():
    """Causality leaves the lower triangle of Q K^T; numbers in a mask are added to the products."""
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 1, 2, 5, 4))
    actual = reference.multiplicative(query, key, value, is_causal=True)
    products = query @ key.swapaxes(-1, -2)
    np.testing.assert_allclose(actual["weights"], np.tril(products))
    np.testing.assert_allclose(actual["output"], np.tril(products) @ value)
    added = rng.standard_normal((5, 5))
    actual = reference.multiplicative(query, key, value, scale=2, attn_mask=np.where(np.eye(5), -np.inf, added))
    np.testing.assert_allclose(actual["weights"], np.where(np.eye(5), 0, 2 * products + added))
