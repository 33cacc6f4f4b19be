"""From samples to a model's input: the steps of transformers' feature extractors of wav2vec 2.0, AST and Whisper."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from service.media.preprocessor import NAMES_NONE

ENDING = "FeatureExtractor"
VARIANCE = 1e-7  # added to that of samples
FFT = 512  # of AST's frames
SLANEY_HZ, SLANEY_MEL, SLANEY_STEP = 1000.0, 15.0, 27.0 / np.log(6.4)  # where the scale becomes logarithmic
MELS_8_KHZ = SLANEY_MEL + np.log(8000.0 / SLANEY_HZ) * SLANEY_STEP


class AudioProcessor(ABC):
    """Computes a model's input of samples at ``rate``, of which there are ``shortest`` to ``longest``."""

    rate: int
    returns_mask = False  # whether it also makes an attention_mask: 1 for each sample, 0 for padding
    shortest = 1
    longest: int

    @abstractmethod
    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """The input of one row, float32."""


class Wav2Vec2(AudioProcessor):
    """Samples with a mean of 0 and a variance of 1, padded with zeros to a fixed length."""

    def __init__(self, content: dict[str, Any], shape: Sequence[int]) -> None:
        (self.longest,) = shape
        self.rate = content["sampling_rate"]
        self._normalizes = content.get("do_normalize", True)
        self.returns_mask = content.get("return_attention_mask") is True

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        padded = np.zeros(self.longest, np.float32)
        padded[: len(samples)] = samples
        if self._normalizes:
            own = padded[: len(samples) if self.returns_mask else None]
            own[:] = (own - own.mean()) / np.sqrt(own.var() + VARIANCE)
        return padded


class AudioSpectrogram(AudioProcessor):
    """Kaldi's logarithmic filter banks, normalized, and padded with zeros before that.

    Gong, Chung and Glass, "AST: Audio Spectrogram Transformer" (2021).
    """

    def __init__(self, content: dict[str, Any], shape: Sequence[int]) -> None:
        self.rate = content["sampling_rate"]
        self._frames, bins = shape
        self._length, self._hop = 400, 160
        self.shortest = self._length
        self.longest = self._length + self._hop * self._frames - 1
        normalizes = content.get("do_normalize", True)
        self._mean: float = content["mean"] if normalizes else 0.0
        self._std: float = content["std"] if normalizes else 0.5
        self._window = np.hanning(self._length)
        mels = np.linspace(_kaldi(np.float64(20)), _kaldi(np.float64(self.rate // 2)), bins + 2)
        self._filters = _triangles(_kaldi(self.rate / FFT * np.arange(FFT // 2 + 1)), mels)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        frames = _frames(samples, self._length, self._hop)
        frames = frames - frames.mean(axis=1, keepdims=True)
        emphasized = frames.copy()
        emphasized[:, 1:] -= 0.97 * frames[:, :-1]
        emphasized[:, 0] *= 1 - 0.97
        power = _power(emphasized * self._window, FFT)
        features = np.log(np.maximum(power @ self._filters, 2.0**-23)).astype(np.float32)
        padded = np.zeros((self._frames, features.shape[1]), np.float32)
        padded[: len(features)] = features[: self._frames]
        return (padded - np.float32(self._mean)) / np.float32(self._std * 2)


class Whisper(AudioProcessor):
    """The logarithmic mel spectrogram of samples that are padded with zeros to a fixed length.

    Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), 2.2.
    """

    def __init__(self, content: dict[str, Any], shape: Sequence[int]) -> None:
        bins, frames = shape
        self.rate = content["sampling_rate"]
        self._length, self._hop = content["n_fft"], content["hop_length"]
        self.longest = frames * self._hop
        if content.get("dither"):
            raise ValueError("its feature extractor adds random numbers (dither)")
        self._window = np.hanning(self._length + 1)[:-1]
        hertz = _slaney_hertz(np.linspace(0.0, MELS_8_KHZ, bins + 2))
        filters = _triangles(np.linspace(0, self.rate // 2, 1 + self._length // 2), hertz)
        self._filters = filters * 2.0 / (hertz[2:] - hertz[:-2])

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        padded = np.zeros(self.longest)
        padded[: len(samples)] = samples
        frames = _frames(np.pad(padded, self._length // 2, mode="reflect"), self._length, self._hop)[:-1]
        logarithms = np.log10(np.maximum(_power(frames * self._window, self._length) @ self._filters, 1e-10))
        floored = np.maximum(logarithms, logarithms.max() - 8.0)
        return np.ascontiguousarray(((floored + 4.0) / 4.0).T, np.float32)


KINDS: dict[str, type[Wav2Vec2] | type[AudioSpectrogram] | type[Whisper]] = {
    "AST": AudioSpectrogram,
    "Wav2Vec2": Wav2Vec2,
    "Whisper": Whisper,
}


def audio_processor(content: dict[str, Any], shape: Sequence[int]) -> AudioProcessor:
    """The feature extractor of the file ``content``, for a model that takes ``shape``, without the batch.

    Raises:
        ValueError: it is of another kind, or makes another shape; the message says which.
    """
    name = content.get("feature_extractor_type")
    kind = KINDS.get(name.removesuffix(ENDING)) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"its feature extractor, {name}, is not supported" if name else NAMES_NONE)
    try:
        processor = kind(content, shape)
        made = processor(np.zeros(processor.shortest, np.float32)).shape
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"its feature extractor does not fit to the model: {error}") from None
    if made != tuple(shape):
        raise ValueError(f"its feature extractor makes {[*made]}; the model takes {[*shape]}")
    return processor


def _frames(samples: np.ndarray, length: int, hop: int) -> np.ndarray:
    """Pieces [frames, length] of samples, each ``hop`` behind the one before it; float64."""
    return np.lib.stride_tricks.sliding_window_view(samples, length)[::hop].astype(np.float64)


def _power(frames: np.ndarray, size: int) -> np.ndarray:
    """The power [frames, 1 + size // 2] of each frequency."""
    spectrum = np.fft.rfft(frames, size)
    power: np.ndarray = spectrum.real**2 + spectrum.imag**2
    return power


def _triangles(places: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Filters [places, corners - 2], each from 0 at a corner to 1 at the next and 0 at the one after that."""
    slopes = corners[None] - places[:, None]
    widths = np.diff(corners)
    filters: np.ndarray = np.maximum(0, np.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]))
    return filters


def _kaldi(hertz: Any) -> Any:
    return 1127.0 * np.log(1.0 + hertz / 700.0)


def _slaney_hertz(mels: np.ndarray) -> np.ndarray:
    """Frequencies by the mel scale of Slaney's Auditory Toolbox: linear to 1,000 Hz, then logarithmic."""
    return np.where(mels < SLANEY_MEL, 200.0 * mels / 3.0, SLANEY_HZ * np.exp((mels - SLANEY_MEL) / SLANEY_STEP))
