"""Arrays on a device have numpy's views and assignments."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from export.verification.sessions import session
from service.ort import cuda, device_memory, io_binding
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
    cleared = []
    failing = SimpleNamespace(cudaMemset2D=lambda *_: code, cudaGetLastError=lambda: cleared.append(code))
    monkeypatch.setattr(cuda, "runtime", lambda: failing)
    with pytest.raises(RUN_ERRORS) as error:
        array[0] = 0
    assert classify(str(error.value)) is kind
    assert cleared == [code]


def test_too_little_memory_is_an_error_of_a_run():
    with pytest.raises(RUN_ERRORS) as error:
        device_memory.empty((1 << 46, 4), np.dtype(np.float32))
    assert classify(str(error.value)) is FailureKind.MEMORY


def test_a_run_that_fails_has_the_errors_of_other_runs(generating):
    """With rows of another width than the graph's."""
    graph = session(generating / "models" / "gpt" / "1" / "decode_output.onnx")
    past = {node.name: filled(0) for node in graph.get_inputs() if node.name.startswith("past_")}
    given = {"input_ids": np.zeros((1, 1), np.int64), "attention_mask": np.ones((1, 6), np.int64), **past}
    with pytest.raises(RUN_ERRORS):
        io_binding.run_into(graph, given, {"logits": np.empty((1, 60), np.float32)})


def test_a_copy_has_the_numbers():
    array = np.arange(24, dtype=np.float32).reshape(6, 4)
    np.testing.assert_array_equal(numbers(device_memory.copied(array)), array)
