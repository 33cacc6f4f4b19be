"""Options that select and reduce attention: how they are sent, and how an answer with them is read."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from heed_client.answer import Quantized, TopK
from heed_client.arrays import dtype_name
from heed_client.block import Block, Tensor

AXES = ("layers", "heads", "queries")
WEIGHTS = ("weights", "encoder_weights", "cross_weights", "vision_weights")
ATTENTION = (*WEIGHTS, "scores")
INDICES, VALUES, SCALE = "_indices", "_values", "_scale"

Indices = Any  # an index, a list or array of them, or text of indices and ranges: "0,3,5:8,-1"


def normalized(options: Mapping[str, Any]) -> dict[str, Any]:
    """The given options in the form of the native API.

    Raises:
        TypeError: indices are neither whole numbers nor text.
    """
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
    plain["weights_dtype"] = dtype_name(plain.get("weights_dtype"))
    given = {name: value for name, value in plain.items() if value is not None and value is not False}
    return {name: _indices(name, value) if name in AXES else value for name, value in given.items()}


def output_names(outputs: str | Sequence[str] | None) -> list[str] | None:
    """The names of outputs, which may be given as text; None if none are given.

    Raises:
        TypeError: they are neither names nor text.
    """
    names = outputs.split(",") if isinstance(outputs, str) else outputs
    if names is None:
        return None
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"outputs: expected names, or text such as 'output,weights', got {outputs!r}")
    return [*names]


def parameters(options: Mapping[str, Any]) -> dict[str, Any]:
    """Normalized options as parameters of V2, which are single values."""
    return {
        name: ",".join(map(str, value)) if isinstance(value, list) else value
        for name, value in options.items()
        if name != "outputs"
    }


def find(block: Block, name: str) -> Tensor:
    """The output whose array an answer contains as ``name``.

    Raises:
        KeyError: the block has no such output.
    """
    outputs = {**block.derived, **block.outputs}
    if name in outputs:
        return outputs[name]
    return outputs[name[: name.rindex("_")]] if name.endswith((INDICES, VALUES, SCALE)) else outputs[name]


def kept_axes(block: Block, spec: Tensor, options: Mapping[str, Any]) -> list[int]:
    """The axes of ``spec`` that an answer with these options has; reductions remove axes."""
    axes = list(range(len(spec.shape)))
    if spec.name in ATTENTION:
        missing = 2
    elif spec.name in block.derived and spec.name != "rollout":
        missing = 1
    else:
        return axes
    if options.get("reduce_heads") or options.get("average_attn_weights"):
        del axes[-missing - 1]
    if options.get("reduce_layers"):
        del axes[0]
    return axes


def assembled(arrays: Mapping[str, np.ndarray], outputs: Iterable[str], quantized: bool) -> dict[str, Any]:
    """The ``outputs`` from the arrays of an answer, which include indices of the largest weights, and scales.

    Weights of uint8 become float32, or remain with their scale if ``quantized``.
    """
    answer: dict[str, Any] = {}
    for name in outputs:
        scale = arrays.get(name + SCALE)
        if name + INDICES in arrays:
            values = _scaled(arrays[name + VALUES], scale, quantized)
            answer[name] = TopK(arrays[name + INDICES], values)
        else:
            answer[name] = _scaled(arrays[name], scale, quantized)
    return answer


def _scaled(array: np.ndarray, scale: np.ndarray | None, quantized: bool) -> Any:
    if scale is None:
        return array
    value = Quantized(array, float(scale.reshape(-1)[0]))
    return value if quantized else value.dequantized()


def _indices(name: str, value: Any) -> int | str | list[int]:
    if isinstance(value, str):
        return value
    array = np.asarray(value.tolist() if hasattr(value, "tolist") else value)  # also torch's
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise TypeError(f"{name}: expected an index, a list of indices, or text such as '0,3,5:8', got {value!r}")
    indices: int | list[int] = array.tolist()
    return indices
