"""Symbolic dimensions, bound by hand."""

import pytest

from service.base.errors import Invalid
from service.tensors.dims import DimBinder, dim_size, format_dims, symbol


def test_reading_a_dimension():
    assert [symbol(dim) for dim in (64, "m", "1|batch", "past + n", "1|8")] == ["64", "m", "batch", "past + n", "8"]
    assert format_dims(("batch", 8, "1|past + n")) == "[batch, 8, past + n]"
    assert dim_size("1|past + n", {"past": 2, "n": 3}) == 5
    assert dim_size(7, {}) == 7


def test_the_first_tensor_says_the_size():
    binder = DimBinder()
    binder.bind("query", ("batch", "m"), (2, 5))
    with pytest.raises(Invalid, match=r"key: expected axis 0 \(batch\) to be 2, as in query, got 3 \(shape \[3, 7\]\)"):
        binder.bind("key", ("batch", "n"), (3, 7))


@pytest.mark.parametrize("shape", [(1, 5), (2, 5)])
def test_broadcast_is_one_or_the_size(shape):
    binder = DimBinder()
    binder.bind("query", ("batch",), (2,))
    binder.bind("mask", ("1|batch", "1|m"), shape)
    with pytest.raises(Invalid, match="1 or 2"):
        binder.bind("mask", ("1|batch", "1|m"), (3, 5))


def test_multiples():
    binder = DimBinder()
    binder.bind("query", ("heads",), (6,))
    binder.bind("key", ("kv_heads",), (4,))
    with pytest.raises(Invalid, match="key: expected kv_heads to divide 6"):
        binder.multiple({"heads": "kv_heads"})


@pytest.mark.parametrize(
    ("shape", "said"),
    [((2,), r"expected shape \[batch, m\], got shape \[2\]"), ((2, 0), r"axis 1 \(m\) to be at least 1")],
)
def test_refuses(shape, said):
    with pytest.raises(Invalid, match=said):
        DimBinder().bind("query", ("batch", "m"), shape)
