"""Files of pictures and sound of all kinds, and models written by hand whose output is their input."""

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import soundfile
from onnx import helper, numpy_helper
from PIL import Image

from tests.support.graphs import write

PADDED = -9.0  # the output of a model with a mask where an input is padding
CONSTANTS = {"outer": np.array([0, 2, 3]), "column": np.array([0, -1]), "padded": np.float32(PADDED)}
RNG_SEED = 11


def write_echo_model(
    folder: Path, name: str, shape: Sequence[int], processor: dict[str, Any] | None, is_masked: bool = False
) -> None:
    """Write the version ``folder`` of a model whose output is its input ``name`` [batch, *shape].

    Where it ``is_masked`` it has a second input, ``attention_mask``, and the output is ``PADDED`` where this is 0.
    """
    mask = ("attention_mask", "INT64", ["batch", *shape])
    echo = [helper.make_node("Identity", [name], ["output"])]
    if is_masked:
        echo = [
            helper.make_node("Cast", [mask[0]], ["real"], to=onnx.TensorProto.BOOL),
            helper.make_node("Where", ["real", name, "padded"], ["output"]),
        ]
    nodes = [
        *echo,
        helper.make_node("Reshape", [name, "column"], ["rows"]),
        helper.make_node("ReduceMean", ["rows", "last"], ["mean"], keepdims=1),
        helper.make_node("Softmax", ["mean"], ["one"]),
        helper.make_node("Unsqueeze", ["one", "outer"], ["weights"]),
    ]
    constants = {**CONSTANTS, "last": np.array([-1])}
    tensor = (name, "FP32", ["batch", *shape])
    outputs = [("output", *tensor[1:]), ("weights", "FP32", [1, "batch", 1, 1, 1])]
    tensors = [tensor, mask] if is_masked else [tensor]
    write(folder, nodes, tensors, outputs, [numpy_helper.from_array(array, key) for key, array in constants.items()])
    model = onnx.load(folder / "model.onnx")
    helper.set_model_props(model, {"heed": json.dumps(_card(folder.parent.name, tensors))})
    onnx.save(model, folder / "model.onnx")
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def write_picture_model(
    folder: Path, height: int, width: int, processor: dict[str, Any] | None, channels: int = 3
) -> None:
    write_echo_model(folder, "pixel_values", (channels, height, width), processor)


def file_of(picture: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    picture.save(file := io.BytesIO(), format, **options)
    return file.getvalue()


def text_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """A picture of random blocks, whose edges show how it is resized."""
    rng = np.random.default_rng((RNG_SEED, width, height))
    bands = len(Image.new(mode, (1, 1)).getbands())
    blocks = rng.integers(0, 256, (-(-height // 3), -(-width // 3), bands), np.uint8)
    values = np.repeat(np.repeat(blocks, 3, 0), 3, 1)[:height, :width]
    return (
        Image.fromarray(values if bands > 1 else values[:, :, 0], mode=None)
        if mode != "CMYK"
        else Image.merge(mode, [Image.fromarray(values[:, :, band]) for band in range(bands)])
    )


def files() -> dict[str, bytes]:
    """Twenty files: sizes, modes, formats, transparency, orientation."""
    sizes = {f"{width}x{height}": file_of(noise(width, height)) for width, height in SIZES}
    rgb, rgba = noise(61, 47), noise(61, 47, "RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    return {
        **sizes,
        "grey": file_of(noise(61, 47, "L")),
        "grey with transparency": file_of(rgba.convert("LA")),
        "black and white": file_of(noise(61, 47, "L").convert("1")),
        "palette": file_of(rgb.convert("P")),
        "palette with transparency": file_of(rgb.convert("P"), transparency=3),
        "transparent": file_of(rgba),
        "16 bits": file_of(Image.fromarray(np.arange(61 * 47, dtype=np.uint16).reshape(47, 61) * 20)),
        "JPEG": file_of(rgb, "JPEG", quality=80),
        "JPEG turned": file_of(rgb, "JPEG", exif=exif),
        "JPEG CMYK": file_of(noise(61, 47, "CMYK"), "JPEG"),
        "JPEG progressive": file_of(rgb, "JPEG", progressive=True),
        "WebP": file_of(rgb, "WEBP"),
        "WebP transparent": file_of(rgba, "WEBP", lossless=True),
    }


SIZES = [(8, 200), (200, 8), (24, 24), (23, 25), (320, 240), (133, 377)]


def _card(block: str, tensors: Sequence[tuple[str, str, list[Any]]]) -> dict[str, Any]:
    return {
        **{"block": block, "version": 1, "title": "an echo (by hand)", "description": "", "formula": "", "source": ""},
        **{"config": {"patch_size": 4}, "weights": "none", "multiples": {}, "limits": {}},
        "inputs": {name: {"description": "Files."} for name, _, _ in tensors},
        "outputs": {"output": {"description": "The same."}, "weights": {"description": "Weights."}},
        **{"left_out": {}, "depth": 1, "learned": 1, "rows": ["batch"]},
        "example": {name: np.zeros((1, *shape[1:])).tolist() for name, _, shape in tensors},
        **{"tolerance": {}, "opset": 20, "exporter": "none"},
    }


def tone(seconds: float, rate: int, channels: int = 1) -> np.ndarray:
    """A sweep from 100 to 4,000 Hz with noise, float32 [samples, channels]."""
    time = np.arange(round(seconds * rate)) / rate
    rng = np.random.default_rng((RNG_SEED, rate))
    sweep = 0.5 * np.sin(2 * np.pi * (100 + 1950 * time / max(seconds, 1e-9)) * time)
    return (sweep[:, None] + 0.05 * rng.standard_normal((len(time), channels))).astype(np.float32)


def sound_of(samples: np.ndarray, rate: int, format: str = "WAV", subtype: str = "FLOAT") -> bytes:
    soundfile.write(file := io.BytesIO(), samples, rate, format=format, subtype=subtype)
    return file.getvalue()
