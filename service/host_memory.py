"""Host memory that a GPU reads and writes by itself (pinned), lent to answers and taken back when nobody holds them."""

import ctypes
import logging
import mmap
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from service import cuda

log = logging.getLogger("heed")

LEAST = 64 << 10  # bytes; shorter copies gain nothing
KEPT = 256 << 20  # bytes that wait for their next use, at most
PORTABLE = 1  # cudaHostRegisterPortable: for every context

Pin = Callable[[int, int], None]  # of the bytes at an address


class HostMemory:
    """Arrays whose memory ``pin`` has prepared, in sizes of powers of two, used again and again.

    An array is an ordinary one. When it and all its views are gone, its memory is kept for the next, up to ``kept``
    bytes in all; what is more is given back to the system, after ``unpin``.
    """

    def __init__(self, pin: Pin, unpin: Callable[[int], None], kept: int = KEPT) -> None:
        self._pin = pin
        self._unpin = unpin
        self._kept = kept
        self._free: dict[int, list[mmap.mmap]] = defaultdict(list)
        self._lock = threading.RLock()  # as an array may end while another is asked for
        self.idle = 0  # bytes that wait

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array of ``shape``, whatever its numbers; in plain memory where it is short."""
        needed = prod(shape) * dtype.itemsize
        if needed < LEAST:
            return np.empty(shape, dtype)
        size = 1 << (needed - 1).bit_length()
        with self._lock:
            free = self._free[size]
            block = free.pop() if free else None
            self.idle -= size if block else 0
        if block is None:
            block = mmap.mmap(-1, size)
            self._pin(_address(block), size)
        lent = np.frombuffer(block, np.uint8)  # every view of it holds on to it
        weakref.finalize(lent, self._take_back, block).atexit = False
        return lent[:needed].view(dtype).reshape(shape)

    def _take_back(self, block: mmap.mmap) -> None:
        with self._lock:
            if self.idle + len(block) <= self._kept:
                self._free[len(block)].append(block)
                self.idle += len(block)
                return
        self._unpin(_address(block))


def pinned(device: int) -> HostMemory:
    """Memory pinned by the CUDA runtime that ONNX Runtime has loaded; plain, with a warning, where that refuses."""
    runtime = cuda.runtime()

    def pin(address: int, size: int) -> None:
        runtime.cudaSetDevice(device)  # of this thread, which would take the first
        code = runtime.cudaHostRegister(address, size, PORTABLE)
        if code:
            runtime.cudaGetLastError()  # or the next call would be taken to have failed
            log.warning("%d bytes of host memory could not be pinned (CUDA error %d): copies are slower", size, code)

    return HostMemory(pin, runtime.cudaHostUnregister)


def plain() -> HostMemory:
    """Memory that no device shares."""
    return HostMemory(lambda _address, _size: None, lambda _address: None)


def _address(block: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(block))
