"""What went wrong in a run, by the words of ONNX Runtime: its exceptions tell no kinds apart that matter here."""

import re
from enum import Enum

# As in "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=... ; expr=...".
DEVICE = re.compile(
    r"\b(?P<library>CUDA|CUBLAS|CUDNN|CUDNN_FE|CUFFT|CURAND|NCCL) failure (?P<code>\d+): ?(?P<words>[^;]*)"
)
ARENA = re.compile(
    r"Failed to allocate memory for requested buffer of size"
    r"|Available memory of \d+ is smaller than requested bytes of \d+"
    r"|Failed to find a free memory block"
    r"|std::bad_alloc"
)
MEMORY_CODES = {("CUDA", "2"), ("CUBLAS", "3")}  # cudaErrorMemoryAllocation, CUBLAS_STATUS_ALLOC_FAILED
MEMORY_WORDS = re.compile(r"out of memory|ALLOC(ATION)?_FAILED", re.IGNORECASE)


class Kind(Enum):
    """MEMORY: there is too little, for this run, now. DEVICE: CUDA failed, for this run or for good."""

    MEMORY = "memory"
    DEVICE = "device"
    OTHER = "other"


def kind(words: str) -> Kind:
    """Of an error of ONNX Runtime, by its text."""
    if ARENA.search(words):
        return Kind.MEMORY
    found = DEVICE.search(words)
    if found is None:
        return Kind.OTHER
    if found.group("library", "code") in MEMORY_CODES or MEMORY_WORDS.search(found["words"]):
        return Kind.MEMORY
    return Kind.DEVICE


def brief(words: str) -> str:
    """What an error says, without where in ONNX Runtime's sources, and on which host, it was raised."""
    found = DEVICE.search(words)
    return found.group(0).strip() if found else words
