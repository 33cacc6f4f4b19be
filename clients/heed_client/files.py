"""Files of pictures and sound in requests."""

import base64
import io
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np

Audio = str | PathLike[str] | bytes  # a path, or a file's content
Image = Audio | Any  # also a picture of Pillow, or an array


def images(value: Image | Sequence[Image]) -> Any:
    """The field ``images`` of a request: one picture, or a list of them.

    Raises:
        ValueError, TypeError: a picture is no file, or an array of another shape or type.
    """
    return _field("images", value, _png)


def audio(value: Audio | Sequence[Audio]) -> Any:
    """The field ``audio`` of a request: one sound, or a list of them.

    Raises:
        ValueError, TypeError: a sound is no file.
    """
    return _field("audio", value, _no_sound)


def _field(name: str, value: Any, encode: Callable[[Any], bytes]) -> Any:
    if isinstance(value, list | tuple):
        return [{"base64": _base64(name, item, encode)} for item in value]
    return _base64(name, value, encode)


def _base64(name: str, value: Any, encode: Callable[[Any], bytes]) -> str:
    if isinstance(value, str | PathLike):
        try:
            with open(value, "rb") as file:
                content = file.read()
        except OSError as error:
            raise ValueError(f"{name}: {fspath(value)}: {error.strerror}") from None
    else:
        content = bytes(value) if isinstance(value, bytes | bytearray | memoryview) else encode(value)
    return base64.b64encode(content).decode()


def _no_sound(value: Any) -> bytes:
    raise TypeError(f"audio: expected a path or bytes of a WAV or FLAC file, got {type(value).__name__}")


def _png(image: Any) -> bytes:
    """The file of a picture of Pillow or an array [height, width] or [height, width, 3 or 4] of 0 to 255."""
    if not hasattr(image, "save"):
        pixels = np.asarray(image)
        if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
            got = type(image).__name__ if pixels.dtype == object else f"{pixels.dtype} {[*pixels.shape]}"
            raise TypeError(
                f"images: expected a path, bytes, Pillow's picture, or an array [height, width, 3] of uint8; got {got}"
            )
        try:
            from PIL import Image as Pillow
        except ModuleNotFoundError:
            raise ValueError("images: an array needs Pillow: pip install pillow") from None
        image = Pillow.fromarray(pixels)
    image.save(file := io.BytesIO(), "PNG")
    return file.getvalue()
