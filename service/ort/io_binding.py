"""Runs that read inputs and write outputs in place, without copies on the host.

``session.run`` allocates its outputs; here the caller does, so that a GPU can write into memory that it reaches by
itself. Inputs are copied to the device, and outputs from it, on the run's own stream, so that the copies of one run
overlap the computation of another: each thread that runs has a stream of its own. (An ``IOBinding`` copies inputs when
they are bound: at once, and holding the interpreter's lock.) bfloat16, which numpy does not have, passes as it is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from service.ort.device_memory import DEVICE, Array, DeviceArray, run_errors, synchronize
from service.ort.pinned_memory import PinnedPool
from service.tensors.bfloat16 import BFLOAT16, ELEMENT

Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype]]

HOST = ort.OrtDevice(ort.OrtDevice.cpu(), ort.OrtDevice.default_memory(), 0)


def run_bound(
    session: onnxruntime.InferenceSession,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    shapes: Shapes | None,
    memory: PinnedPool,
    options: onnxruntime.RunOptions | None = None,
) -> dict[str, np.ndarray]:
    """``outputs`` of ``session``, in ``memory`` where their ``shapes`` are known.

    Raises:
        Exception: ONNX Runtime's own.
    """
    given = [contiguous(array) for array in inputs.values()]
    arrays = [memory.empty(*shapes[name]) for name in outputs] if shapes is not None else []
    feeds, fetches = _vector(given), _vector(arrays)
    hosts = [HOST] * len(outputs)
    session.run_with_ortvaluevector(options or onnxruntime.RunOptions(), [*inputs], feeds, [*outputs], fetches, hosts)
    if shapes is None:
        arrays = [read(value) for value in fetches]
    return dict(zip(outputs, arrays, strict=True))


def run_into(
    session: onnxruntime.InferenceSession,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    options: onnxruntime.RunOptions | None = None,
) -> None:
    """Run ``session`` and write each output into its array. Inputs and outputs are contiguous.

    Raises:
        Exception: ONNX Runtime's own.
    """
    arrays = [array for array in (*inputs.values(), *outputs.values()) if isinstance(array, np.ndarray)]
    if len(arrays) < len(inputs) + len(outputs):
        _run_on_device(session, inputs, outputs, options)
        return
    feeds, fetches = _vector(arrays[: len(inputs)]), _vector(arrays[len(inputs) :])
    hosts = [HOST] * len(outputs)
    session.run_with_ortvaluevector(options or onnxruntime.RunOptions(), [*inputs], feeds, [*outputs], fetches, hosts)


def _run_on_device(
    session: onnxruntime.InferenceSession,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    options: onnxruntime.RunOptions | None,
) -> None:
    """The same, with some of the arrays on the device. Those on the host are small: binding copies them at once."""
    binding = ort.SessionIOBinding(session._sess)  # which takes a device as it is
    with run_errors():
        for name, array in inputs.items():
            if isinstance(array, DeviceArray):
                binding.bind_input(name, DEVICE, array.dtype.type, array.shape, array.address)
            else:
                binding.bind_input(name, array)
        for name, array in outputs.items():
            device, address = (DEVICE, array.address) if isinstance(array, DeviceArray) else (HOST, array.ctypes.data)
            binding.bind_output(name, device, array.dtype.type, array.shape, address)
        synchronize()
        session._sess.run_with_iobinding(binding, options)
        synchronize()


def _vector(arrays: Sequence[np.ndarray]) -> ort.OrtValueVector:
    vector = ort.OrtValueVector()
    for array in arrays:
        vector.push_back(value_of(array))
    return vector


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array, or a contiguous copy; numpy's own function adds an axis to a single number."""
    return array if array.flags.c_contiguous else array.copy()


def value_of(array: np.ndarray) -> ort.OrtValue:
    """An ONNX Runtime value in the memory of a contiguous array; strings are copied."""
    if array.dtype == BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), ELEMENT)
    return ort.OrtValue.ortvalue_from_numpy(array, HOST)


def read(value: ort.OrtValue) -> np.ndarray:
    """The numbers of a value, copied to the host, or in the same memory if they are there."""
    if value.element_type() != ELEMENT:
        array: np.ndarray = value.numpy()
        return array
    raw = np.empty(value.shape(), np.uint16)
    ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, ELEMENT).update_inplace(value)
    return raw.view(BFLOAT16)
