"""The inputs of a run with several rows of one text, as the cells of a sweep share it."""

from types import SimpleNamespace

import numpy as np
import pytest

from service.interventions.intervenable import Intervenable
from service.model.spec import Placeholder
from service.tensors.spec import TensorSpec

SHAPES = {"input_ids": ("batch", "n"), "pixel_values": ("images", 2), "head_mask": (3, 4)}
PICTURE = Placeholder(token=7, count=1)


@pytest.fixture
def intervenable():
    """A version of a model that reads pictures."""
    signature = SimpleNamespace(placeholders={"pixel_values": PICTURE})
    tensors = {name: TensorSpec(name, np.dtype(np.float32), shape) for name, shape in SHAPES.items()}
    return Intervenable(None, SimpleNamespace(model=SimpleNamespace(inputs=tensors, signature=signature)))


def test_each_row_has_the_pictures_in_their_order(intervenable):
    pictures = np.array([[1.0, 2.0], [3.0, 4.0]])
    inputs = {"input_ids": np.array([[5, 7, 7]]), "pixel_values": pictures, "head_mask": np.ones((3, 4))}
    rows = intervenable.in_rows(inputs, 3)
    np.testing.assert_array_equal(rows["input_ids"], [[5, 7, 7]] * 3)
    np.testing.assert_array_equal(rows["pixel_values"], np.concatenate([pictures] * 3))
    assert rows["head_mask"].shape == (3, 4)
    views = intervenable.rows_of(inputs, 3)
    assert {name: view.shape for name, view in views.items()} == {name: array.shape for name, array in rows.items()}
    assert all(np.shares_memory(views[name], inputs[name]) for name in inputs)


def test_the_pictures_of_all_rows_are_a_dimension_of_the_run(intervenable):
    assert intervenable.sizes_of({"batch": 1, "n": 3, "images": 2}, 4) == {"batch": 4, "n": 3, "images": 8}
