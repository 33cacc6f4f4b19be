"""Host memory that a GPU can read and write by itself (pinned), used again for the outputs of one run after another."""

import ctypes
import logging
import mmap
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from service.ort import cuda

log = logging.getLogger("heed")

MIN_POOLED_BYTES = 64 << 10  # shorter copies gain nothing
MAX_IDLE_BYTES = 256 << 20  # of blocks that no array uses
PORTABLE = 1  # cudaHostRegisterPortable: for every context

Pin = Callable[[int, int], None]  # takes an address and a size in bytes


class PinnedPool:
    """Ordinary arrays in blocks of memory that ``pin`` has prepared, in sizes of powers of two.

    When an array and all its views are freed, its block is kept for the next array, up to ``max_idle_bytes`` in all;
    further blocks are unpinned and freed.
    """

    def __init__(self, pin: Pin, unpin: Callable[[int], None], max_idle_bytes: int = MAX_IDLE_BYTES) -> None:
        self._pin = pin
        self._unpin = unpin
        self._max_idle_bytes = max_idle_bytes
        self._free: dict[int, list[mmap.mmap]] = defaultdict(list)
        self._lock = threading.RLock()  # reentrant: an array may be freed while another is made
        self.idle = 0  # bytes of blocks that no array uses

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array of ``shape`` with arbitrary numbers; a short one is in plain memory."""
        needed = prod(shape) * dtype.itemsize
        if needed < MIN_POOLED_BYTES:
            return np.empty(shape, dtype)
        size = 1 << (needed - 1).bit_length()
        with self._lock:
            free = self._free[size]
            block = free.pop() if free else None
            self.idle -= size if block else 0
        if block is None:
            block = mmap.mmap(-1, size)
            self._pin(_address(block), size)
        memory = np.frombuffer(block, np.uint8)  # every view refers to it
        weakref.finalize(memory, self._release, block).atexit = False
        return memory[:needed].view(dtype).reshape(shape)

    def _release(self, block: mmap.mmap) -> None:
        with self._lock:
            if self.idle + len(block) <= self._max_idle_bytes:
                self._free[len(block)].append(block)
                self.idle += len(block)
                return
        self._unpin(_address(block))


def pinned() -> PinnedPool:
    """A pool pinned by the CUDA runtime that ONNX Runtime has loaded; where it refuses, a warning is logged."""
    runtime = cuda.runtime()

    def pin(address: int, size: int) -> None:
        code = runtime.cudaHostRegister(address, size, PORTABLE)
        if code:
            runtime.cudaGetLastError()  # or the next call would report it
            log.warning("%d bytes of host memory could not be pinned (CUDA error %d): copies are slower", size, code)

    return PinnedPool(pin, runtime.cudaHostUnregister)


def plain() -> PinnedPool:
    """A pool of ordinary memory."""
    return PinnedPool(lambda _address, _size: None, lambda _address: None)


def _address(block: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(block))
