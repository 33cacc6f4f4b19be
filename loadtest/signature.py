"""The inputs a server says a model takes, from Heed's description of a block or from V2's metadata of any model."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.server import Server, ServerError

DATATYPES = {
    "BOOL": "bool", "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "UINT8": "uint8",
    "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip


@dataclass(frozen=True)
class Input:
    """``shape`` holds numbers and symbols; a symbol may be a sum, ``past + n``. ``example`` are values it takes."""

    name: str
    dtype: str
    shape: list[str | int]
    required: bool = True
    example: Any = None


def inputs(server: Server, model: str) -> list[Input]:
    """The inputs of ``model``.

    Raises:
        ServerError: the server does not know the model.
    """
    described = server.document(f"/v1/attention/{model}")
    if described is not None:
        example = described.get("example", {})
        return [
            Input(
                of["name"],
                "bool" if of["dtype"].endswith("bool") else of["dtype"],
                of["shape"],
                of["required"],
                np.asarray(example[of["name"]]) if of["name"] in example else None,
            )
            for of in described["inputs"]
        ]
    metadata = server.document(f"/v2/models/{model}")
    if metadata is not None:
        return [
            Input(of["name"], DATATYPES.get(of["datatype"], of["datatype"]), [_axis(n) for n in of["shape"]])
            for of in metadata["inputs"]
        ]
    raise ServerError(f"{server.url} serves no {model}{_listed(server)}")


def _axis(size: int) -> str | int:
    return "?" if int(size) < 0 else int(size)


def _listed(server: Server) -> str:
    listed = server.document("/v1/attention")
    return f"; there are {', '.join(of['block'] for of in listed['blocks'])}" if listed else ""
