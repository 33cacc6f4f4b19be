"""A limit on the copies of weights that the sessions of a process have in the layout of their kernels."""

import threading
from pathlib import Path

from service.base.messages import size_words


class WeightCopies:
    """Bytes of these copies. ONNX Runtime's arena counts them as memory of runs, so its limit is that of both.

    Args:
        limit: upper limit in bytes; 0 = none.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{size_words(self.used)} of {size_words(self.limit)}"

    def reserve(self, size: int) -> bool:
        """Add ``size`` bytes if the limit allows it; whether it does."""
        with self._lock:
            has_room = not self.limit or self.used + size <= self.limit
            self.used += size * has_room
            return has_room

    def release(self, size: int) -> None:
        """Subtract ``size`` bytes."""
        with self._lock:
            self.used -= size


def weight_bytes(model: Path | bytes) -> tuple[int, bool]:
    """The bytes of a model's weights at most, and whether they are in files beside it, which can be mapped."""
    if isinstance(model, bytes):
        return len(model), False
    own = model.stat().st_size
    beside = sum(file.stat().st_size for file in model.parent.iterdir() if file.is_file() and file.suffix != ".onnx")
    return own + beside, beside > own
