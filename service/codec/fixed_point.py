"""Arrays as JSON with a fixed number of decimals, several times faster than each number in the fewest digits.

A number times 10^decimals is rounded to a whole number, whose digits are looked up in two tables: the last ones, and
those before with the point and the sign. All numbers of an array have the same width, with blanks before short ones, so
that numpy writes each table's texts to all places at once, and without the interpreter's lock.

float32 times 10^7 is exact in float64, so rounding is exact; halves go to the even neighbour.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import orjson

MIN_NUMBERS = 1 << 10  # of fewer, orjson is as fast
LAST_DIGITS = (0, 1, 2, 2, 4, 4, 4, 4)  # looked up in the second table, of numbers with 0, 1, ... decimals
MAX_FIRST_DIGITS = 4  # in the first table


class Layout(NamedTuple):
    """Where the texts of the two tables are in the text of a number, which ends with a comma; in bytes."""

    first: int  # room for sign, whole part, point and first decimals
    last: int  # digits after that
    width: int
    item: int  # of an entry of the first table; what is beyond ``first`` is overwritten


def write_fixed(array: np.ndarray, decimals: int) -> bytes:
    """The nested lists of a contiguous array of floats, rounded to 0 to 7 ``decimals``: JSON.

    orjson writes small arrays, those with NaN or infinity (as null), and numbers of too many digits for the tables:
    rounded, in the fewest digits that read back as the same number of the array's type.
    """
    if array.size < MIN_NUMBERS:
        return _write_rounded(array, decimals)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.multiply(array, 10.0**decimals, dtype=np.float64)
        np.rint(scaled, out=scaled)
        low, high = scaled.min(), scaled.max()
    last = LAST_DIGITS[decimals]
    if not (max(-low, high) < 10 ** (MAX_FIRST_DIGITS + last)):
        return _write_rounded(array, decimals)
    whole_digits = max(1, len(str(int(max(-low, high)))) - decimals)
    is_signed = bool(low < 0)
    layout, first_texts = _first_table(decimals, whole_digits, is_signed)
    numbers = scaled.astype(np.int32)
    if is_signed:
        negative = numbers < 0
        np.abs(numbers, out=numbers)
    first = numbers // np.int32(10**last)
    text = np.frombuffer(_brackets(array.shape, layout.width), np.uint8).copy()
    strides = [layout.width]
    for size in array.shape[:0:-1]:
        strides.append(size * strides[-1] + 2)
    place = array.ndim  # of the first number, behind the brackets
    shape, steps = array.shape, strides[::-1]
    rest = numbers - first * np.int32(10**last) if last else None
    if is_signed:
        first += negative * np.int32(len(first_texts) // 2)
    np.ndarray(shape, first_texts.dtype, text.data, place, steps)[...] = first_texts.take(first)
    if rest is not None:
        last_texts = _last_table(last)
        np.ndarray(shape, last_texts.dtype, text.data, place + layout.first, steps)[...] = last_texts.take(rest)
    return text.tobytes()


def rounded(array: np.ndarray, decimals: int) -> np.ndarray:
    """The floats of an array rounded to 0 to 7 ``decimals``, in its type; float16 becomes float32."""
    unit = 10.0**decimals
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.multiply(array, unit, dtype=np.float64)
        nearest: np.ndarray = np.where(np.isfinite(scaled), np.rint(scaled) / unit + 0.0, array)  # -0.0 + 0.0 is 0.0
    return nearest.astype(np.promote_types(array.dtype, np.float32))


def _write_rounded(array: np.ndarray, decimals: int) -> bytes:
    nearest = rounded(array, decimals)
    return orjson.dumps(nearest if nearest.ndim else nearest[()], option=orjson.OPT_SERIALIZE_NUMPY)


@lru_cache(64)
def _first_table(decimals: int, whole_digits: int, is_signed: bool) -> tuple[Layout, np.ndarray]:
    """The texts before the last digits, by the number that they stand for; after them, those of negative numbers."""
    last = LAST_DIGITS[decimals]
    fraction = decimals - last
    longest = is_signed + whole_digits + (decimals > 0) + fraction
    item = 4 if longest <= 4 else 8
    width = max(longest + last, item) + 1
    first = width - last - 1
    texts = []
    for number in range(10 ** (whole_digits + fraction)):
        whole, part = divmod(number, 10**fraction)
        texts.append(f"{whole}.{part:0{fraction}d}" if fraction else f"{whole}." if decimals else f"{whole}")
    signed = [*texts, *("-" + text for text in texts)] if is_signed else texts
    table = np.array([text.rjust(first).ljust(item).encode() for text in signed]).view(f"u{item}")
    return Layout(first, last, width, item), table


@lru_cache
def _last_table(digits: int) -> np.ndarray:
    return np.array([b"%0*d" % (digits, number) for number in range(10**digits)]).view(f"u{digits}")


@lru_cache(16)
def _brackets(shape: tuple[int, ...], width: int) -> bytes:
    """The text of an array without its numbers."""
    text = b" " * (width - 1) + b","
    for size in reversed(shape):
        text = b"[" + (text * size)[:-1] + b"],"
    return text[:-1]
