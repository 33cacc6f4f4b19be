"""From a picture to ``pixel_values``: the steps of transformers' image processors that use Pillow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from service.media.preprocessor import NAMES_NONE, PIXEL_MASK, Preprocessor, sides_of

ENDINGS = ("Fast", "ImageProcessor", "FeatureExtractor")  # of the name of a type


class Kind(NamedTuple):
    """What an image processor does where its file does not say it."""

    resample: Image.Resampling
    is_square: bool = True  # a size of one number is both sides', else that of the shortest
    crops: bool = False
    without: str = ""  # a step that the file must not ask for
    is_any: bool = False  # its size is a number of pixels: a picture is resized to the model's size
    pads: bool = False  # at the right and below, up to the model's size


OLD_LONGEST = 1333  # of DETR, where a file has a size of one number
BILINEAR, BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
KINDS = {  # those of transformers that have these steps and no others
    "Beit": Kind(BICUBIC),
    "Bit": Kind(BICUBIC, is_square=False, crops=True),
    "Blip": Kind(BICUBIC),
    "ChineseCLIP": Kind(BICUBIC, is_square=False, crops=True),
    "CLIP": Kind(BICUBIC, is_square=False, crops=True),
    "ConditionalDetr": Kind(BILINEAR, is_square=False, pads=True),
    "DeiT": Kind(BICUBIC, crops=True),
    "Detr": Kind(BILINEAR, is_square=False, pads=True),
    "Gemma3": Kind(BILINEAR, without="do_pan_and_scan"),
    "Gemma4": Kind(BICUBIC, is_any=True),
    "Glm4v": Kind(BICUBIC, is_any=True),
    "Llava": Kind(BICUBIC, is_square=False, crops=True, without="do_pad"),
    "OwlViT": Kind(BICUBIC),
    "Pvt": Kind(BICUBIC),
    "Qwen2VL": Kind(BICUBIC, is_any=True),
    "Segformer": Kind(BILINEAR),
    "Siglip": Kind(BICUBIC),
    "Siglip2": Kind(BILINEAR, is_any=True),
    "ViT": Kind(BILINEAR),
}


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """Resizes a picture to ``resize``, cuts its middle out, and normalizes it as ``numbers`` says.

    ``resize`` is (shortest edge,), (height, width), or None, ``crop`` (height, width), or None. Of the shortest edge
    ``longest`` limits the other one. Zeros are added at the right and below up to ``pad`` (height, width).
    """

    channels: int
    resize: tuple[int, ...] | None
    resample: Image.Resampling
    crop: tuple[int, int] | None
    numbers: Preprocessor
    longest: int | None = None
    pad: tuple[int, int] | None = None

    @property
    def returns_mask(self) -> bool:
        """Whether there is a mask of the padding, too."""
        return self.pad is not None

    def __call__(self, picture: Image.Image) -> np.ndarray:
        """The ``pixel_values`` [channels, height, width] of a picture, float32."""
        if self.resize is not None:
            picture = picture.resize(self.resized(*picture.size), self.resample)
        if self.crop is not None:
            picture = _middle(picture, *self.crop)
        rows = np.asarray(picture).reshape(picture.height, picture.width, self.channels)
        pixels = np.ascontiguousarray(rows.transpose(2, 0, 1))  # arithmetic on the view would be slower
        factor, mean, std = self.numbers.rescale_factor, self.numbers.image_mean, self.numbers.image_std
        values = (pixels if factor is None else pixels.astype(np.float64) * factor).astype(np.float32)
        if mean is not None and std is not None:
            values = (values - _of_channels(mean)) / _of_channels(std)
        if self.pad is not None:
            padding = [(0, 0), *((0, side - own) for side, own in zip(self.pad, values.shape[1:], strict=True))]
            values = np.pad(values, padding)
        return values

    def mask(self, width: int, height: int) -> np.ndarray:
        """1 for each pixel of a picture of this width and height after it is resized, 0 for padding: as ``pad``."""
        assert self.pad is not None, "it pads"
        mask, (columns, rows) = np.zeros(self.pad, np.int64), self.resized(width, height)
        mask[:rows, :columns] = 1
        return mask

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that a picture of this width and height is resized to."""
        if self.resize is None:
            return width, height
        if len(self.resize) == 2:
            return self.resize[1], self.resize[0]
        edge: float = self.resize[0]
        low, high = sorted((width, height))
        if self.longest is not None and high / low * edge > self.longest:
            edge = self.longest * low / high
        shortest, longest = round(edge), int(edge * high / low)
        if self.longest is not None and shortest == low:
            return width, height
        return (shortest, longest) if width <= height else (longest, shortest)


def image_processor(
    content: dict[str, Any], numbers: Preprocessor, channels: int, height: int, width: int, has_mask: bool = False
) -> ImageProcessor:
    """The image processor of the file ``content``, for a model that takes ``channels`` x ``height`` x ``width``.

    ``has_mask``: the model takes a mask of padding, too.

    Raises:
        ValueError: it is of another kind, or makes pictures of another size; the message says which.
    """
    name = content.get("image_processor_type") or content.get("feature_extractor_type")
    kind = KINDS.get(_without_ending(name)) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"its image processor, {name}, is not supported" if name else NAMES_NONE)
    if kind.without and content.get(kind.without):
        raise ValueError(f"its image processor has {kind.without}, which is not supported")
    resample = content.get("resample")
    pads = kind.pads and content.get("do_pad") is not False
    if pads and not has_mask:
        raise ValueError(f"its image processor makes a {PIXEL_MASK}, which the graph lacks (export it again)")
    if kind.is_any:
        resize: tuple[int, ...] | None = (height, width)
    else:
        sides_from = sides_of if pads else _sides
        resize = sides_from(content.get("size"), kind.is_square) if content.get("do_resize") is not False else None
    crops = content.get("do_center_crop")
    crop_sides = _sides(content.get("crop_size"), True) if (kind.crops if crops is None else crops) else None
    sides = (height, width) if pads else crop_sides or resize
    if sides is None or len(sides) != 2 or (sides[0], sides[1]) != (height, width):
        got = " x ".join(map(str, sides)) if sides and len(sides) == 2 else "pictures of any size"
        raise ValueError(f"its image processor makes {got} pixels; the model takes {height} x {width}")
    if content.get("do_normalize") is not False:
        for of_channels in (numbers.image_mean, numbers.image_std):
            if of_channels is None or len(of_channels) not in (1, channels):
                raise ValueError(f"its image processor has no image_mean and image_std of {channels} channels")
    known = [kind.resample] if resample is None else [one for one in Image.Resampling if one == resample]
    if channels not in (1, 3) or not known:
        raise ValueError(f"its pictures have {channels} channels, and resample {resample}")
    crop = (height, width) if crop_sides else None
    pad, longest = ((height, width), _longest(content)) if pads else (None, None)
    return ImageProcessor(channels, resize, known[0], crop, numbers, longest, pad)


def _longest(content: dict[str, Any]) -> int | None:
    """The limit of the longest edge, which old files have beside the size."""
    size = content.get("size")
    longest = size.get("longest_edge") if isinstance(size, dict) else content.get("max_size", OLD_LONGEST)
    return longest if type(longest) is int and longest > 0 else None


def _without_ending(name: str) -> str:
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name


def _sides(size: Any, is_square: bool) -> tuple[int, ...] | None:
    """As ``sides_of``; None also where the longest edge has a limit."""
    return None if isinstance(size, dict) and size.get("longest_edge") else sides_of(size, is_square)


def _middle(picture: Image.Image, height: int, width: int) -> Image.Image:
    """The middle of a picture, with zeros around it where it has fewer pixels."""
    left, top = (picture.width - width) // 2, (picture.height - height) // 2
    return picture.crop((left, top, left + width, top + height))


def _of_channels(numbers: Sequence[float]) -> np.ndarray:
    return np.array(numbers, np.float32).reshape(-1, 1, 1)
