"""The torch modules of the blocks, against the reference and torch's own attention."""

import numpy as np
import pytest
import torch

from models.attention import attention
from models.catalogue import BLOCKS, find
from models.examples import examples
from models.multi_head import MultiHeadConfig


@pytest.mark.parametrize("name", BLOCKS)
def test_every_example_in_double(name):
    block = BLOCKS[name]
    module = block.build()
    module.double()
    for example, inputs in examples(block):
        tensors = {key: torch.as_tensor(value) for key, value in inputs.items()}
        tensors = {key: value.double() if value.is_floating_point() else value for key, value in tensors.items()}
        with torch.no_grad():
            actual = module(**tensors)._asdict()
        for output, exact in block.reference(module, inputs, np.float64).items():
            np.testing.assert_allclose(
                actual[output].numpy(), exact, rtol=1e-6, atol=1e-7, err_msg=f"{example} {output}"
            )


def test_plain_python_options():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, length, 4, dtype=torch.float64) for length in (3, 5, 5))
    causal = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(attention(q, k, v, is_causal=True).output, causal)
    allowed = torch.rand(3, 5) < 0.7
    masked = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    torch.testing.assert_close(attention(q, k, v, attn_mask=allowed).output, masked)
    capped = attention(q, k, v, softcap=1.5, scale=2.0).scores
    torch.testing.assert_close(capped, 1.5 * torch.tanh(2 * q @ k.transpose(-1, -2) / 1.5))
    window = attention(q, k, v, left_window_size=1, right_window_size=0).weights > 0
    assert window[0, 0].tolist() == [
        [True] + [False] * 4,
        [True, True] + [False] * 3,
        [False, True, True] + [False] * 2,
    ]


def test_weights_of_a_block_are_the_same_each_time():
    first, second = (BLOCKS["multi_head"].build().state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_unknown_block_is_an_error_with_all_names():
    with pytest.raises(ValueError, match="scaled_dot_product"):
        find("scaled")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"d_model": 64, "num_heads": 7}, "not a multiple of num_heads"),
        ({"d_model": 0, "num_heads": 1}, "positive"),
        ({"d_model": 64, "num_heads": 8, "num_kv_heads": 3}, "not a multiple of num_kv_heads"),
        ({"d_model": 64, "num_heads": 8, "kdim": 3, "inputs": "x"}, "one input"),
        ({"d_model": 64, "num_heads": 8, "kdim": 3, "vdim": 4, "inputs": "x, memory"}, "width of the memory"),
        ({"d_model": 64, "num_heads": 8, "inputs": "y"}, "inputs must be"),
    ],
)
def test_config_refuses(sizes, expected):
    with pytest.raises(ValueError, match=expected):
        MultiHeadConfig(**sizes)
