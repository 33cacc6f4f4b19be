"""The files of processors; and a model's image processor, the steps from a picture to numbers."""

import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("heed")

PREPROCESSOR_FILE = "preprocessor_config.json"
NAMES_NONE = f"its {PREPROCESSOR_FILE} names no image processor or feature extractor"
PROCESSOR_FILE = "processor_config.json"  # of a processor of texts, too, which has the other in it
PIXEL_MASK = "pixel_mask"  # the input of models whose image processor pads pictures
RESCALE_FACTOR = 1 / 255  # of transformers' image processors where their file has none


@dataclass(frozen=True, slots=True)
class Preprocessor:
    """A value of 0 to 255 times ``rescale_factor``, minus ``image_mean``, divided by ``image_std``, for each channel.

    Before that the picture is resized to ``resize``: (shortest edge,), which keeps its proportions, or (height, width).
    Then its middle is cut out in the model's size. None is a step that is left out, or whose numbers the file does not
    have; without ``resize`` the whole picture is resized to the model's size.
    """

    resize: tuple[int, ...] | None
    rescale_factor: float | None
    image_mean: tuple[float, ...] | None
    image_std: tuple[float, ...] | None


def read_preprocessor(folder: Path, inner: str = "image_processor") -> dict[str, Any] | None:
    """The file of the processor in ``folder``; None where there is none, or one that is no JSON object.

    In the file of a processor of texts, too, it is the field ``inner``.
    """
    file = folder / PREPROCESSOR_FILE
    if file.is_file():
        return _json_object(file)
    file = folder / PROCESSOR_FILE
    content = _json_object(file) if file.is_file() else None
    found = content and content.get(inner)
    return found if isinstance(found, dict) else None


def preprocessor(content: dict[str, Any]) -> Preprocessor:
    """The numbers in the file ``content``."""
    factor = content.get("rescale_factor", RESCALE_FACTOR)
    rescales, normalizes = (content.get(name) is not False for name in ("do_rescale", "do_normalize"))
    return Preprocessor(
        _before_crop(content),
        factor if rescales and _is_number(factor) else None,
        _numbers(content.get("image_mean")) if normalizes else None,
        _numbers(content.get("image_std")) if normalizes else None,
    )


def _json_object(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        content = None
    if isinstance(content, dict):
        return content
    log.warning("%s is ignored: it is not a JSON object", file)
    return None


def _before_crop(content: dict[str, Any]) -> tuple[int, ...] | None:
    """The size of the picture whose middle is cut out; None if nothing is."""
    if not content.get("do_center_crop") or content.get("do_resize") is False:
        return None
    return sides_of(content.get("size"))


def sides_of(size: Any, is_square: bool = False) -> tuple[int, ...] | None:
    """(shortest edge,) or (height, width) of a size in a file; None where it is neither.

    In old files it is one number: of both sides if ``is_square``, else of the shortest.
    """
    if not isinstance(size, dict):
        size = dict.fromkeys(("height", "width"), size) if is_square else {"shortest_edge": size}
    names = ("shortest_edge",) if "shortest_edge" in size else ("height", "width")
    sides = tuple(size.get(name) for name in names)
    return sides if all(type(side) is int and side > 0 for side in sides) else None


def _numbers(value: Any) -> tuple[float, ...] | None:
    return tuple(value) if isinstance(value, list) and value and all(map(_is_number, value)) else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
