"""A device whose memory is the host's, and the part of the CUDA runtime that copies in it."""

import ctypes
from types import SimpleNamespace

from service.ort import cuda, device_memory, io_binding


def emulate_device(monkeypatch):
    """Keep the arrays of a device in host memory, and copy them as cudaMemcpy2D and cudaMemset2D do."""

    def copy(to, to_pitch, source, source_pitch, width, rows, _kind):
        for row in range(rows):
            ctypes.memmove(to + row * to_pitch, source + row * source_pitch, width)
        return 0

    def fill(to, pitch, value, width, rows):
        for row in range(rows):
            ctypes.memset(to + row * pitch, value, width)
        return 0

    runtime = SimpleNamespace(
        cudaMemcpy2D=copy,
        cudaMemset2D=fill,
        cudaStreamSynchronize=lambda _stream: 0,
        cudaDeviceSynchronize=lambda: 0,
        cudaGetLastError=lambda: 0,
    )
    monkeypatch.setattr(cuda, "runtime", lambda: runtime)
    monkeypatch.setattr(device_memory, "DEVICE", io_binding.HOST)
    monkeypatch.setattr(io_binding, "DEVICE", io_binding.HOST)
