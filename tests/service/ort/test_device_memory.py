"""Arrays on a device have numpy's views and assignments."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from service.ort import cuda, device_memory
from service.ort.failures import RUN_ERRORS, FailureKind, classify
from tests.support.device import emulate_device

SHAPE = (6, 4, 3, 2)
VIEWS = {
    "a row": 0,
    "rows": slice(2, 5),
    "one slot of rows": (slice(1, 4), 2),
    "slots of rows": (slice(1, 6), slice(1, 3)),
    "no rows": (slice(3, 3), 1),
    "no slots": (slice(0, 6), slice(4, None)),
}


@pytest.fixture(autouse=True)
def device(monkeypatch):
    emulate_device(monkeypatch)


def numbers(array):
    """A view of the numbers of a contiguous array of the emulated device."""
    held = (ctypes.c_float * int(np.prod(array.shape))).from_address(array.address)
    return np.frombuffer(held, np.float32).reshape(array.shape)


def filled(seed):
    array = device_memory.empty(SHAPE, np.dtype(np.float32))
    numbers(array)[...] = np.random.default_rng(seed).standard_normal(SHAPE, np.float32)
    return array


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_are_zeroed_and_copied_as_numpys_are(view):
    array, other = filled(0), filled(1)
    zeroed, copied = numbers(array).copy(), numbers(other).copy()
    zeroed[view] = 0
    copied[view] = zeroed[view]
    array[view] = 0
    other[view] = array[view]
    np.testing.assert_array_equal(numbers(array), zeroed)
    np.testing.assert_array_equal(numbers(other), copied)


def test_a_slot_is_copied_to_another_slot():
    array, other = filled(0), filled(1)
    expected = numbers(array).copy()
    expected[1:3, 0] = numbers(other)[4:6, 3]
    array[1:3, 0] = other[4:6, 3]
    np.testing.assert_array_equal(numbers(array), expected)


@pytest.mark.parametrize(("code", "kind"), [(2, FailureKind.MEMORY), (700, FailureKind.DEVICE)])
def test_an_error_of_cuda_is_one_of_a_run(monkeypatch, code, kind):
    array = filled(0)
    failing = SimpleNamespace(cudaMemset2D=lambda *_: code, cudaStreamSynchronize=lambda _: 0)
    monkeypatch.setattr(cuda, "runtime", lambda: failing)
    with pytest.raises(RUN_ERRORS) as error:
        array[0] = 0
    assert classify(str(error.value)) is kind
