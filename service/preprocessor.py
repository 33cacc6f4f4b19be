"""How a model's image processor makes numbers of a picture, from its preprocessor_config.json."""

import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("heed")

PREPROCESSOR_FILE = "preprocessor_config.json"
RESCALE_FACTOR = 1 / 255  # of transformers' image processors where their file has none


@dataclass(frozen=True, slots=True)
class Preprocessor:
    """A value of 0 to 255 times ``rescale_factor``, minus ``image_mean``, divided by ``image_std``, for each channel.

    None is a step that is left out, or whose numbers the file does not have.
    """

    rescale_factor: float | None
    image_mean: tuple[float, ...] | None
    image_std: tuple[float, ...] | None


def load_preprocessor(folder: Path) -> Preprocessor | None:
    """The image processor in ``folder``; None where it has no such file, or one that is no JSON object."""
    file = folder / PREPROCESSOR_FILE
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        log.warning("%s is ignored: it is no JSON object", file)
        return None
    factor = content.get("rescale_factor", RESCALE_FACTOR)
    rescales, normalizes = (content.get(name) is not False for name in ("do_rescale", "do_normalize"))
    return Preprocessor(
        factor if rescales and _is_number(factor) else None,
        _numbers(content.get("image_mean")) if normalizes else None,
        _numbers(content.get("image_std")) if normalizes else None,
    )


def _numbers(value: Any) -> tuple[float, ...] | None:
    return tuple(value) if isinstance(value, list) and value and all(map(_is_number, value)) else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
