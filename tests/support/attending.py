"""Calls of a block over HTTP, and the float64 truth beside them."""

import base64
from functools import partial
from typing import Any

import httpx
import numpy as np
import orjson

from export.verification.budget import DRAWS, MORE_DRAWS, error_budget, largest_error
from models.catalogue import BLOCKS

MODULES = {name: block.build() for name, block in BLOCKS.items()}


def post(client: httpx.Client, block: str, body: dict[str, Any] | bytes, **headers: str) -> httpx.Response:
    """POST a body, arrays included, to a block."""
    content = body if isinstance(body, bytes) else orjson.dumps(body, _written, orjson.OPT_SERIALIZE_NUMPY)
    return client.post(
        f"/v1/attention/{block}", content=content, headers={"Content-Type": "application/json", **headers}
    )


def attend(client: httpx.Client, block: str = "scaled_dot_product", **body: Any) -> dict[str, np.ndarray]:
    """The outputs of a call that must succeed, as float32; JSON's null becomes -inf."""
    response = post(client, block, body)
    assert response.status_code == 200, response.text
    found = response.json()
    assert found.pop("block") == block
    return {name: array(value) for name, value in found.items()}


def coded(array: np.ndarray, **change: Any) -> dict[str, Any]:
    """An array in the API's base64 form, with a field changed on request."""
    text = base64.b64encode(array.tobytes()).decode()
    return {"shape": array.shape, "dtype": str(array.dtype), "base64": text, **change}


def _written(value: Any) -> Any:
    return value.tolist()  # arrays without axes, which orjson does not write


def array(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: np.asarray(part) for name, part in value.items()}
    floats = np.asarray(value, np.float64)
    return np.where(np.isnan(floats), -np.inf, floats).astype(np.float32)


def refer(block: str, inputs: dict[str, np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
    """The reference's outputs; inputs at the rank of the graph."""
    return BLOCKS[block].reference(MODULES[block], inputs, dtype)


def truth(block: str, inputs: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The float64 reference's outputs and the error allowed for each."""
    return refer(block, inputs, np.float64), error_budget(partial(refer, block), inputs)


def assert_close(block: str, found: dict[str, np.ndarray], inputs: dict[str, np.ndarray]) -> None:
    """Every output ``found``, whatever its rank, is the reference's within the budget.

    A budget only grows with its draws: what is within that of one draw is within that of many, which take longer.
    """
    exact = refer(block, inputs, np.float64)
    errors = {name: largest_error(got.reshape(exact[name].shape), exact[name]) for name, got in found.items()}
    for draws in (1, DRAWS, MORE_DRAWS):
        budget = error_budget(partial(refer, block), inputs, draws)
        if all(error <= budget[name] for name, error in errors.items()):
            break
    for name, error in errors.items():
        assert error <= budget[name], f"{name}: error {error:.3g}, allowed {budget[name]:.3g}"
