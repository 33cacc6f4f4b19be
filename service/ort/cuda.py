"""Whether CUDA works here: a tiny graph is run on it, and its numbers are checked."""

import contextlib
import ctypes
import io
import logging
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime

from service.ort.placement import CUDA, placement

log = logging.getLogger("heed")

SIZE = 64
# ONNX, IR version 8, opset 13: y = Softmax(MatMul(a, b)), each [64, 64] of float32.
PROBE = (
    b'\x08\x08:j\n\x11\n\x01a\n\x01b\x12\x01c"\x06MatMul\n\x0f\n\x01c\x12\x01y"\x07Softmax\x12\x05probe'
    b"Z\x13\n\x01a\x12\x0e\n\x0c\x08\x01\x12\x08\n\x02\x08@\n\x02\x08@"
    b"Z\x13\n\x01b\x12\x0e\n\x0c\x08\x01\x12\x08\n\x02\x08@\n\x02\x08@"
    b"b\x13\n\x01y\x12\x0e\n\x0c\x08\x01\x12\x08\n\x02\x08@\n\x02\x08@B\x04\n\x00\x10\r"
)
MAX_ERROR = 1e-5  # of softmax weights computed in float32


class NoCuda(RuntimeError):
    """CUDA does not work; the message says what failed."""


@cache
def runtime() -> ctypes.CDLL:
    """The CUDA runtime that ONNX Runtime has loaded."""
    loaded = ctypes.CDLL(f"libcudart.so.{str(onnxruntime.cuda_version).partition('.')[0]}")
    loaded.cudaHostRegister.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
    loaded.cudaHostUnregister.argtypes = (ctypes.c_void_p,)
    address, size = ctypes.c_void_p, ctypes.c_size_t
    loaded.cudaMemset2D.argtypes = (address, size, ctypes.c_int, size, size)
    loaded.cudaMemcpy2D.argtypes = (address, size, address, size, size, size, ctypes.c_int)
    loaded.cudaStreamSynchronize.argtypes = (address,)
    return loaded


def free_memory() -> int:
    """Bytes of the GPU that are free.

    Raises:
        NoCuda: CUDA does not report them.
    """
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    code = runtime().cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    if code:
        raise NoCuda(f"the GPU does not report its memory (CUDA error {code})")
    return free.value


def load_libraries() -> None:
    """Load CUDA's libraries from their wheels, where these are installed."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        onnxruntime.preload_dlls()
    log.debug("CUDA's libraries: %s", output.getvalue().strip() or "loaded")


def missing_library() -> str | None:
    """Why ONNX Runtime could not load its CUDA provider; to be called after it tried, as it must load first."""
    folder = Path(onnxruntime.capi.__file__).parent
    try:
        ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / "libonnxruntime_providers_cuda.so"))
    except OSError as error:
        return str(error).replace(f"{folder}/", "")
    return None


def health_check(session: onnxruntime.InferenceSession, provider: str = CUDA) -> None:
    """Run ``session``, of PROBE, and check its numbers against numpy's and that its nodes run on ``provider``.

    Raises:
        NoCuda: the numbers are wrong, or a node runs elsewhere.
        Exception: ONNX Runtime's own.
    """
    elsewhere = {name: dict(nodes) for name, nodes in placement(session).items() if name != provider}
    if elsewhere:
        raise NoCuda(f"nodes run elsewhere: {elsewhere}")
    a, b = np.random.default_rng(0).standard_normal((2, SIZE, SIZE), np.float32)
    (weights,) = session.run(None, {"a": a, "b": b})
    scores = a.astype(np.float64) @ b
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    error = np.abs(weights - expected / expected.sum(-1, keepdims=True)).max()
    if not error < MAX_ERROR:
        raise NoCuda(f"softmax(AB) is off by {error:.1e}")
