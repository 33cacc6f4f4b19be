"""Request and response bodies in four protocols: V2 JSON, V2 binary, Heed's native API, and plain JSON objects."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from benchmarks.serving.workloads import Arrays, Workload
from heed_client.v2 import HEADER, binary_request

PROTOCOLS = ("v2-json", "v2-binary", "native", "plain")
JSON = {"Content-Type": "application/json"}
ID = "00000000"  # the load generator replaces it with ids of the same length


@dataclass(frozen=True)
class Bodies:
    """Request bodies, which are sent in turn with the same headers."""

    texts: list[bytes]
    headers: dict[str, str]


def bodies(workload: Workload, model: str, protocol: str, with_id: bool = False) -> Bodies:
    """All requests of ``workload`` to ``model``, for all its outputs.

    Numbers in JSON have the shortest digits that give the same float32. The JSON parts of binary bodies are padded with
    spaces to the same length, so that they share one Inference-Header-Content-Length.
    """
    inputs = [workload.as_model(model, tensors) for tensors in workload.tensors]
    if protocol == "plain":
        return Bodies([dumps(tensors) for tensors in inputs], JSON)
    if protocol == "native":
        return Bodies([dumps({**tensors, "outputs": workload.outputs}) for tensors in inputs], JSON)
    fields = {"id": ID} if with_id else {}
    if protocol == "v2-json":
        return Bodies([dumps(fields | _v2(tensors, workload.outputs)) for tensors in inputs], JSON)
    requests = [binary_request(tensors, workload.outputs, **fields) for tensors in inputs]
    length = max(int(headers[HEADER]) for headers, _ in requests)
    padded = [b"".join([head.ljust(length), *attached]) for _, (head, *attached) in requests]
    return Bodies(padded, {"Content-Type": "application/octet-stream", HEADER: str(length)})


def _v2(tensors: Arrays, outputs: tuple[str, ...]) -> dict[str, Any]:
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": "FP32", "data": array.ravel()}
        for name, array in tensors.items()
    ]
    return {"inputs": inputs, "outputs": [{"name": name} for name in outputs]}


def v2_response(tensors: Arrays, model: str, binary: bool) -> tuple[bytes, int]:
    """A V2 response body with these outputs, and the length of its JSON part in bytes."""
    outputs = [
        {"name": name, "shape": list(array.shape), "datatype": "FP32"}
        | ({"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.ravel()})
        for name, array in tensors.items()
    ]
    head = dumps({"model_name": model, "outputs": outputs})
    return head + b"".join(array.tobytes() for array in tensors.values() if binary), len(head)


def parse_response(content: bytes, json_bytes: int | None, outputs: tuple[str, ...]) -> Arrays:
    """The outputs in a response of any protocol; ``json_bytes`` is its Inference-Header-Content-Length."""
    document = json.loads(content[:json_bytes])
    if "outputs" not in document:
        return {name: np.asarray(document[name], np.float32) for name in outputs}
    arrays, offset = {}, json_bytes or 0
    for output in document["outputs"]:
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            array = np.asarray(output["data"], np.float32)
        else:
            array = np.frombuffer(content, np.float32, size // 4, offset)
            offset += size
        arrays[output["name"]] = array.reshape(output["shape"])
    return arrays


def max_difference(actual: Arrays, expected: Arrays) -> float:
    """The largest absolute difference.

    Raises:
        ValueError: an output is missing or has the wrong size.
    """
    for name, array in expected.items():
        if name not in actual or actual[name].size != array.size:
            raise ValueError(f"{name}: expected {array.shape}, got {actual[name].shape if name in actual else 'none'}")
    return max(float(np.abs(actual[name].reshape(array.shape) - array).max()) for name, array in expected.items())


def dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
