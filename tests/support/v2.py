"""Infer calls without any client library, so that what goes over the wire is in sight."""

import json
from typing import Any

import httpx
import numpy as np

from heed_client.v2 import binary_request
from service.base.errors import codes

DTYPES = {"FP32": "f4", "FP64": "f8", "FP16": "f2", "INT32": "i4", "INT64": "i8", "BOOL": "?", "UINT8": "u1"}

NUMBERS = {  # two values of each datatype, most of them its ends
    "UINT8": [0, 255],
    "UINT16": [0, 65535],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [2**53 + 1, 2**64 - 1],
    "INT8": [-128, 127],
    "INT16": [-(2**15), 2**15 - 1],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1],
    "FP16": [0.5, -65504],
    "BF16": [0.5, -3],
    "FP32": [1, 0.1],
    "FP64": [0.1, 1e300],
    "BOOL": [True, False],
    "BYTES": ["[a", 'b"\\é'],
}


def tensor(name: str, array: Any, datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    """An input in JSON."""
    array = np.asarray(array, DTYPES.get(datatype))
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.reshape(-1).tolist(), **more}


ADD = {"inputs": [tensor(name, [[1, 2, 3]]) for name in ("x", "z")]}  # a good request to an adder


QKV = [tensor(name, np.ones((1, 1, 2, 2))) for name in ("query", "key", "value")]  # a good one to a block


def binary_input(name: str, shape: list[int], size: Any, datatype: str = "FP32") -> dict[str, Any]:
    """An input whose ``size`` bytes follow the JSON."""
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}


def one(**change: Any) -> dict[str, Any]:
    """A request to an identity model of INT64, changed."""
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "INT64", "data": [1, 2], **change}]}


def infer(client: httpx.Client, model: str, body: dict[str, Any] | bytes, version: int | None = None, **headers: str):
    """POST to infer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"
    return client.post(path, content=content, headers=headers)


def infer_bytes(client: httpx.Client, model: str, body: dict[str, Any], content: bytes, version: int | None = None):
    """POST to infer with the JSON of ``body`` and these bytes behind it."""
    head = json.dumps(body).encode()
    return infer(client, model, head + content, version, **{"Inference-Header-Content-Length": str(len(head))})


def packed(texts: list[str]) -> bytes:
    """Texts as BYTES in binary."""
    return b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)


def binary(client: httpx.Client, model: str, arrays: dict[str, np.ndarray], datatypes: dict[str, str], **fields: Any):
    """POST to infer with every tensor in binary, both ways."""
    headers, pieces = binary_request(arrays, datatypes=datatypes, **fields)
    return client.post(f"/v2/models/{model}/infer", content=b"".join(pieces), headers=headers)


def parts(response: httpx.Response) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The JSON of an answer, and the bytes of each output in it."""
    assert response.status_code == 200, response.text
    length = int(response.headers.get("inference-header-content-length", len(response.content)))
    answer, place, found = json.loads(response.content[:length]), length, {}
    for output in answer["outputs"]:
        if "parameters" in output:
            size = output["parameters"]["binary_data_size"]
            found[output["name"]] = response.content[place : place + size]
            place += size
    assert place == len(response.content)
    return answer, found


def error(response: httpx.Response, status: int, *said: str) -> None:
    """It is a V2 error that says this."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    assert response.headers["X-Error-Code"] in codes()
    for words in said:
        assert words in response.json()["error"]
