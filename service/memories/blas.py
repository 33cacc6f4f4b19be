"""The threads of the library that computes numpy's matrix products."""

import ctypes
import importlib
from contextlib import suppress

SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")


def limit_blas_threads() -> None:
    """Let each product use one thread, in this process, if the library has such a setting.

    OpenBLAS has threads of its own, for which products of several threads wait in turn, and which spin for a while
    after each. Where the callers are as many threads as there are CPUs, one thread for a product is faster.
    """
    numpy = importlib.import_module("numpy._core._multiarray_umath")  # its symbols include those of its library
    library = ctypes.CDLL(numpy.__file__)
    for name in SETTERS:
        with suppress(AttributeError):
            getattr(library, name)(1)
            return
