"""Adapters of the peft library (LoRA: Hu et al., 2021, https://arxiv.org/abs/2106.09685), merged into their model."""

import json
from pathlib import Path
from typing import Any

CONFIG = "adapter_config.json"
BASE = "base_model_name_or_path"  # its field with the directory of the model
WEIGHTS = "adapter_model.*"


def base_of(folder: Path) -> Path:
    """The directory of the model that ``folder`` is an adapter of; ``folder`` itself if it is a model.

    Raises:
        ValueError: the model is not on this machine.
    """
    file = folder / CONFIG
    if not file.is_file() or (folder / "config.json").is_file():
        return folder
    try:
        name = str(json.loads(file.read_text())[BASE])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{file} has no {BASE}") from None
    for base in (folder / name, Path(name)):
        if (base / "config.json").is_file():
            return base
    raise ValueError(
        f"{folder} is an adapter of {name}, which is no model's directory here: write its path to {BASE} in {file}"
    )


def merged(model: Any, folder: Path) -> Any:
    """``model`` with the adapter of ``folder`` added to its weights.

    Raises:
        ValueError: peft is not installed, or cannot merge this adapter.
    """
    try:
        from peft import PeftModel
    except ModuleNotFoundError:
        raise ValueError(f"{folder} is an adapter, which needs peft: pip install 'heed-attention[peft]'") from None
    try:
        return PeftModel.from_pretrained(model, str(folder)).merge_and_unload(safe_merge=True)
    except Exception as error:  # of many types
        raise ValueError(
            f"{folder}: peft cannot merge it: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from None
