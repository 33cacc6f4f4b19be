"""Files of pictures: PNG, JPEG and WebP."""

import re
from io import BytesIO

from PIL import Image, ImageOps, UnidentifiedImageError

from service.base.errors import Invalid, UnsupportedMedia
from service.media.containers import check_exif, without_metadata
from service.media.source import decoding

FORMATS = ("JPEG", "PNG", "WEBP")
SIGNATURE = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|RIFF....WEBP", re.DOTALL)  # the start of a file of these
MAX_SCANS = 100  # of a JPEG, each of which may have all pixels
END_OF_SCAN_HEADER = b"\xff\xda"
# Memory for each pixel: unpacked, turned, and as RGB; with transparency on white, too, and that of WebP's decoder.
OPAQUE_BYTES, BYTES = 12, 28
BAND = 1 << 18  # pixels
WHITE = (255, 255, 255, 255)

Image.MAX_IMAGE_PIXELS = None  # ImageSource has a limit that is lower


class Picture:
    """A file whose header is read."""

    def __init__(self, content: bytes | bytearray, field: str) -> None:
        """Read the header.

        Raises:
            UnsupportedMedia: it is none of ``FORMATS``.
            Invalid: it is broken, or has too many parts.
        """
        self.field = field
        content = without_metadata(content, field)
        self._seen_size: tuple[int, int] | None = None
        with decoding(field):
            try:
                self._image: Image.Image = Image.open(BytesIO(content), formats=FORMATS)
            except UnidentifiedImageError:
                if SIGNATURE.match(content):
                    raise  # it is damaged
                raise UnsupportedMedia("expected a file of PNG, JPEG or WebP", field) from None
        if self._image.format in ("JPEG", "MPO") and content.count(END_OF_SCAN_HEADER) > MAX_SCANS:
            raise Invalid(f"a JPEG of more than {MAX_SCANS} scans", field)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height; of a picture that is turned, as it is to be seen, only after it is unpacked."""
        return self._seen_size or self._image.size

    @property
    def pixels(self) -> int:
        return self._image.width * self._image.height

    @property
    def memory(self) -> int:
        """Upper bound in bytes on what ``unpacked`` takes."""
        is_opaque = self._image.mode in ("RGB", "L", "1") and "transparency" not in self._image.info
        return self.pixels * (OPAQUE_BYTES if is_opaque and self._image.format != "WEBP" else BYTES)

    def unpacked(self, channels: int) -> Image.Image:
        """The picture as it is to be seen, of one channel (luminance) or three, and what is transparent on white.

        Of an animation it is the first picture.

        Raises:
            Invalid: the file is truncated or broken.
        """
        check_exif(len(self._image.info.get("exif", b"")), self.field)
        with decoding(self.field):
            image = ImageOps.exif_transpose(self._image)
            self._seen_size = image.size
            if "A" in image.getbands() or image.info.get("transparency") is not None:
                image = _on_white(image.convert("RGBA"))
            return image.convert("RGB" if channels == 3 else "L")


def _on_white(image: Image.Image) -> Image.Image:
    """An image with transparency on white, some rows at a time: Pillow keeps the interpreter's lock meanwhile."""
    result = Image.new("RGBA", image.size, WHITE)
    rows = max(1, BAND // image.width)
    for top in range(0, image.height, rows):
        result.alpha_composite(image, (0, top), (0, top, image.width, min(top + rows, image.height)))
    return result
