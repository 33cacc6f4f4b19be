"""Arrays in a GPU's memory, which runs read and write in place: no step of a generation copies the keys of all others.

A ``DeviceArray`` has of numpy's arrays the operations that keys and values need: views of rows, and of the slots in
them, and assignment of zeros or of another array.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from service.ort import cuda

DEVICE = ort.OrtDevice(ort.OrtDevice.cuda(), ort.OrtDevice.default_memory(), 0)
DEVICE_TO_DEVICE = 3  # cudaMemcpyDeviceToDevice
DEFAULT_STREAM = None

Rows = int | slice


@dataclass(frozen=True)
class DeviceArray:
    """Numbers [rows, slots, ...] in ``memory``: ``width`` bytes for each row, which begin ``pitch`` bytes apart."""

    memory: Any  # ONNX Runtime's value, which is freed with the last view
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype
    pitch: int

    @property
    def width(self) -> int:
        return prod(self.shape[1:]) * self.dtype.itemsize

    def __getitem__(self, index: Rows | tuple[Rows, Rows]) -> "DeviceArray":
        """A view of some rows and of some slots; an axis with a number as its index has size 1."""
        rows, slots = index if isinstance(index, tuple) else (index, slice(None))
        first, count = _range(rows, self.shape[0])
        slot, most = _range(slots, self.shape[1])
        offset = first * self.pitch + slot * prod(self.shape[2:]) * self.dtype.itemsize
        return replace(self, address=self.address + offset, shape=(count, most, *self.shape[2:]))

    def __setitem__(self, index: Rows | tuple[Rows, Rows], value: Any) -> None:
        """Copy an array of the same shape on the device, or set all bits to 0.

        Raises:
            RuntimeException: as ``check`` does.
        """
        view, runtime = self[index], cuda.runtime()
        if not prod(view.shape):
            return
        to = (view.address, view.pitch)
        if isinstance(value, DeviceArray):
            assert value.shape == view.shape, "arrays of one shape"
            given = (value.address, value.pitch)
            code = runtime.cudaMemcpy2D(*to, *given, view.width, view.shape[0], DEVICE_TO_DEVICE)
        else:
            code = runtime.cudaMemset2D(*to, value, view.width, view.shape[0])
        check(code or runtime.cudaStreamSynchronize(DEFAULT_STREAM))  # runs are in other streams


Array = np.ndarray | DeviceArray


def empty(shape: Sequence[int], dtype: np.dtype) -> DeviceArray:
    """An array of ``shape`` with arbitrary numbers.

    Raises:
        RuntimeException: the device has too little memory.
    """
    with run_errors():
        memory = ort.OrtValue.ortvalue_from_shape_and_type([*shape], dtype.type, DEVICE)
    return _whole(memory, shape, dtype)


def copied(array: np.ndarray) -> DeviceArray:
    """The numbers of a contiguous array, on the device.

    Raises:
        RuntimeException: the device has too little memory.
    """
    with run_errors():
        memory = ort.OrtValue.ortvalue_from_numpy(array, DEVICE)
    return _whole(memory, array.shape, array.dtype)


def _whole(memory: Any, shape: Sequence[int], dtype: np.dtype) -> DeviceArray:
    """All numbers of ``memory``."""
    return DeviceArray(memory, memory.data_ptr(), tuple(shape), dtype, prod(shape[1:]) * dtype.itemsize)


@contextmanager
def run_errors() -> Iterator[None]:
    """A context in which an error of ONNX Runtime has the type that those of its other ways to run have.

    Raises:
        RuntimeException: with the text of the error, by which it is classified.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise ort.RuntimeException(str(error)) from None


def synchronize() -> None:
    """Wait for the device. ONNX Runtime's own function does so with the interpreter's lock, and stops all threads."""
    check(cuda.runtime().cudaDeviceSynchronize())


def check(code: int) -> None:
    """Raise an error of the CUDA runtime, and clear it, or the next call would report it.

    Raises:
        RuntimeException: ``code`` is one; its text says whether the device has failed.
    """
    if code:
        cuda.runtime().cudaGetLastError()
        raise ort.RuntimeException(f"CUDA failure {code}: keys and values could not be computed on the device")


def _range(index: Rows, size: int) -> tuple[int, int]:
    """The first of the elements that ``index`` names, and their number."""
    start, stop, _ = (index if isinstance(index, slice) else slice(index, index + 1)).indices(size)
    return start, max(0, stop - start)
