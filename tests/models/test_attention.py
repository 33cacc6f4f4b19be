"""The attention of the reference and that of the torch modules, by hand, by torch's own, and beside each other."""

import numpy as np
import pytest
import torch

from models import reference
from models.attention import attention
from models.catalogue import BLOCKS
from models.examples import SIZES, examples
from models.multi_head import MultiHeadConfig

SHORT = [name for name in SIZES if name not in ("square", "blocks", "long")]


def in_torch(*tensors, **options):
    """``models.attention`` in float64, called as the reference is."""
    converted = {name: torch.as_tensor(x) if isinstance(x, np.ndarray | list) else x for name, x in options.items()}
    attended = attention(*(torch.as_tensor(np.asarray(x, np.float64)) for x in tensors), **converted)
    return {name: x.numpy() for name, x in attended._asdict().items() if x is not None}


@pytest.fixture(params=[reference.attention, in_torch], ids=["reference", "torch"])
def attend(request):
    return request.param


PAST = {"past_key": np.ones((1, 1, 3, 1)), "past_value": np.ones((1, 1, 3, 1))}
VISIBLE = {  # numbers of queries and keys, options, and which keys each query of each batch row attends to
    "causal past": (2, 2, PAST | {"is_causal": True}, [["11110", "11111"]]),
    "causal lengths": (
        2,
        4,
        {"nonpad_kv_seqlen": np.array([4, 2]), "is_causal": True},
        [["1110", "1111"], ["1000", "1100"]],
    ),
    "window": (4, 4, {"left_window_size": 1, "right_window_size": 0}, [["1000", "1100", "0110", "0011"]]),
    "no keys": (2, 2, {"attn_mask": np.array([[True, False], [False, False]])}, [["10", "00"]]),
}


@pytest.mark.parametrize(("m", "n", "options", "expected"), VISIBLE.values(), ids=VISIBLE.keys())
def test_the_keys_that_a_query_attends_to(attend, m, n, options, expected):
    """A row without keys is zero."""
    query, key = np.ones((len(expected), 1, m, 1)), np.ones((len(expected), 1, n, 1))
    actual = attend(query, key, key, **options)
    rows = [["".join(str(int(weight > 0)) for weight in row) for row in batch] for batch in actual["weights"][:, 0]]
    assert rows == expected
    np.testing.assert_allclose(actual["output"][:, 0, :, 0], [["1" in row for row in batch] for batch in expected])


def test_key_lengths_and_past_exclude_each_other():
    x = np.ones((1, 1, 1, 1))
    with pytest.raises(ValueError, match="exclude"):
        reference.attention(x, x, x, nonpad_kv_seqlen=[1], past_key=x, past_value=x)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("option", ["plain", "is_causal", "boolean mask", "float mask"])
def test_it_is_the_attention_of_torch(attend, kv_heads, option):
    torch.manual_seed(kv_heads)
    shapes = (6, 5, 8), (kv_heads, 7, 8), (kv_heads, 7, 9)
    tensors = [torch.randn(2, *shape, dtype=torch.float64) for shape in shapes]
    options = {
        "plain": {},
        "is_causal": {"is_causal": True},
        "boolean mask": {"attn_mask": torch.rand(5, 7) < 0.8},
        "float mask": {"attn_mask": torch.randn(2, 1, 5, 7, dtype=torch.float64)},
    }[option]
    truth = torch.nn.functional.scaled_dot_product_attention(*tensors, **options, enable_gqa=True)
    given = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    actual = attend(*(x.numpy() for x in tensors), **given)
    np.testing.assert_allclose(actual["output"], truth.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sizes", [SHORT, pytest.param(SIZES, marks=pytest.mark.extended)], ids=["short", "all"])
@pytest.mark.parametrize("name", BLOCKS)
def test_every_example_in_double(name, sizes):
    block = BLOCKS[name]
    module = block.build()
    module.double()
    for example, inputs in examples(block, sizes):
        tensors = {key: torch.as_tensor(value) for key, value in inputs.items()}
        tensors = {key: value.double() if value.is_floating_point() else value for key, value in tensors.items()}
        with torch.no_grad():
            actual = module(**tensors)._asdict()
        for output, exact in block.reference(module, inputs, np.float64).items():
            np.testing.assert_allclose(
                actual[output].numpy(), exact, rtol=1e-6, atol=1e-7, err_msg=f"{example} {output}"
            )


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"num_heads": 7}, "not a multiple of num_heads"),
        ({"d_model": 0, "num_heads": 1}, "positive"),
        ({"num_kv_heads": 3}, "not a multiple of num_kv_heads"),
        ({"kdim": 3, "inputs": "x"}, "one input"),
        ({"kdim": 3, "vdim": 4, "inputs": "x, memory"}, "width of the memory"),
        ({"inputs": "y"}, "inputs must be"),
    ],
)
def test_config_refuses(sizes, expected):
    with pytest.raises(ValueError, match=expected):
        MultiHeadConfig(**{"d_model": 64, "num_heads": 8} | sizes)
