"""A model's configuration, as Triton's ``ModelConfig`` writes it, and what a load may change of it."""

from dataclasses import replace
from typing import Any

import orjson
from pydantic import ValidationError

from service.errors import Malformed
from service.model import CANONICAL, Model, Tensor
from service.shape import Dim
from service.signature import free
from service.terms import Terms
from service.v2.datatype import datatype
from service.v2.wire import ConfigOverride
from service.version_policy import VersionPolicy

PLATFORM, BACKEND = "onnxruntime_onnx", "onnxruntime"
FIXED = ("name", "platform", "backend")


def inputs(model: Model) -> list[Tensor]:
    """The inputs that are listed: those a request needs. perf_analyzer sends all that are listed, and Triton, too,
    lists no initializer that may be overridden, which is what an optional input is in ONNX."""
    return [of for of in model.inputs.values() if of.required]


def config(model: Model, terms: Terms) -> dict[str, Any]:
    """The configuration of a model that is loaded."""
    cuda = any("CUDA" in provider for provider in model.providers)
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": BACKEND,
        "version_policy": terms.policy.described(),
        "max_batch_size": model.max_batch_size,
        "input": [_tensor(of, model) | {"optional": False} for of in inputs(model)],
        "output": [_tensor(of, model) | {"label_filename": ""} for of in model.outputs.values()],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [{"name": model.name, "kind": "KIND_GPU" if cuda else "KIND_CPU", "count": 1}],
        "default_model_filename": CANONICAL,
        "parameters": _parameters(model),
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": False},
    }


def override(text: Any, model: dict[str, Any], terms: Terms) -> Terms:
    """The terms that the ``config`` of a load asks for; ``model`` is the configuration it has now, if it has one.

    Raises:
        Malformed: no configuration, or one that says otherwise what only the model file says.
    """
    try:
        said = ConfigOverride.model_validate_json(text if isinstance(text, str) else orjson.dumps(text))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise Malformed(f"failed to load: config: {where or 'the text'}: {problem['msg']}") from None
    for name, value in (said.model_extra or {}).items():
        if value != model.get(name, value):
            raise Malformed(f"failed to load: config: '{name}' is the model file's to say, and it says {model[name]!r}")
        if name not in FIXED and name not in model:
            raise Malformed(f"failed to load: config: '{name}' cannot be set here")
    policy = terms.policy
    if said.version_policy:
        chosen = said.version_policy
        policy = VersionPolicy(
            latest=max(1, chosen.latest.get("num_versions", 1)) if chosen.latest is not None else None,
            specific=tuple(chosen.specific.get("versions", ())) if chosen.specific is not None else None,
        )
    rows = terms.max_batch_size if said.max_batch_size is None else said.max_batch_size
    return replace(terms, policy=policy, max_batch_size=rows)


def _tensor(of: Tensor, model: Model) -> dict[str, Any]:
    dims = free(of)
    return {
        "name": of.name,
        "data_type": datatype(of.dtype).config,
        "dims": dims[1:] if model.max_batch_size and dims else dims,
        "is_shape_tensor": False,
    }


def _parameters(model: Model) -> dict[str, Any]:
    card = model.card
    values: dict[str, Dim | float | None] = {
        name: card.inputs[name].default if card else None for name, of in model.parameters.items() if not of.required
    }
    return {
        name: {"string_value": "" if value is None else orjson.dumps(value).decode()} for name, value in values.items()
    }
