"""An ONNX Runtime session's declaration of its inputs and outputs."""

from dataclasses import dataclass

import numpy as np

from service.tensors.bfloat16 import BFLOAT16
from service.tensors.dims import Dim

DTYPES: dict[str, type[np.generic] | np.dtype] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
    "tensor(bfloat16)": BFLOAT16,
    **{f"tensor({name})": getattr(np, name) for name in ("int8", "int16", "int32", "int64")},
    **{f"tensor({name})": getattr(np, name) for name in ("uint8", "uint16", "uint32", "uint64")},
}


@dataclass(frozen=True)
class TensorSpec:
    """An input or output, as the ONNX Runtime session declares it. Shape ``()`` is a parameter."""

    name: str
    dtype: np.dtype
    shape: tuple[Dim, ...]
    required: bool = True
