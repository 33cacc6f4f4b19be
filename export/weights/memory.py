"""The memory that an export needs, reported before it begins."""

import math
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open

GIB = 1 << 30
MANY_BYTES = 4 * GIB  # an export that needs more says so
FLOAT32 = 4  # bytes
COPIES = 3  # in float32, as measured with 1.1 billion parameters: the model, its float64 reference, pages of its file


def machine_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def bytes_for(folder: Path, is_part: bool) -> int:
    """The approximate number of bytes that the export of a transformers directory needs, besides the libraries.

    To export a part, the whole model is loaded. 0 without safetensors files, or if one cannot be read.
    """
    try:
        parameters = sum(map(_parameters, folder.glob("model*.safetensors")))
    except (OSError, SafetensorError):
        return 0  # loading it will say why
    return parameters * FLOAT32 * (1 if is_part else COPIES)


def _parameters(file: Path) -> int:
    with safe_open(file, "np") as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
