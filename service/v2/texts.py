"""BYTES tensors: each element is its length, four bytes little-endian, and then UTF-8 text."""

import struct

import numpy as np

from service.errors import Invalid

LENGTH = struct.Struct("<I")


def unpack(name: str, content: memoryview, count: int) -> np.ndarray:
    """``count`` texts of ``content``.

    Raises:
        Invalid: more, fewer, or no UTF-8, which is all that ONNX Runtime holds.
    """
    texts: list[str] = []
    place = 0
    while place < len(content):
        start = place + LENGTH.size
        end = start + LENGTH.unpack_from(content, place)[0] if start <= len(content) else start
        if end > len(content):
            raise Invalid(f"the bytes end within element {len(texts)} of input '{name}'")
        texts.append(text(name, content[start:end]))
        place = end
    if len(texts) != count:
        raise Invalid(f"expected {count} strings for inference input '{name}', got {len(texts)}")
    return array(texts)


def text(name: str, content: memoryview) -> str:
    """One element.

    Raises:
        Invalid: it is not UTF-8.
    """
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError:
        raise Invalid(f"input '{name}' holds bytes that are not UTF-8 text") from None


def array(texts: list[str]) -> np.ndarray:
    """The texts as the engine takes them."""
    held = np.empty(len(texts), np.object_)
    held[:] = texts
    return held


def pack(texts: np.ndarray) -> bytes:
    """The binary form of an array of texts."""
    encoded = [item.encode() for item in texts.reshape(-1)]
    return b"".join(part for item in encoded for part in (LENGTH.pack(len(item)), item))
