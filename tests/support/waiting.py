"""Waits for a state. A machine under load may stand still for seconds, so the limits are generous."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 60.0
POLL_S = 0.02


def until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """The first true value of ``condition()``; fails if there is none in time."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"the condition was not met within {timeout_s:g} s"
        time.sleep(POLL_S)
    return value


async def until_async(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """The same, for a condition that other tasks of this event loop bring about."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"the condition was not met within {timeout_s:g} s"
        await asyncio.sleep(0.001)
    return value
