"""Files of tensors: npy, npz, safetensors and JSON. Reading detects the format by the content, not by the suffix."""

import base64
import io
import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heed_client.answer import TopK

SAFETENSORS = {"BOOL": "?", "I8": "i1", "U8": "u1"}  # dtypes of safetensors -> dtypes of numpy
SAFETENSORS |= {f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind in "fiu" for size in (2, 4, 8)}
SUFFIXES = (".npz", ".npy", ".safetensors", ".json")


class FileError(Exception):
    """A file cannot be read or written; the message has its path and the reason."""


def read(path: str) -> Any:
    """The content of a file, of standard input (``-``), or of a JSON list given instead of a path.

    The result is an array or a mapping of arrays by name; JSON may also hold lists, numbers and booleans.

    Raises:
        FileError: the format is unknown, or the content is damaged or pickled.
    """
    try:
        if path.startswith("["):
            content = path.encode()
        else:
            content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        advice = (
            "; give a file, or a JSON list such as '[[1, 0], [0, 1]]'" if isinstance(error, FileNotFoundError) else ""
        )
        raise FileError(f"{path}: {error.strerror}{advice}") from None
    try:
        return _parse(content)
    except json.JSONDecodeError as error:
        raise FileError(f"{path}: {_json_problem(error)}") from None
    except UnicodeDecodeError:
        raise FileError(f"{path}: expected UTF-8") from None
    except (ValueError, TypeError, zipfile.BadZipFile, EOFError, FileError) as error:
        damaged = not isinstance(error, FileError) and "pickle" not in str(error)
        raise FileError(f"{path}: {'the file is damaged: ' if damaged else ''}{error}") from None


def pick(path: str, name: str) -> Any:
    """One tensor of a file: the only one, the one called ``name``, or the one that ``FILE:NAME`` selects.

    Raises:
        FileError: ``read`` fails, or the file has no tensor of that name.
    """
    if ":" in path and not Path(path).exists():
        path, _, name = path.rpartition(":")
    content = read(path)
    if not isinstance(content, Mapping):
        return content
    if name not in content and len(content) == 1:
        return next(iter(content.values()))
    if name not in content:
        raise FileError(f"{path}: has no {name!r}; available: {', '.join(content)}. Select one with {path}:NAME")
    return content[name]


def write(path: str, outputs: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Write ``outputs`` in the format of the suffix; ``-`` writes JSON to standard output. JSON has ``others``, too.

    Raises:
        FileError: the file cannot be written, or the format is .npy and there are several arrays.
    """
    flat: dict[str, np.ndarray] = {}
    for name, output in outputs.items():
        if isinstance(output, TopK):
            flat |= {f"{name}_{part}": array for part, array in output._asdict().items()}
        else:
            flat[name] = output
    try:
        if path == "-":
            sys.stdout.buffer.write(_json(outputs, others) + b"\n")
        elif path.endswith(".json"):
            Path(path).write_bytes(_json(outputs, others) + b"\n")
        elif path.endswith(".npz"):
            np.savez(path, **flat)  # type: ignore[arg-type]  # mypy mistakes a name for allow_pickle
        elif path.endswith(".safetensors"):
            _safetensors().numpy.save_file({name: np.ascontiguousarray(array) for name, array in flat.items()}, path)
        elif len(flat) == 1:
            np.save(path, next(iter(flat.values())))
        else:
            raise FileError(f"{path}: .npy takes only one array, got {', '.join(flat)}; use .npz")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None


def _parse(content: bytes) -> Any:
    if content.startswith(b"\x93NUMPY"):
        return np.load(io.BytesIO(content), allow_pickle=False)
    if content.startswith(b"PK\x03\x04"):
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return dict(archive)
    if content[8:9] == b"{" and int.from_bytes(content[:8], "little") < len(content):
        return _parse_safetensors(content)
    if content.lstrip()[:1] in (b"{", b"["):
        document = json.loads(content)
        if not isinstance(document, dict) or "shape" in document:
            return _tensor(document)
        return {name: _tensor(value) for name, value in document.items()}
    raise FileError("expected npy, npz, safetensors or JSON")


def _json_problem(error: json.JSONDecodeError) -> str:
    """A message with the place of the error, the expected text, and the text that was found."""
    found = error.doc[error.pos : error.pos + 20].split("\n")[0]
    expected = error.msg.replace("Expecting property name", "Expecting a name").replace("Expecting value", "a value")
    expected = expected.removeprefix("Expecting ").removesuffix(" delimiter").replace("Extra data", "nothing more")
    where = f"line {error.lineno}, column {error.colno}"
    return f"invalid JSON: {where}: expected {expected}, got {repr(found) if found else 'the end'}"


def _tensor(value: Any) -> Any:
    """A tensor in JSON: nested lists, or one of the objects that the API accepts."""
    if not isinstance(value, dict):
        return value
    if value.keys() == {"shape", "data"}:  # as lists, which distinguish 0, 0.0 and null
        return np.reshape(np.asarray(value["data"], object), value["shape"]).tolist()
    if value.keys() == {"shape", "dtype", "base64"}:
        return np.frombuffer(base64.b64decode(value["base64"]), value["dtype"]).reshape(value["shape"])
    raise FileError(f'expected "shape" and "data", or "shape", "dtype" and "base64", got {sorted(value)}')


def _parse_safetensors(content: bytes) -> dict[str, np.ndarray]:
    try:
        tensors = _safetensors().deserialize(content)
    except _safetensors().SafetensorError as error:
        raise FileError(str(error)) from None
    return {name: _from_bytes(tensor["dtype"], tensor["data"]).reshape(tensor["shape"]) for name, tensor in tensors}


def _from_bytes(dtype: str, data: bytes) -> np.ndarray:
    """The numbers in ``data``; bfloat16, which numpy lacks, becomes float32."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype not in SAFETENSORS:
        raise FileError(f"unknown safetensors dtype {dtype}; expected one of {', '.join(SAFETENSORS)}, BF16")
    return np.frombuffer(data, SAFETENSORS[dtype])


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ModuleNotFoundError:
        raise FileError("needs the package safetensors: pip install safetensors") from None
    return safetensors


def _json(outputs: Mapping[str, Any], others: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(others) | to_lists(outputs), allow_nan=False).encode()


def to_lists(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs as JSON values."""
    return {
        name: {part: _to_list(array) for part, array in output._asdict().items()}
        if isinstance(output, TopK) else _to_list(output)
        for name, output in outputs.items()
    }  # fmt: skip


def _to_list(array: np.ndarray) -> Any:
    """Nested lists with the shortest digits that round-trip; as in the API, -infinity becomes null."""
    if array.dtype.kind != "f":
        return array.tolist()
    numbers = array.astype(str).astype(np.float64).astype(object)
    numbers[np.isneginf(array)] = None
    return numbers.tolist()
