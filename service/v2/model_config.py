"""A model's configuration in the form of Triton's ``ModelConfig``, and the changes to it that a load may ask for."""

from dataclasses import replace
from typing import Any

import orjson
from pydantic import ValidationError

from service.base.errors import Malformed
from service.model.model import Model
from service.model.spec import CANONICAL
from service.repository.options import ServingOptions
from service.repository.versions import VersionPolicy
from service.tensors.dims import Dim
from service.tensors.spec import TensorSpec
from service.v2.datatypes import NAMES
from service.v2.schemas import ConfigOverride
from service.v2.signature import wire_shape

PLATFORM, BACKEND = "onnxruntime_onnx", "onnxruntime"
FIXED = ("name", "platform", "backend")


def listed_inputs(model: Model) -> list[TensorSpec]:
    """The inputs in metadata and configuration: the required ones.

    perf_analyzer sends every listed input. Triton does not list initializers that may be overridden either, which is
    what optional inputs are in ONNX.
    """
    return [tensor for tensor in model.inputs.values() if tensor.required]


def describe(model: Model, options: ServingOptions) -> dict[str, Any]:
    """The configuration of a loaded model."""
    cuda = any("CUDA" in provider for provider in model.providers)
    all_outputs = [model.outputs[name] for name in model.all_outputs]
    queue = {"dynamic_batching": {"default_queue_policy": {"allow_timeout_override": True}}}
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": BACKEND,
        "version_policy": options.policy.described(),
        "max_batch_size": model.max_batch_size,
        "input": [_tensor(tensor, model) | {"optional": False} for tensor in listed_inputs(model)],
        "output": [_tensor(tensor, model) | {"label_filename": ""} for tensor in all_outputs],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [{"name": model.name, "kind": "KIND_GPU" if cuda else "KIND_CPU", "count": 1}],
        "default_model_filename": CANONICAL,
        "parameters": _parameters(model),
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": False},
        **(queue if options.allow_timeout_override else {}),
    }


def override(text: Any, current: dict[str, Any], options: ServingOptions) -> ServingOptions:
    """``options`` as changed by ``text``, the ``config`` of a load. ``current`` is the model's configuration so far.

    Raises:
        Malformed: it is not a configuration, or it contradicts the model file.
    """
    try:
        changes = ConfigOverride.model_validate_json(text if isinstance(text, str) else orjson.dumps(text))
    except ValidationError as error:
        raise Malformed(f"config: {first_problem(error, 'the text')}") from None
    for name, value in (changes.model_extra or {}).items():
        if value != current.get(name, value):
            raise Malformed(f"config: '{name}' is set by the model file, to {current[name]!r}")
        if name not in FIXED and name not in current:
            raise Malformed(f"config: '{name}' cannot be set here")
    policy = options.policy
    if changes.version_policy:
        chosen = changes.version_policy
        policy = VersionPolicy(
            latest=max(1, chosen.latest.get("num_versions", 1)) if chosen.latest is not None else None,
            specific=tuple(chosen.specific.get("versions", ())) if chosen.specific is not None else None,
        )
    if changes.max_batch_size is not None:
        options = replace(options, max_batch_size=changes.max_batch_size, must_batch=changes.max_batch_size > 0)
    timeouts = changes.dynamic_batching.default_queue_policy.allow_timeout_override
    timeouts = options.allow_timeout_override if timeouts is None else timeouts
    return replace(options, policy=policy, allow_timeout_override=timeouts)


def first_problem(error: ValidationError, whole: str) -> str:
    """The path of pydantic's first error, the ``whole`` if it has none, and its message."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, problem['loc'])) or whole}: {problem['msg']}"


def _tensor(tensor: TensorSpec, model: Model) -> dict[str, Any]:
    dims, datatype = wire_shape(tensor), NAMES[tensor.dtype]
    return {
        "name": tensor.name,
        "data_type": f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}",
        "dims": dims[1:] if model.max_batch_size and dims else dims,
        "is_shape_tensor": False,
    }


def _parameters(model: Model) -> dict[str, Any]:
    spec = model.spec
    values: dict[str, Dim | float | None] = {
        name: spec.inputs[name].default if spec else None
        for name, tensor in model.parameters.items()
        if not tensor.required
    }
    return {
        name: {"string_value": "" if value is None else orjson.dumps(value).decode()} for name, value in values.items()
    }
