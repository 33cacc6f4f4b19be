"""The field ``images`` as a source of ``pixel_values``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from service.base.errors import Invalid, TooLarge
from service.media.preprocessor import PIXEL_MASK
from service.media.source import FileSource
from service.model.spec import IMAGE_INPUT

if TYPE_CHECKING:  # they need Pillow, which may be missing
    from service.media.image_processor import ImageProcessor
    from service.media.picture import Picture

# Of all pictures of a request, before and after they are resized: a camera's largest, and a second to unpack. Where the
# shortest side has a fixed length, a narrow picture becomes larger.
MAX_PIXELS = 64_000_000
RESIZED_BYTES = 8  # memory for each pixel


class ImageSource(FileSource["Picture", "ImageProcessor"]):
    """Makes ``pixel_values`` of pictures."""

    name = "images"
    kinds = "PNG, JPEG or WebP"
    names = (IMAGE_INPUT,)

    def opened(self, content: bytearray, field: str) -> "Picture":
        from service.media.picture import Picture

        return Picture(content, field)

    def check(self, files: Sequence["Picture"], processor: "ImageProcessor") -> None:
        total = sum(picture.pixels + _resized_pixels(picture, processor) for picture in files)
        if total > MAX_PIXELS:
            got = f"{total:,} pixels, before and after it is resized"
            before = "" if len(files) == 1 else ", with those before it"
            raise TooLarge(f"has {got}{before}; the limit is {MAX_PIXELS:,}; send smaller pictures", files[-1].field)

    def memory(self, file: "Picture", processor: "ImageProcessor") -> int:
        return file.memory + _resized_pixels(file, processor) * RESIZED_BYTES

    def tensor(self, file: "Picture", processor: "ImageProcessor") -> np.ndarray:
        picture = file.unpacked(processor.channels)
        if processor.pad is not None:
            (columns, rows), (height, width) = processor.resized(*picture.size), processor.pad
            if not (rows and columns):
                raise Invalid("is too narrow: resizing leaves no pixels", file.field)
            if rows > height or columns > width:
                most = f"{height:,} x {width:,}"
                raise Invalid(f"becomes {rows:,} x {columns:,} pixels; the model takes at most {most}", file.field)
        return processor(picture)

    def beside(self, files: Sequence["Picture"], processor: "ImageProcessor") -> dict[str, np.ndarray]:
        return {PIXEL_MASK: np.stack([processor.mask(*file.size) for file in files])}


def _resized_pixels(picture: "Picture", processor: "ImageProcessor") -> int:
    width, height = processor.resized(*picture.size)
    return width * height
