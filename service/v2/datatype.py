"""The protocol's datatypes, and what they are called by numpy (hence by the engine) and in a model configuration."""

from dataclasses import dataclass

import numpy as np

from service.bfloat16 import BFLOAT16


@dataclass(frozen=True)
class Datatype:
    """One type of tensor element; BYTES has an itemsize of its own for each element."""

    name: str
    config: str
    dtype: np.dtype


DATATYPES = {
    name: Datatype(name, config, np.dtype(dtype))
    for name, config, dtype in (
        ("BOOL", "TYPE_BOOL", np.bool_),
        ("UINT8", "TYPE_UINT8", np.uint8),
        ("UINT16", "TYPE_UINT16", np.uint16),
        ("UINT32", "TYPE_UINT32", np.uint32),
        ("UINT64", "TYPE_UINT64", np.uint64),
        ("INT8", "TYPE_INT8", np.int8),
        ("INT16", "TYPE_INT16", np.int16),
        ("INT32", "TYPE_INT32", np.int32),
        ("INT64", "TYPE_INT64", np.int64),
        ("FP16", "TYPE_FP16", np.float16),
        ("BF16", "TYPE_BF16", BFLOAT16),
        ("FP32", "TYPE_FP32", np.float32),
        ("FP64", "TYPE_FP64", np.float64),
        ("BYTES", "TYPE_STRING", np.object_),
    )
}
BOOL, BYTES = DATATYPES["BOOL"], DATATYPES["BYTES"]
_OF = {of.dtype: of for of in DATATYPES.values()}


def datatype(dtype: np.dtype) -> Datatype:
    """The datatype of the engine's arrays."""
    return _OF[dtype]
