"""Numbers in bfloat16, which numpy does not have: rounded on their way in, and what they are on their way out."""

import ml_dtypes
import numpy as np

from service.tensors.bfloat16 import BFLOAT16, astype, dtype_name, to_float32


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
