"""Files of pictures and of sound as features of the service."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.feature import Feature
from service.media.audio import MASK_INPUT, AudioSource
from service.media.images import ImageSource
from service.media.preprocessor import PIXEL_MASK, PREPROCESSOR_FILE, preprocessor, read_preprocessor
from service.media.source import FileSource
from service.model.model import Model


class FileFeature(Feature, ABC):
    """A field of the native API's requests with files, for the models that have one of the source's inputs."""

    source: FileSource[Any, Any]
    inner: str  # the name of the processor's file in that of a processor of texts, too

    def load(self, folder: Path, model: Model) -> None:
        name = self.source.input_of(model)
        if name is None or model.spec is None:
            return
        content = read_preprocessor(folder, self.inner)
        if content is None:
            self.source.processors[model] = f"it has no {PREPROCESSOR_FILE}"
            return
        try:
            self.source.processors[model] = self.processor(content, model, model.inputs[name].shape[1:])
        except ModuleNotFoundError as error:
            self.source.processors[model] = f"this server lacks {error.name} (pip install 'heed-attention[media]')"
        except ValueError as error:
            self.source.processors[model] = str(error)

    @abstractmethod
    def processor(self, content: dict[str, Any], model: Model, shape: Sequence[Any]) -> object:
        """What makes an input of ``shape`` of a file, by the processor's file ``content``.

        Raises:
            ModuleNotFoundError: a library is missing.
            ValueError: the processor is of another kind, or does not fit to the model; the message says why.
        """


class Pictures(FileFeature):
    """``images``, and the description of the image processor."""

    inner = "image_processor"

    def __init__(self) -> None:
        self.source = ImageSource()

    def processor(self, content: dict[str, Any], model: Model, shape: Sequence[Any]) -> object:
        if len(shape) != 3:
            raise ValueError("its pixel_values are several pictures each")
        model.preprocessor = preprocessor(content)
        from service.media.image_processor import image_processor

        channels, height, width = shape
        return image_processor(content, model.preprocessor, channels, height, width, PIXEL_MASK in model.inputs)


class Sounds(FileFeature):
    """``audio``."""

    inner = "feature_extractor"

    def __init__(self) -> None:
        self.source = AudioSource()

    def processor(self, content: dict[str, Any], model: Model, shape: Sequence[Any]) -> object:
        import service.media.sound  # noqa: F401 (whether its libraries are there)
        from service.media.audio_processor import audio_processor

        processor = audio_processor(content, shape)
        if processor.returns_mask and MASK_INPUT not in model.inputs:
            raise ValueError(f"its feature extractor makes an {MASK_INPUT}, which the graph lacks (export it again)")
        return processor
