"""Tensors in files and out of them: npy, npz, safetensors, JSON. A file is told by what it holds, not by its name."""

import base64
import io
import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heed_client.answer import Largest

SAFE = {"BOOL": "?", "I8": "i1", "U8": "u1"}  # safetensors' words, numpy's types
SAFE |= {f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind in "fiu" for size in (2, 4, 8)}
SUFFIXES = (".npz", ".npy", ".safetensors", ".json")


class FileError(Exception):
    """A file that cannot be read or written; the message says which and why."""


def read(path: str) -> Any:
    """What a file holds, or standard input (``-``), or lists in its place: an array, or a mapping of them by name.

    JSON may hold whatever a request does: lists, numbers, flags.

    Raises:
        FileError: none of these formats, or damaged, or pickled.
    """
    try:
        if path.startswith("["):
            content = path.encode()
        else:
            content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    try:
        return _parsed(content)
    except (ValueError, TypeError, zipfile.BadZipFile, EOFError, FileError) as error:
        raise FileError(f"{path}: {error}") from None


def pick(path: str, name: str) -> Any:
    """One tensor of a file: of several the one called ``name``, or the one that ``FILE:NAME`` says.

    Raises:
        FileError: as ``read``, or there is none of that name.
    """
    if ":" in path and not Path(path).exists():
        path, _, name = path.rpartition(":")
    held = read(path)
    if not isinstance(held, Mapping):
        return held
    if name not in held and len(held) == 1:
        return next(iter(held.values()))
    if name not in held:
        raise FileError(f"{path}: holds no {name!r}; there are {', '.join(held)}. Say which: {path}:NAME")
    return held[name]


def write(path: str, outputs: Mapping[str, Any]) -> None:
    """Write ``outputs`` in the format that the suffix says; ``-`` is JSON on standard output.

    Raises:
        FileError: it cannot be written, or .npy for more than one.
    """
    flat: dict[str, np.ndarray] = {}
    for name, array in outputs.items():
        flat |= {f"{name}_{part}": of for part, of in array._asdict().items()} if _is_largest(array) else {name: array}
    try:
        if path == "-":
            sys.stdout.buffer.write(_json(outputs) + b"\n")
        elif path.endswith(".json"):
            Path(path).write_bytes(_json(outputs) + b"\n")
        elif path.endswith(".npz"):
            np.savez(path, **flat)  # type: ignore[arg-type]  # mypy takes a name for allow_pickle
        elif path.endswith(".safetensors"):
            _safetensors().numpy.save_file({name: np.ascontiguousarray(array) for name, array in flat.items()}, path)
        elif len(flat) == 1:
            np.save(path, next(iter(flat.values())))
        else:
            raise FileError(f"{path}: .npy holds one array, there are {', '.join(flat)}; .npz holds several")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None


def _parsed(content: bytes) -> Any:
    if content.startswith(b"\x93NUMPY"):
        return np.load(io.BytesIO(content), allow_pickle=False)
    if content.startswith(b"PK\x03\x04"):
        with np.load(io.BytesIO(content), allow_pickle=False) as held:
            return dict(held)
    if content[8:9] == b"{" and int.from_bytes(content[:8], "little") < len(content):
        return _of_safetensors(content)
    if content.lstrip()[:1] in (b"{", b"["):
        held = json.loads(content)
        if not isinstance(held, dict) or "shape" in held:
            return _tensor(held)
        return {name: _tensor(value) for name, value in held.items()}
    raise FileError("neither npy, npz, safetensors nor JSON")


def _tensor(said: Any) -> Any:
    """A tensor in JSON may be an object, as the API takes it."""
    if not isinstance(said, dict):
        return said
    if said.keys() == {"shape", "data"}:
        return np.reshape(said["data"], said["shape"])
    if said.keys() == {"shape", "dtype", "base64"}:
        return np.frombuffer(base64.b64decode(said["base64"]), said["dtype"]).reshape(said["shape"])
    raise FileError(f'expected "shape" and "data", or "shape", "dtype" and "base64", got {sorted(said)}')


def _of_safetensors(content: bytes) -> dict[str, np.ndarray]:
    """bfloat16, which numpy does not have, becomes float32."""
    try:
        held = _safetensors().deserialize(content)
    except _safetensors().SafetensorError as error:
        raise FileError(str(error)) from None
    return {name: _of_bytes(said["dtype"], said["data"]).reshape(said["shape"]) for name, said in held}


def _of_bytes(word: str, data: bytes) -> np.ndarray:
    if word == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if word not in SAFE:
        raise FileError(f"safetensors' type {word} is none of {', '.join(SAFE)}, BF16")
    return np.frombuffer(data, SAFE[word])


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ModuleNotFoundError:
        raise FileError("needs the package safetensors") from None
    return safetensors


def _is_largest(array: Any) -> bool:
    return isinstance(array, Largest)


def _json(outputs: Mapping[str, Any]) -> bytes:
    said = {
        name: {part: _listed(of) for part, of in array._asdict().items()} if _is_largest(array) else _listed(array)
        for name, array in outputs.items()
    }
    return json.dumps(said, allow_nan=False).encode()


def _listed(array: np.ndarray) -> Any:
    """Nested lists of the numbers' shortest words; null is -infinity, as the API has it."""
    if array.dtype.kind != "f":
        return array.tolist()
    numbers = array.astype(str).astype(np.float64)
    numbers = numbers.astype(object)
    numbers[np.isneginf(array)] = None
    return numbers.tolist()
