"""Blocks in half precision: their types, sums that must not overflow, and the error beside torch's."""

import ml_dtypes
import numpy as np
import pytest
import torch

from models import reference
from models.attention import attention
from models.catalogue import BLOCKS
from models.precision import in_precision

HALF = [torch.float16, torch.bfloat16]


def randn(*shape, dtype):
    return torch.randn(shape).to(dtype)


def exact(*tensors):
    return [tensor.double().numpy() for tensor in tensors]


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("option", ["plain", "is_causal", "attn_mask"])
def test_the_error_is_no_more_than_twice_that_of_the_formula_in_torch(dtype, option):
    torch.manual_seed(0)
    query, key, value = randn(2, 4, 65, 32, dtype=dtype), *(randn(2, 4, 97, 32, dtype=dtype) for _ in range(2))
    options = {
        "plain": {},
        "is_causal": {"is_causal": True},
        "attn_mask": {"attn_mask": torch.where(torch.rand(65, 97) < 0.3, -torch.inf, torch.randn(65, 97)).to(dtype)},
    }[option]
    scores = query @ key.transpose(-1, -2) * 32**-0.5 + options.get("attn_mask", torch.zeros((), dtype=dtype))
    if option == "is_causal":
        scores = scores.masked_fill(torch.ones(65, 97, dtype=torch.bool).triu(1), -torch.inf)
    theirs = torch.softmax(scores, -1) @ value
    given = {name: x.double().numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    truth = reference.attention(*exact(query, key, value), **given)
    actual = attention(query, key, value, **options)
    assert actual.output.dtype == actual.weights.dtype == actual.scores.dtype == dtype
    allowed = 2 * np.abs(theirs.double().numpy() - truth["output"]).max() + torch.finfo(dtype).eps
    assert np.abs(actual.output.double().numpy() - truth["output"]).max() <= allowed


@pytest.mark.parametrize("dtype", HALF)
def test_a_row_with_all_keys_masked_is_zero(dtype):
    x = randn(1, 2, 3, 8, dtype=dtype)
    mask = torch.zeros(3, 3, dtype=dtype)
    mask[1] = -torch.inf
    actual = attention(x, x, x, attn_mask=mask)
    assert not actual.output[:, :, 1].any()
    assert not actual.weights[:, :, 1].any()
    assert torch.isfinite(actual.output).all()


@pytest.mark.parametrize("dtype", HALF)
def test_the_lowest_number_masks_no_key(dtype):
    x = randn(1, 1, 3, 8, dtype=dtype)
    mask = torch.full((3, 3), torch.finfo(dtype).min, dtype=dtype)
    assert torch.allclose(attention(x / 8, x / 8, x, attn_mask=mask).weights.float(), torch.tensor(1 / 3), atol=1e-2)


def test_a_scale_may_exceed_float16():
    query, key = torch.full((1, 1, 1, 1), 2.0**-14).half(), torch.tensor([[[[1.0], [0.5]]]]).half()
    actual = attention(query, key, key, scale=torch.tensor(2.0**17))
    assert actual.scores.flatten().tolist() == [8, 4]


@pytest.mark.parametrize(
    ("name", "scale"),
    [("cosine", 300), ("cosine", 0), ("linear", 60), ("efficient", 10), ("kernel", 200)],
)
def test_squares_and_sums_may_exceed_float16(name, scale):
    block = in_precision(BLOCKS[name], "float16")
    torch.manual_seed(0)
    query, key = (scale * randn(1, 1, length, 16, dtype=torch.float16) for length in (3, 5000))
    value = randn(1, 1, 5000, 4, dtype=torch.float16)
    module = block.build()
    actual = module(query, key, value)
    query, key, value = exact(query, key, value)
    truth = block.reference(module, {"query": query, "key": key, "value": value}, np.float64)
    error = np.abs(actual.output.double().numpy() - truth["output"]).max()
    assert error <= 8 * np.finfo(np.float16).eps * max(1, np.abs(truth["output"]).max())


@pytest.mark.parametrize("name", BLOCKS)
def test_tensors_are_half_and_parameters_are_not(name):
    block, half = BLOCKS[name], in_precision(BLOCKS[name], "bfloat16")
    assert (half.name, half.dtype) == (f"{name}_bfloat16", "bfloat16")
    for key, spec in block.inputs.items():
        expected = "bfloat16" if spec.dtype == "float32" and spec.shape else spec.dtype
        assert half.inputs[key].dtype == expected
    assert {parameter.dtype for parameter in half.build().parameters()} <= {torch.bfloat16}
    assert in_precision(block, "float32") is block


def test_the_reference_of_a_half_block_takes_its_rounded_weights():
    block = in_precision(BLOCKS["luong_general"], "bfloat16")
    module = block.build()
    rng = np.random.default_rng(0)
    shapes = {"query": (1, 3, 24), "key": (1, 4, 32), "value": (1, 4, 32)}
    inputs = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    matrix = module.q_proj.weight.detach().float().numpy().astype(np.float64)
    assert (matrix == matrix.astype(ml_dtypes.bfloat16)).all()
    scores = inputs["query"] @ matrix.T @ inputs["key"].swapaxes(-1, -2)
    np.testing.assert_allclose(block.reference(module, inputs, np.float64)["scores"][:, 0], scores, rtol=1e-12)
