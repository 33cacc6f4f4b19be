"""Numbers in bfloat16, which numpy does not have: rounded on their way in, and what they are on their way out."""

from contextlib import nullcontext

import ml_dtypes
import numpy as np
import pytest

from service.base.errors import Invalid
from service.tensors.bfloat16 import BFLOAT16, astype, dtype_name, to_float32
from service.tensors.cast import cast


def test_every_float32_is_rounded_as_it_should_be():
    numbers = np.random.default_rng(0).integers(0, 2**32, 1_000_000, np.uint32).view(np.float32)
    numbers = np.append(numbers, np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8]))
    with np.errstate(all="ignore"):
        expected = numbers.astype(ml_dtypes.bfloat16).astype(np.float32)
    held = astype(numbers, BFLOAT16)
    assert held.dtype == BFLOAT16
    np.testing.assert_array_equal(to_float32(held), expected)
    assert astype(held, np.dtype(np.float64)).dtype == np.float64
    assert [dtype_name(np.dtype(of)) for of in (BFLOAT16, np.float16)] == ["bfloat16", "float16"]


@pytest.mark.parametrize(("numbers", "fault"), [([0, 3], None), ([0.5, 3], "fractions"), ([np.inf, 3], "fractions")])
def test_whole_numbers_may_be_sent_in_it(numbers, fault):
    array = astype(np.asarray(numbers, np.float32), BFLOAT16)
    with np.errstate(invalid="ignore"), nullcontext() if fault is None else pytest.raises(Invalid, match=fault):
        assert cast("input_ids", array, np.dtype(np.int64)).tolist() == numbers
