"""A checkpoint's tensors: from safetensors, a torch state dict, or the directory of a Hugging Face model."""

import json
import pickle
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")


class CheckpointError(Exception):
    """The file cannot be used as weights of the block asked for; the message says why and what would help."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by the names they were saved under, in float32; ``config`` is the model's own, where it came with one."""

    path: Path
    tensors: dict[str, Tensor]
    config: dict[str, Any] = field(default_factory=dict)
    tokenizer: tuple[Path, ...] = ()


def load(path: Path) -> Checkpoint:
    """Read ``path``: a .safetensors file, a torch file (weights only), or a directory with config.json and weights.

    Raises:
        CheckpointError: no such file, no tensors in it, or a pickle that would run code.
    """
    if path.is_dir():
        return _directory(path)
    if not path.is_file():
        raise CheckpointError(f"no such file: {path}")
    found: dict[str, Any] = load_file(path) if path.suffix == ".safetensors" else _torch(path)
    found = found.get("state_dict", found)
    strangers = [name for name, value in found.items() if not isinstance(value, Tensor)]
    if strangers or not found:
        raise CheckpointError(f"{path} is no state dict: {', '.join(strangers) or 'it is empty'}")
    return Checkpoint(
        path, {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in found.items()}
    )


def _torch(path: Path) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols; what matters is whether it is refused
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path} is refused: it is no plain state dict, and unpickling it could run code. "
            "Save module.state_dict(), or better safetensors"
        ) from None
    except Exception as error:  # whatever a damaged file makes the unpickler stumble over
        raise CheckpointError(f"{path} cannot be read as a torch file: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, no state dict")
    return found


def _directory(path: Path) -> Checkpoint:
    config = path / "config.json"
    weights = next(
        (path / name for name in ("model.safetensors", "pytorch_model.bin") if (path / name).is_file()), None
    )
    if not config.is_file() or weights is None:
        raise CheckpointError(f"{path} needs config.json, and {' or '.join(WEIGHTS)}")
    tokenizer = tuple(path / name for name in TOKENIZER if (path / name).is_file())
    return Checkpoint(weights, load(weights).tensors, json.loads(config.read_text()), tokenizer)
