"""Runs whose tensors stay where they are: ONNX Runtime reads the inputs and writes the outputs in place.

``session.run`` allocates what it answers; here the caller does, so that a GPU can write into memory that it reaches by
itself. Inputs are copied to the device, and outputs from it, on the run's own stream, so that the copies of one run
overlap the work of another. (An ``IOBinding`` copies inputs when they are bound: at once, and holding the interpreter.)
bfloat16, which numpy does not have, passes as it is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from service.bfloat16 import BFLOAT16, ELEMENT
from service.host_memory import HostMemory

Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype]]

HOST = ort.OrtDevice(ort.OrtDevice.cpu(), ort.OrtDevice.default_memory(), 0)


def run_bound(
    session: onnxruntime.InferenceSession,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    shapes: Shapes | None,
    memory: HostMemory,
) -> dict[str, np.ndarray]:
    """``outputs`` of ``session``, in ``memory`` where their ``shapes`` are known.

    Raises:
        Exception: ONNX Runtime's own.
    """
    given = [contiguous(array) for array in inputs.values()]
    found = [memory.empty(*shapes[name]) for name in outputs] if shapes is not None else []
    feeds, fetches = _vector(given), _vector(found)
    options, hosts = onnxruntime.RunOptions(), [HOST] * len(outputs)
    session.run_with_ortvaluevector(options, [*inputs], feeds, [*outputs], fetches, hosts)
    if shapes is None:
        found = [read(value) for value in fetches]
    return dict(zip(outputs, found, strict=True))


def _vector(arrays: Sequence[np.ndarray]) -> ort.OrtValueVector:
    vector = ort.OrtValueVector()
    for array in arrays:
        vector.push_back(value_of(array))
    return vector


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array, or a copy without gaps; numpy's own function gives a single number an axis."""
    return array if array.flags.c_contiguous else array.copy()


def value_of(array: np.ndarray) -> ort.OrtValue:
    """The same memory, as ONNX Runtime sees it, of an array without gaps. Strings have none that it could."""
    if array.dtype == BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), ELEMENT)
    return ort.OrtValue.ortvalue_from_numpy(array, HOST)


def read(value: ort.OrtValue) -> np.ndarray:
    """The numbers of a value, copied to the host from wherever they are; the same memory if that is the host."""
    if value.element_type() != ELEMENT:
        array: np.ndarray = value.numpy()
        return array
    raw = np.empty(value.shape(), np.uint16)
    ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, ELEMENT).update_inplace(value)
    return raw.view(BFLOAT16)
