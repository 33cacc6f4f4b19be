"""Requests to the native API: tensors as base64, which preserves every number, including -inf in a mask; and files."""

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np

from heed_client import selection
from heed_client.arrays import scalar
from heed_client.block import Block

Audio = str | PathLike[str] | bytes  # a path, or a file's content
Image = Audio | Any  # also a picture of Pillow, or an array
PLACES = ("layers", "heads", "positions", "queries", "keys")  # fields with indices of an intervention and of a sweep


def encode(inputs: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> bytes:
    """The request body: tensors and parameters, and ``options`` such as ``outputs`` beside them."""
    return json.dumps({name: encode_tensor(name, array) for name, array in inputs.items()} | dict(options)).encode()


def encode_tensor(name: str, array: np.ndarray) -> Any:
    """A tensor as base64, or as a number if its rank is 0."""
    if not array.shape:
        return scalar(name, array)
    text = base64.b64encode(array.tobytes()).decode()
    return {"shape": array.shape, "dtype": array.dtype.name, "base64": text}


def nested(value: Any) -> Any:
    """Lists and mappings with the arrays and files in them as JSON values; arrays of indices become lists."""
    if isinstance(value, Mapping):
        return {name: _of_field(name, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [nested(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return encode_tensor("interventions", np.asarray(value))
    return value


def _of_field(name: str, value: Any) -> Any:
    if name in FILES and value is not None:
        return FILES[name](value)
    return np.asarray(value).tolist() if name in PLACES and hasattr(value, "__array__") else nested(value)


def images(value: Image | Sequence[Image]) -> Any:
    """The field ``images`` of a request: one picture, or a list of them.

    Raises:
        ValueError, TypeError: a picture is not a file, or an array of another shape or type.
    """
    return _field("images", value, _png)


def audio(value: Audio | Sequence[Audio]) -> Any:
    """The field ``audio`` of a request: one sound, or a list of them.

    Raises:
        ValueError, TypeError: a sound is not a file.
    """
    return _field("audio", value, _no_sound)


FILES = {"images": images, "audio": audio}  # fields with files, of a request and of a run in it


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
    """A PNG of a Pillow picture, or of an array [height, width] or [height, width, 3 or 4] of 0 to 255."""
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


def parse(content: bytes) -> dict[str, Any]:
    """The outputs in a response body, as JSON values."""
    document: dict[str, Any] = json.loads(content)
    del document["block"]
    return document


def unknown_outputs(outputs: Iterable[str], block: Block) -> set[str]:
    """The names in ``outputs`` that the description of the block lacks, because the block has changed."""
    return {name for name in outputs if name not in block.outputs and not _is_scale(name) and name not in block.derived}


def decode(
    outputs: Mapping[str, Any], block: Block | None, weights_dtype: str | None, quantized: bool
) -> dict[str, Any]:
    """The parsed outputs as arrays, weights in ``weights_dtype`` and all others in the dtypes that the block declares.

    Without a block these are float32. Weights of uint8 become float32, or remain with their scale if ``quantized``.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, value in outputs.items():
        declared = selection.find(block, name).numpy_dtype if block else np.dtype(np.float32)
        dtype = np.dtype(weights_dtype) if weights_dtype and name in selection.WEIGHTS else declared
        if isinstance(value, dict):
            arrays[name + selection.INDICES] = np.asarray(value["indices"], np.int64)
            arrays[name + selection.VALUES] = np.asarray(value["values"], dtype)
        else:
            arrays[name] = _decode(value, np.dtype(np.float32) if _is_scale(name) else dtype)
    return selection.assembled(arrays, [name for name in outputs if not _is_scale(name)], quantized)


def _is_scale(name: str) -> bool:
    return name.removesuffix(selection.SCALE) in selection.WEIGHTS and name.endswith(selection.SCALE)


def _decode(value: Any, dtype: np.dtype) -> np.ndarray:
    array = np.asarray(value, dtype)
    if dtype.kind == "f":
        array[np.isnan(array)] = -np.inf  # the API writes -inf as null; it sends no other number that is not finite
    return array
