"""Files of sound: WAV and FLAC, decoded to one channel at a model's rate."""

from io import BytesIO

import numpy as np
import soundfile
import soxr

from service.base.errors import Invalid, UnsupportedMedia
from service.media.containers import check_blocks
from service.media.source import decoding

FORMATS = ("FLAC", "RF64", "WAV", "WAVEX")
MAGIC = (b"RIFF", b"RF64", b"fLaC")  # other files do not reach the library
MIN_RATE, MAX_RATE = 1_000, 768_000  # samples a second
MAX_CHANNELS = 32
RIFF_HEADER = 8  # bytes before those that it counts; some programs count them, too
MIN_STREAMED_BYTES = 1 << 30  # in the header of a WAV that was written before its length was known
UNKNOWN_FRAMES = (1 << 63) - 1  # of a FLAC that was
SAMPLE_BYTES = 4


class Sound:
    """A file whose header is read."""

    def __init__(self, content: bytes | bytearray, field: str) -> None:
        """Read the header.

        Raises:
            UnsupportedMedia: it is none of ``FORMATS``.
            Invalid: it is truncated or broken, does not say how long it is, or has more channels or another rate than
                the limits.
        """
        self.field = field
        if not content.startswith(MAGIC):
            raise UnsupportedMedia("expected a file of WAV or FLAC", field)
        check_blocks(content, field)
        with decoding(field):
            if _is_cut_wav(content):
                raise EOFError
            self._file = soundfile.SoundFile(BytesIO(content))
        if self._file.format not in FORMATS:
            raise UnsupportedMedia("expected a file of WAV or FLAC", field)
        if not (MIN_RATE <= self._file.samplerate <= MAX_RATE and self._file.channels <= MAX_CHANNELS):
            raise Invalid(
                f"has {self._file.channels} channels at {self._file.samplerate:,} samples a second; expected at most "
                f"{MAX_CHANNELS} at {MIN_RATE:,} to {MAX_RATE:,}",
                field,
            )

        if self._file.frames == UNKNOWN_FRAMES:
            raise Invalid("its header does not say how long it is; encode it into a file, not into a pipe", field)

    @property
    def seconds(self) -> float:
        return float(self._file.frames / self._file.samplerate)

    @property
    def memory(self) -> int:
        """Upper bound in bytes on what ``decoded`` takes."""
        return int(self._file.frames) * (2 * int(self._file.channels) + 4) * SAMPLE_BYTES

    def samples(self, rate: int) -> int:
        """The number of samples at ``rate``."""
        return (2 * int(self._file.frames) * rate // int(self._file.samplerate) + 1) // 2  # half up, as soxr does

    def decoded(self, rate: int) -> np.ndarray:
        """The samples at ``rate``, float32, of which the mean of all channels is taken.

        Raises:
            Invalid: the file is truncated or broken, or a sample is not finite.
        """
        frames = self._file.frames
        with decoding(self.field):
            samples = self._file.read(frames, dtype="float32", always_2d=True)
            if len(samples) < frames:
                raise EOFError
        if not np.isfinite(samples).all():
            raise Invalid("a sample is not finite", self.field)
        mono = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)
        if self._file.samplerate != rate:
            mono = soxr.resample(mono, self._file.samplerate, rate)
        resampled: np.ndarray = mono
        return resampled


def _is_cut_wav(content: bytes | bytearray) -> bool:
    """Whether it has fewer bytes than its header says; soundfile reads those that are there."""
    length = int.from_bytes(content[4:RIFF_HEADER], "little")
    return content.startswith(b"RIFF") and len(content) < length < MIN_STREAMED_BYTES
