"""The protocol's datatypes: their numpy dtypes, and the binary form of BYTES.

In a BYTES tensor each element is its length, four bytes little-endian, followed by UTF-8 text.
"""

import struct

import numpy as np

from service.base.errors import Invalid
from service.base.steps import Steps
from service.codec.json_writer import group_strings
from service.tensors.bfloat16 import BFLOAT16

LENGTH = struct.Struct("<I")
MAX_STRINGS = 1 << 15  # of an input
MAX_STRING_BYTES = 4 << 20  # of a string in binary, which is decoded in one call; some 10 milliseconds
STRINGS_IN_STEP = 1 << 10  # half a millisecond
STEP_BYTES = 1 << 18  # of strings; about a millisecond
CHARACTER_BYTES = 4  # of a decoded string, for each of its bytes: one emoji widens all characters
WRITTEN_BYTES = 6  # of text for a character, at most: in JSON, control characters are escaped
STRING_BYTES = 128  # of a string or a tensor of strings, beside its characters


DATATYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype("bool"),
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype("float16"),
    "BF16": BFLOAT16,
    "FP32": np.dtype("float32"),
    "FP64": np.dtype("float64"),
    "BYTES": np.dtype("object"),
}
BYTES = DATATYPES["BYTES"]
NAMES = {dtype: name for name, dtype in DATATYPES.items()}


def unpack_strings(name: str, content: memoryview, count: int) -> Steps[np.ndarray]:
    """The ``count`` elements of the BYTES tensor ``name``, as an array of str of shape [count].

    Raises:
        Invalid: there are more or fewer, or one is not UTF-8, the only encoding that ONNX Runtime supports.
    """
    strings: list[str] = []
    position = step = 0
    while position < len(content):
        if len(strings) == count:
            raise Invalid(f"expected {count} strings for inference input '{name}', got more")
        if not len(strings) % STRINGS_IN_STEP or position - step > STEP_BYTES:
            step = position
            yield
        start = position + LENGTH.size
        end = start + LENGTH.unpack_from(content, position)[0] if start <= len(content) else start
        if end > len(content):
            raise Invalid(f"unexpected end of the bytes within element {len(strings)} of input '{name}'")
        strings.append(decode_string(name, content[start:end]))
        position = end
    if len(strings) != count:
        raise Invalid(f"expected {count} strings for inference input '{name}', got {len(strings)}")
    return string_array(strings)


def decode_string(name: str, content: memoryview) -> str:
    """One element of the BYTES tensor ``name``.

    Raises:
        Invalid: it is too long, or not UTF-8.
    """
    if len(content) > MAX_STRING_BYTES:
        raise Invalid(f"input '{name}': expected at most {MAX_STRING_BYTES} bytes in a string, got {len(content)}")
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError:
        raise Invalid(f"input '{name}' contains bytes that are not valid UTF-8") from None


def string_array(strings: list[str]) -> np.ndarray:
    """The strings as an array of objects of shape [len(strings)], as ONNX Runtime takes them."""
    array = np.empty(len(strings), np.object_)
    array[:] = strings
    return array


def pack_strings(array: np.ndarray) -> Steps[list[bytes]]:
    """The binary form of an array of strings of any shape, in pieces."""
    pieces = []
    for group in group_strings(array.reshape(-1)):
        encoded = [item.encode() for item in group]
        pieces.append(b"".join(part for item in encoded for part in (LENGTH.pack(len(item)), item)))
        yield
    return pieces


def characters_of(array: np.ndarray) -> Steps[int]:
    """The characters of all strings of an array."""
    count = 0
    for group in group_strings(array.reshape(-1)):
        count += sum(map(len, group))
        yield
    return count
