"""The stages of decoding and encoding: each runs where it keeps other requests waiting least."""

import math
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, TypeVar

from service.base.cost import CostModel
from service.base.steps import Steps, drain
from service.engine.offload import Check, Offload, no_check

T = TypeVar("T")


@dataclass(slots=True)
class Stage:
    """Part of decoding or encoding, whose time ``cost`` predicts by its ``size``.

    A generator of steps is run on the event loop, between others; a function in a thread, unless it is short.
    """

    cost: CostModel
    size: int
    work: Steps[Any] | Callable[[], Any]


Stages = Generator[Stage, Any, T]  # each yield is sent the result of its stage


async def run_stages(stages: Stages[T], offload: Offload, check: Check = no_check) -> T:
    """The result of ``stages``: short work on the event loop, steps between other requests, the rest in threads.

    An error of ``check``, which is called before each stage and between steps, ends them.
    """
    result = None
    with closing(stages):
        while True:
            try:
                stage = stages.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            check()
            if isinstance(stage.work, GeneratorType):
                result = await offload.run_cooperatively(stage.cost, stage.size, stage.work, check)
            else:
                result = await offload.inline_or_offload(stage.cost, stage.size, stage.work, check)  # type: ignore[arg-type]


def run_inline(stages: Stages[T], limit_ns: float) -> tuple[T | None, float]:
    """The result of ``stages``, run here and now, and the time they were expected to take, in nanoseconds.

    The result is None where that exceeds ``limit_ns``.
    """
    result, expected_ns, start = None, 0.0, time.perf_counter_ns()
    while True:
        try:
            stage = stages.send(result)
        except StopIteration as end:
            return end.value, expected_ns
        if limit_ns < math.inf:
            expected_ns += stage.cost.expected(stage.size)
            if expected_ns > limit_ns:
                stages.close()
                return None, expected_ns
        work = stage.work
        try:
            result = drain(work) if isinstance(work, GeneratorType) else work()  # type: ignore[operator]
        except Exception:
            stage.cost.learn_failure(stage.size, time.perf_counter_ns() - start)
            raise
