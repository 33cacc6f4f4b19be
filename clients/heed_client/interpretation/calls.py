"""The calls of ``Client.sweep`` and ``Client.lens``."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from heed_client import native
from heed_client.answer import Tokens
from heed_client.arrays import array
from heed_client.calls import Call, Calls, parse
from heed_client.interpretation.answers import Lens, Sweep

T = TypeVar("T")
TOKEN_FIELDS = (
    "tokens", "offsets", "truncated", "input_ids", "attention_mask", "target_tokens", "target_offsets",
    "target_truncated", "decoder_input_ids", "decoder_attention_mask",
)  # fmt: skip


def sweep(calls: Calls, model: str, inputs: Mapping[str, Any], fields: Mapping[str, Any]) -> Call[Sweep]:
    """``inputs`` are the tensors of the run, ``fields`` the others of the request."""
    return _call(calls, "sweep", model, inputs, fields, _sweep)


def lens(calls: Calls, model: str, inputs: Mapping[str, Any], fields: Mapping[str, Any]) -> Call[Lens]:
    """``inputs`` are the tensors of the run, ``fields`` the others of the request."""
    return _call(calls, "lens", model, inputs, fields, _lens)


def _call(
    calls: Calls,
    path: str,
    model: str,
    inputs: Mapping[str, Any],
    fields: Mapping[str, Any],
    read: Callable[[dict[str, Any]], T],
) -> Call[T]:
    arrays = {name: array(name, tensor) for name, tensor in inputs.items() if tensor is not None}
    options = {name: native.nested(value) for name, value in fields.items() if value is not None}
    headers = {"Content-Type": "application/json"}
    url = f"/v1/{path}/{quote(model, safe='')}"
    response = yield from calls.send("POST", url, native.encode(arrays, options), headers)
    return parse(response, lambda: read(response.json()))


def _sweep(answer: dict[str, Any]) -> Sweep:
    axes = tuple(answer["axes"])
    return Sweep(
        answer["model"],
        axes,
        {axis: answer[axis] for axis in axes},
        answer["metric"],
        answer["unchanged"],
        np.array(answer["values"], np.float64),
        answer.get("source"),
        _tokens(answer),
    )


def _lens(answer: dict[str, Any]) -> Lens:
    found = answer["lens"]
    of_output = found.get("output_probabilities")
    return Lens(
        answer["model"],
        answer["layers"],
        answer["positions"],
        np.array(found["indices"], np.int64),
        np.array(found["probabilities"], np.float64),
        np.array([[rank or 0 for rank in ranks] for ranks in answer["ranks"]], np.int64),
        found.get("tokens"),
        _tokens(answer),
        None if of_output is None else np.array(of_output, np.float64),
    )


def _tokens(answer: dict[str, Any]) -> Tokens | None:
    """The tokens of the text; None for a run without a text."""
    fields = {name: answer[name] for name in TOKEN_FIELDS if name in answer}
    return Tokens(answer["model"], fields) if fields else None
