"""Request bodies and their answers in four dialects: V2 JSON, V2 binary, native, and plain JSON (other servers')."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from benchmarks.serving.workloads import Arrays, Workload

DIALECTS = ("v2-json", "v2-binary", "native", "plain")
JSON = {"Content-Type": "application/json"}
ID = "00000000"  # what the load generator replaces, at the same length


@dataclass(frozen=True)
class Bodies:
    """``texts`` are sent in turn, all with the same headers."""

    texts: list[bytes]
    headers: dict[str, str]


def bodies(workload: Workload, model: str, dialect: str, with_id: bool = False) -> Bodies:
    """Every request of ``workload`` to ``model``, asking for all its outputs.

    JSON has the shortest digits that give the same float32 back. The JSON headers of binary bodies are padded with
    spaces to one length, so that one Inference-Header-Content-Length holds for all.
    """
    each = [workload.as_model(model, tensors) for tensors in workload.tensors]
    if dialect == "plain":
        return Bodies([dumps(tensors) for tensors in each], JSON)
    if dialect == "native":
        return Bodies([dumps({**tensors, "outputs": workload.outputs}) for tensors in each], JSON)
    start = {"id": ID} if with_id else {}
    binary = dialect == "v2-binary"
    heads = [dumps(start | _v2(tensors, workload.outputs, binary)) for tensors in each]
    if not binary:
        return Bodies(heads, JSON)
    size = max(map(len, heads))
    joined = [
        head.ljust(size) + b"".join(array.tobytes() for array in tensors.values())
        for head, tensors in zip(heads, each, strict=True)
    ]
    return Bodies(joined, {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(size)})


def _v2(tensors: Arrays, outputs: tuple[str, ...], binary: bool) -> dict[str, Any]:
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": "FP32"}
        | ({"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.ravel()})
        for name, array in tensors.items()
    ]
    wanted = [{"name": name} | ({"parameters": {"binary_data": True}} if binary else {}) for name in outputs]
    return {"inputs": inputs, "outputs": wanted}


def answer(tensors: Arrays, model: str, binary: bool) -> tuple[bytes, int]:
    """A V2 answer of these outputs, and how long its JSON is."""
    outputs = [
        {"name": name, "shape": list(array.shape), "datatype": "FP32"}
        | ({"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.ravel()})
        for name, array in tensors.items()
    ]
    head = dumps({"model_name": model, "outputs": outputs})
    return head + b"".join(array.tobytes() for array in tensors.values() if binary), len(head)


def understand(content: bytes, json_length: int | None, outputs: tuple[str, ...]) -> Arrays:
    """The outputs in an answer of any dialect; ``json_length`` is its Inference-Header-Content-Length."""
    found = json.loads(content[:json_length])
    if "outputs" not in found:
        return {name: np.asarray(found[name], np.float32) for name in outputs}
    arrays, at = {}, json_length or 0
    for output in found["outputs"]:
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            array = np.asarray(output["data"], np.float32)
        else:
            array = np.frombuffer(content, np.float32, size // 4, at)
            at += size
        arrays[output["name"]] = array.reshape(output["shape"])
    return arrays


def worst(got: Arrays, right: Arrays) -> float:
    """Largest absolute difference.

    Raises:
        ValueError: an output is missing, or has another number of numbers.
    """
    for name, array in right.items():
        if name not in got or got[name].size != array.size:
            raise ValueError(f"{name}: expected {array.shape}, got {got[name].shape if name in got else 'none'}")
    return max(float(np.abs(got[name].reshape(array.shape) - array).max()) for name, array in right.items())


def dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
