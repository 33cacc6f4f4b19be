"""What a run is estimated to cost, from its sizes."""

import numpy as np
import pytest

from service.model.estimate import run_size
from service.model.spec import BlockSpec, Signature
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
    pairs = 4 * 2 * 2 * 10 * 10
    assert run_size(signature(**entries), {}, SIZES) == 16 * pairs + 1000 * rows
