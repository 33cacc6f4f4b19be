"""The inputs of a model, from Heed's description of a block or from the V2 metadata of any model."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from heed_options import nearest
from loadtest.requests.server import Server, ServerError, StatusError

DATATYPES = {
    "BOOL": "bool", "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "UINT8": "uint8",
    "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip


@dataclass(frozen=True)
class Input:
    """``shape`` has numbers, symbols, and sums such as ``past + n``; ``example`` is an array of valid values."""

    name: str
    dtype: str
    shape: list[str | int]
    required: bool = True
    example: Any = None


def inputs(server: Server, model: str) -> list[Input]:
    """The inputs of ``model``.

    Raises:
        ServerError: the server has no such model; StatusError, if it rejects the request.
    """
    block, rejection = None, None
    try:
        block = server.document(f"/v1/attention/{model}")
    except StatusError as error:  # a server that has only the V2 API may answer so
        rejection = error
    if block is not None and "inputs" in block:
        example = block.get("example", {})
        return [
            Input(
                tensor["name"],
                "bool" if tensor["dtype"].endswith("bool") else tensor["dtype"],
                tensor["shape"],
                tensor["required"],
                np.asarray(example[tensor["name"]]) if tensor["name"] in example else None,
            )
            for tensor in block["inputs"]
        ]
    metadata = server.document(f"/v2/models/{model}")
    if metadata is not None and "inputs" in metadata:
        return [
            Input(
                tensor["name"], DATATYPES.get(tensor["datatype"], tensor["datatype"]),
                ["?" if int(size) < 0 else int(size) for size in tensor["shape"]],
            )
            for tensor in metadata["inputs"]
        ]  # fmt: skip
    raise rejection or ServerError(f"no model {model!r} at {server.url}{_alternatives(server, model)}")


def _alternatives(server: Server, model: str) -> str:
    try:
        document = server.document("/v1/attention")
    except StatusError:
        return ""
    blocks = [block["block"] for block in document.get("blocks", ())] if document else []
    return nearest(model, blocks) or (f"; available: {', '.join(blocks)}" if blocks else "")
