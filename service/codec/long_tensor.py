"""Tensors whose text was cut out of a large document; they are read in steps, after the document."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from service.base.budget import Reservation
from service.base.errors import Invalid
from service.base.steps import Steps
from service.codec.json_slices import LongList, LongText
from service.tensors.cast import cast, check_shape, from_bytes

MAX_CAST_NUMBERS = 1 << 17  # in one step; some tenths of a millisecond
NOT_BASE64 = "invalid base64: expected A-Z, a-z, 0-9, + and /, padded with ="


@dataclass(frozen=True, slots=True)
class LongTensor:
    """A tensor to be read as ``dtype``; ``shape`` is the one that the request declares, if any.

    A ``mask`` may have booleans, or null for -infinity. ``text_dtype`` is the type of base64 data.
    """

    name: str
    part: LongText | LongList
    dtype: np.dtype
    mask: bool = False
    shape: Sequence[int] | None = None
    text_dtype: str = ""

    def read(self, reservation: Reservation) -> Steps[np.ndarray]:
        """The array; its bytes are added to ``reservation`` before it is made.

        Raises:
            Malformed, Invalid: it is not JSON, or not such a tensor.
            TooMuchMemory, Overloaded: there is no memory for it.
        """
        if isinstance(self.part, LongText):
            reservation.add(2 * len(self.part.content))
            try:
                content = yield from self.part.base64()
            except ValueError:
                raise Invalid(NOT_BASE64, self.name) from None
            flat = from_bytes(self.name, self.text_dtype, content)
            array = yield from cast_in_steps(self.name, flat, self.dtype, self.mask, reservation)
        else:
            array = yield from self._list(self.part, reservation)
        return array if self.shape is None else check_shape(self.name, array, self.shape)

    def _list(self, part: LongList, reservation: Reservation) -> Steps[np.ndarray]:
        shape = yield from part.shape(self.name)
        are_booleans = part.is_boolean and (self.mask or self.dtype.kind == "b")
        kind = "b" if are_booleans else self.dtype.kind if self.dtype.kind in "iu" else "f"
        reservation.add(prod(shape) * self.dtype.itemsize)
        pieces = part.pieces(self.name, kind, shape, nulls=self.mask and kind == "f")
        return (yield from fill(self.name, pieces, shape, self.dtype, self.mask))


def cast_in_steps(
    name: str, array: np.ndarray, dtype: np.dtype, mask: bool, reservation: Reservation
) -> Steps[np.ndarray]:
    """As ``cast``, of a flat array, part by part. The bytes of a new array are added to ``reservation``.

    Raises:
        Invalid: as ``cast``.
        TooMuchMemory, Overloaded: there is no memory for it.
    """
    parts = (array[start : start + MAX_CAST_NUMBERS] for start in range(0, array.size or 1, MAX_CAST_NUMBERS))
    if array.dtype != dtype:
        reservation.add(array.size * dtype.itemsize)
        return (yield from fill(name, parts, array.shape, dtype, mask))
    for part in parts:
        cast(name, part, dtype, mask)  # which checks it
        yield
    return array


def fill(
    name: str, pieces: Iterable[np.ndarray], shape: Sequence[int], dtype: np.dtype, mask: bool = False
) -> Steps[np.ndarray]:
    """The array of the numbers in ``pieces``, which are written to their place one by one.

    Raises:
        Invalid: they are more or fewer than ``shape`` has, or not of ``dtype``.
    """
    array, place = np.empty(prod(shape), dtype), 0
    for piece in pieces:
        if place + piece.size > array.size:
            raise Invalid("rows of different lengths", name)
        array[place : place + piece.size] = cast(name, piece, dtype, mask)
        place += piece.size
        yield
    if place < array.size:
        raise Invalid("rows of different lengths", name)
    return array.reshape(shape)


def read_all(tensors: Mapping[str, np.ndarray | LongTensor], reservation: Reservation) -> Steps[dict[str, np.ndarray]]:
    """All ``tensors`` as arrays; the long ones are read in steps. The bytes of all are added to ``reservation``.

    Raises:
        Malformed, Invalid: a tensor is wrong.
        TooMuchMemory, Overloaded: there is no memory for a tensor.
    """
    read: dict[str, np.ndarray] = {}
    with np.errstate(over="ignore"):
        for name, tensor in tensors.items():
            if isinstance(tensor, LongTensor):
                read[name] = yield from tensor.read(reservation)
            else:
                reservation.add(tensor.nbytes)
                read[name] = tensor
    return read
