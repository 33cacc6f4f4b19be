"""Load a checkpoint: safetensors or a torch state dict, in one file or in shards, or a Hugging Face folder."""

import hashlib
import json
import pickle
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

INDEX = ".index.json"  # suffix of the file that maps tensors to shards
WEIGHTS = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")
SUPPORTED = (
    "heed export takes .safetensors, a torch state dict (.pt, .pth, .bin), either in shards, "
    "or the folder of a Hugging Face BERT or RoBERTa"
)
KERAS = (
    "Convert a Keras model in Python: safetensors.numpy.save_file({v.path: numpy.ascontiguousarray("
    "keras.ops.convert_to_numpy(v)) for v in keras.models.load_model(NAME).weights}, 'weights.safetensors'); then --map"
)
NUMPY = (  # contiguous, as safetensors writes other arrays in the wrong order
    "Convert it in Python: safetensors.numpy.save_file({name: numpy.ascontiguousarray(x) for name, x in "
    "numpy.load(NAME).items()}, 'weights.safetensors'); --map renames the arrays"
)
UNSUPPORTED = dict.fromkeys((".h5", ".hdf5", ".keras"), KERAS) | {".npz": NUMPY}
UNSUPPORTED |= dict.fromkeys((".npy", ".onnx", ".gguf", ".msgpack", ".pb", ".tflite", ".json"), "")
MAX_LISTED = 12  # names in a message


class CheckpointError(Exception):
    """The file cannot be used as the weights of the block; the message says why, and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors in float32 by the names in the file; ``config`` is the content of the model's config.json, if any."""

    path: Path
    tensors: dict[str, Tensor]
    config: dict[str, Any] = field(default_factory=dict)
    tokenizer: tuple[Path, ...] = ()
    shards: tuple[Path, ...] = ()  # the files with tensors, if ``path`` is an index

    def digest(self) -> str:
        """SHA-256 of the files with tensors, joined."""
        return digest_of(self.shards or (self.path,))


def digest_of(files: Iterable[Path]) -> str:
    """SHA-256 of ``files``, joined."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()


def load(path: Path) -> Checkpoint:
    """Read ``path``: a file of tensors, an index of such files, or a folder with either and a config.json.

    A file with a name of ``WEIGHTS`` and a config.json in its folder is read as that folder.

    Raises:
        CheckpointError: there is no such file, it has no tensors, or it is a pickle that would run code.
    """
    if path.is_dir():
        weights = next((path / name for name in WEIGHTS if (path / name).is_file()), None)
        if weights is None or not (path / "config.json").is_file():
            raise CheckpointError(f"{path} needs config.json, and {' or '.join(WEIGHTS)}. {SUPPORTED}")
        return load(weights)
    if not path.is_file():
        raise CheckpointError(f"no such file: {path}")
    shards = _shards(path) if path.name.endswith(INDEX) else ()
    tensors: dict[str, Tensor] = {}
    for file in shards or (path,):
        tensors |= _tensors(file)
    if shards and (missing := _weight_map(path).keys() - tensors.keys()):
        raise CheckpointError(f"{path} lists tensors that are in none of its shards: {listed(sorted(missing))}")
    floats = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    if path.name not in WEIGHTS or not (path.parent / "config.json").is_file():
        return Checkpoint(path, floats, shards=shards)
    tokenizer = tuple(path.parent / name for name in TOKENIZER if (path.parent / name).is_file())
    return Checkpoint(path, floats, _json_object(path.parent / "config.json"), tokenizer, shards)


def not_finite(tensor: Tensor) -> str | None:
    """Why ``tensor`` is not finite, "NaN" or "infinity"; None if all of its numbers are."""
    if tensor.isfinite().all():
        return None
    return "NaN" if tensor.isnan().any() else "infinity"


def listed(names: Iterable[str]) -> str:
    """The first of ``names`` for a message, and the number of the others."""
    names = list(names)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def _tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix in UNSUPPORTED:
        hint = UNSUPPORTED[path.suffix].replace("NAME", repr(path.name))
        raise CheckpointError(f"{path}: {SUPPORTED}, not {path.suffix}. {hint}".rstrip(" ."))
    state = _safetensors(path) if path.suffix == ".safetensors" else _state_dict(path, _torch(path))
    if not state:
        raise CheckpointError(f"{path} is not a state dict: it is empty")
    others = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if others:
        raise CheckpointError(f"{path} is not a state dict: {listed(others)} are not tensors")
    return state


def _state_dict(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """``content``, or the one state dict in it, as training scripts save it: {"model": ..., "epoch": ...}."""
    inside = {
        name: value
        for name, value in content.items()
        if isinstance(value, dict) and value and all(isinstance(tensor, Tensor) for tensor in value.values())
    }
    if len(inside) > 1:
        raise CheckpointError(f"{path} has several state dicts: {listed(inside)}; save the one to export")
    return next(iter(inside.values()), content)


def _safetensors(path: Path) -> dict[str, Any]:
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from None


def _torch(path: Path) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path} is refused: it is not a plain state dict, and unpickling it could run code. "
            "Save module.state_dict(), or better safetensors"
        ) from None
    except Exception as error:  # damaged files make the unpickler raise errors of many types
        raise CheckpointError(f"{path} cannot be read as a torch file: {error}. {SUPPORTED}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} contains a {type(content).__name__} instead of a state dict")
    return content


def _shards(index: Path) -> tuple[Path, ...]:
    names = sorted(set(_weight_map(index).values()))
    if any(Path(name).name != name for name in names):
        raise CheckpointError(f"{index} names files outside its folder: {listed(names)}")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(f"{index} names files that are not in its folder: {listed(missing)}")
    return tuple(index.parent / name for name in names)


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = _json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(x, str) for x in weight_map.values()):
        raise CheckpointError(f'{index} has no "weight_map" from tensors to files')
    return weight_map


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} contains no JSON object")
    return content
