"""Requests decoded and answered by the endpoints, without a server."""

from collections import Counter
from types import GeneratorType

import numpy as np

from service.base.budget import MemoryBudget, Reservation
from service.base.errors import Overloaded
from service.base.steps import drain as drain_steps
from service.base.timing import Timing
from service.http.direct import RequestContext
from service.inference.endpoint import InferenceEndpoint
from service.inference.source import InputSource
from service.model.model import Model
from service.native.endpoint import AttentionEndpoint
from service.settings import Settings
from service.v2.infer.endpoint import InferEndpoint

MAX_BYTES = 1 << 40


def endpoint(kind: type[InferenceEndpoint]) -> InferenceEndpoint:
    """One that only decodes and encodes."""
    return kind(None, Settings(max_memory_bytes=MAX_BYTES), None, InputSource())


def context() -> RequestContext:
    return RequestContext({}, Timing(), Reservation(MemoryBudget(MAX_BYTES, Overloaded, Counter())))


def drain(stages, costs=None):
    """The result of all stages, one after another; their cost models are added to the list ``costs``."""
    result = None
    while True:
        try:
            stage = stages.send(result)
        except StopIteration as end:
            return end.value
        if costs is not None:
            costs.append(stage.cost)
        result = drain_steps(stage.work) if isinstance(stage.work, GeneratorType) else stage.work()


def decode_native(body: bytes, model: Model) -> dict[str, np.ndarray]:
    """The inputs of a request."""
    return drain(endpoint(AttentionEndpoint).decode(model, (body, b""), context())).task.inputs


def decode_v2(body: bytes, attached: bytes, model: Model) -> dict[str, np.ndarray]:
    """The inputs of a request."""
    return drain(endpoint(InferEndpoint).decode(model, (body, attached), context())).task.inputs
