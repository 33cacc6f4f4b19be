"""The time of a call: on the device, by the profiler, or on a CPU by the wall clock."""

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

REPEATS = 5
TURN_S = 0.03
Call = Callable[[], Any]


def times_ms(first: Call, second: Call, provider: str) -> tuple[list[float], list[float]]:
    """Times of two calls in alternating turns, each of several calls in a row."""
    clock = device_ms if provider == "cuda" else wall_ms
    calls = [(call, max(3, min(50, int(1e3 * TURN_S / wall_ms(call, 2))))) for call in (first, second)]
    turns = [[round(clock(*call), 5) for call in calls] for _ in range(REPEATS)]
    return [ours for ours, _ in turns], [theirs for _, theirs in turns]


def wall_ms(call: Call, count: int) -> float:
    """The time of one call until the device has finished; the mean of ``count``."""
    wait()
    start = perf_counter()
    for _ in range(count):
        call()
        wait()
    return 1e3 * (perf_counter() - start) / count


def device_ms(call: Call, count: int) -> float:
    """The time for which one call keeps the device busy; the mean of ``count``.

    CUPTI sees the kernels of all libraries in this process, so torch and ONNX Runtime are measured by the same clock.

    Raises:
        RuntimeError: the profiler recorded no event of the device.
    """
    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(count):
            call()
        wait()
    spans = [event.time_range for event in profiler.events() if event.device_type == DeviceType.CUDA]
    if not spans:
        raise RuntimeError("the profiler recorded nothing on the device")
    return busy((span.start, span.end) for span in spans) / 1e3 / count


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of the spans."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def wait() -> None:
    """Wait until the device has finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
