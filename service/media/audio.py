"""The field ``audio`` as a source of ``input_values`` and ``input_features``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from service.base.errors import Invalid
from service.media.audio_processor import AudioProcessor
from service.media.source import FileSource

if TYPE_CHECKING:  # it needs soundfile and soxr, which may be missing
    from service.media.sound import Sound

AUDIO_INPUTS = ("input_values", "input_features")


class AudioSource(FileSource["Sound", AudioProcessor]):
    """Makes the samples or the spectrogram that a model takes of sounds."""

    name = "audio"
    kinds = "WAV or FLAC"
    names = AUDIO_INPUTS

    def opened(self, content: bytearray, field: str) -> "Sound":
        from service.media.sound import Sound

        return Sound(content, field)

    def check(self, files: Sequence["Sound"], processor: AudioProcessor) -> None:
        sound = files[-1]
        if not processor.shortest <= sound.samples(processor.rate) <= processor.longest:
            least, most = (count / processor.rate for count in (processor.shortest, processor.longest))
            raise Invalid(f"lasts {sound.seconds:.4g} s; the model takes {least:.4g} to {most:.4g} s", sound.field)

    def memory(self, file: "Sound", _: AudioProcessor) -> int:
        return file.memory

    def tensor(self, file: "Sound", processor: AudioProcessor) -> np.ndarray:
        return processor(file.decoded(processor.rate))
