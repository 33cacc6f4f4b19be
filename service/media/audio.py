"""The field ``audio`` as a source of ``input_values`` and ``input_features``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from service.base.errors import Invalid
from service.media.audio_processor import AudioProcessor
from service.media.source import FileSource

if TYPE_CHECKING:  # it needs soundfile and soxr, which may be missing
    from service.media.sound import Sound

MASK_INPUT = "attention_mask"


class AudioSource(FileSource["Sound", AudioProcessor]):
    """Makes the samples or the spectrogram that a model takes of sounds."""

    name = "audio"
    kinds = "WAV or FLAC"
    names = ("input_values", "input_features")

    def opened(self, content: bytearray, field: str) -> "Sound":
        from service.media.sound import Sound

        return Sound(content, field)

    def check(self, files: Sequence["Sound"], processor: AudioProcessor) -> None:
        sound, least, most = files[-1], processor.shortest, processor.longest
        if not least <= (samples := sound.samples(processor.rate)) <= most:
            raise Invalid(
                f"lasts {sound.seconds:.4g} s, {samples:,} samples at {processor.rate:,} a second; the model takes "
                f"{least:,} to {most:,}",
                sound.field,
            )

    def memory(self, file: "Sound", _: AudioProcessor) -> int:
        return file.memory

    def tensor(self, file: "Sound", processor: AudioProcessor) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            tensor = processor(file.decoded(processor.rate))
        if not np.isfinite(tensor).all():
            raise Invalid("its samples are so large that they overflow float32", file.field)
        return tensor

    def beside(self, files: Sequence["Sound"], processor: AudioProcessor) -> dict[str, np.ndarray]:
        counts = np.array([file.samples(processor.rate) for file in files])
        return {MASK_INPUT: (np.arange(processor.longest) < counts[:, None]).astype(np.int64)}
