"""Small models with a tower for texts and one for images, as ``save_pretrained`` writes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.models.auto.image_processing_auto import get_image_processor_class_from_name

from tests.support.families import IMAGE, TEXT, Family, save
from tests.support.texts import save_tokenizer

SIZE = {"height": 16, "width": 16}
CROPPED = {"size": {"shortest_edge": 16}, "crop_size": SIZE}
CONFIG = {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 8}
BLIP = {**CONFIG, "text_config": {**TEXT, "encoder_hidden_size": 32}}


@dataclass(frozen=True)
class Towers:
    """A model, and its image processor: the first part of the class's name, and settings."""

    family: Family
    processor: str
    settings: Mapping[str, Any]

    def image_processor(self) -> Any:
        """The processor, with Pillow."""
        return get_image_processor_class_from_name(f"{self.processor}ImageProcessorPil")(**self.settings)


MODELS = {
    "clip": Towers(Family("CLIPModel", CONFIG), "CLIP", CROPPED),
    "siglip": Towers(Family("SiglipModel", {"text_config": TEXT, "vision_config": IMAGE}), "Siglip", {"size": SIZE}),
    "chinese clip": Towers(Family("ChineseCLIPModel", CONFIG), "ChineseCLIP", CROPPED),
    "altclip": Towers(Family("AltCLIPModel", {**CONFIG, "text_config": {**TEXT, "project_dim": 8}}), "CLIP", CROPPED),
    "blip": Towers(Family("BlipModel", BLIP), "Blip", {"size": SIZE}),
}


def save_model(name: str, folder: Path) -> None:
    """Write the model's directory, with a tokenizer of words."""
    save(MODELS[name].family, folder)
    save_tokenizer(folder)
    MODELS[name].image_processor().save_pretrained(folder)
