"""The cause of a failed run, by the text of ONNX Runtime's error: its types of exceptions do not tell."""

import re
from enum import Enum

from onnxruntime.capi.onnxruntime_pybind11_state import EPFail, Fail, InvalidArgument, RuntimeException

RUN_ERRORS = (InvalidArgument, Fail, RuntimeException, EPFail)  # of a run, for its shapes or its device

# As in "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=... ; expr=...".
DEVICE = re.compile(
    r"\b(?P<library>CUDA|CUBLAS|CUDNN|CUDNN_FE|CUFFT|CURAND|NCCL) failure (?P<code>\d+): ?(?P<words>[^;]*)"
)
ARENA = re.compile(
    r"Failed to allocate memory for requested buffer of size"
    r"|Available memory of \d+ is smaller than requested bytes of \d+"
    r"|Failed to find a free memory block"
    r"|std::bad_alloc|bad allocation"
)
HOST_MEMORY = re.compile(r"std::bad_alloc|bad allocation")  # memory of the host, also where there is a GPU
MEMORY_CODES = {("CUDA", "2"), ("CUBLAS", "3")}  # cudaErrorMemoryAllocation, CUBLAS_STATUS_ALLOC_FAILED
MEMORY_WORDS = re.compile(r"out of memory|ALLOC(ATION)?_FAILED", re.IGNORECASE)


class FailureKind(Enum):
    """MEMORY: there is too little for this run now. DEVICE: CUDA failed, for this run or for all."""

    MEMORY = "memory"
    DEVICE = "device"
    OTHER = "other"


def classify(text: str) -> FailureKind:
    """The kind of an ONNX Runtime error with this text."""
    if ARENA.search(text):
        return FailureKind.MEMORY
    match = DEVICE.search(text)
    if match is None:
        return FailureKind.OTHER
    if match.group("library", "code") in MEMORY_CODES or MEMORY_WORDS.search(match["words"]):
        return FailureKind.MEMORY
    return FailureKind.DEVICE


def short_message(text: str) -> str:
    """The text of an error, without the place in ONNX Runtime's sources and the host where it was raised."""
    match = DEVICE.search(text)
    return match.group(0).strip() if match else text
