"""One input of a V2 request among the bytes that follow the JSON: a view of them, not a copy, wherever that can be."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from service.errors import Invalid, Malformed
from service.json_tensor import cast
from service.v2 import texts
from service.v2.datatype import BYTES, Datatype


@dataclass(frozen=True, slots=True)
class Attachment:
    """Where an input lies in the bytes, and what it is.

    Raises:
        Invalid: ``size``, in bytes, is not that of the shape.
    """

    name: str
    model: str
    of: Datatype
    shape: tuple[int, ...]
    place: int
    size: int
    declared: np.dtype  # what the model takes

    def __post_init__(self) -> None:
        expected = prod(self.shape) * self.of.dtype.itemsize
        if self.of is not BYTES and self.size != expected:
            raise Invalid(
                f"input byte size mismatch for input '{self.name}' for model '{self.model}'. "
                f"Expected {expected}, got {self.size}"
            )

    def array(self, content: bytes | memoryview) -> np.ndarray:
        """The tensor, as the model takes it.

        Raises:
            Invalid: texts that are more or fewer than the shape says, or no UTF-8.
        """
        if self.of is BYTES:
            held = memoryview(content)[self.place : self.place + self.size]
            return texts.unpack(self.name, held, prod(self.shape)).reshape(self.shape)
        if self.of.dtype.kind == "b":  # perf_analyzer sends any byte at all
            array = np.ndarray(self.shape, np.uint8, content, self.place).astype(np.bool_)
        else:
            array = np.ndarray(self.shape, self.of.dtype, content, self.place)
            if not array.flags.aligned:
                array = array.copy()
        return array if array.dtype == self.declared else cast(self.name, array, self.declared, mask=True)


def hold_to_length(attachments: Sequence[Attachment], length: int, model: str) -> None:
    """Hold what the JSON says of the bytes behind it against how many there are.

    Raises:
        Malformed: more, or fewer.
    """
    for attachment in attachments:
        missing = attachment.place + attachment.size - length
        if missing > 0:
            raise Malformed(
                f"unexpected size for input '{attachment.name}', expecting {missing} additional bytes "
                f"for model '{model}'"
            )
    left = length - sum(attachment.size for attachment in attachments)
    if left:
        raise Malformed(f"unexpected additional input data for model '{model}': {left} bytes")
