"""Calls of ``/v1/memories``."""

from typing import Any

import httpx
import numpy as np
import orjson

from tests.support.attending import coded


def store(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """The description of a new memory; arrays are sent in base64."""
    response = send(client, "/v1/memories", **fields)
    assert response.status_code == 201, response.text
    return response.json()


def append(client: httpx.Client, id: str, **fields: Any) -> httpx.Response:
    return send(client, f"/v1/memories/{id}/append", **fields)


def lengths(client: httpx.Client, id: str) -> list[int]:
    return client.get(f"/v1/memories/{id}").json()["lengths"]


def send(client: httpx.Client, path: str, **fields: Any) -> httpx.Response:
    body = {name: coded(field) if isinstance(field, np.ndarray) else field for name, field in fields.items()}
    headers = fields.pop("headers", {})
    body.pop("headers", None)
    content = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    return client.post(path, content=content, headers={"Content-Type": "application/json", **headers})


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)
