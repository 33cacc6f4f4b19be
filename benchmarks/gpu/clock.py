"""How long a call takes: on the device alone, by what it did there; and to whoever waits for it."""

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], Any]
Span = tuple[float, float]


def wait() -> None:
    """Until the device has done all it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def wall_ms(call: Call, calls: int) -> float:
    """Of one call until it is done, the host's work in it; the mean of ``calls``."""
    start = perf_counter()
    for _ in range(calls):
        call()
        wait()
    return 1e3 * (perf_counter() - start) / calls


def device_ms(call: Call, calls: int) -> tuple[float, list[str]]:
    """How long the device is at work for one call, its idle moments not counted; and its kernels, longest first.

    CUPTI sees what every library of this process runs there, so that torch and ONNX Runtime have one clock.

    Raises:
        RuntimeError: the device did nothing that was seen.
    """
    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            call()
        wait()
    events = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
    if not events:
        raise RuntimeError("the profiler saw nothing on the device")
    took: dict[str, float] = {}
    for event in events:
        took[event.name] = took.get(event.name, 0.0) + event.time_range.elapsed_us()
    names = sorted(took, key=took.__getitem__, reverse=True)
    return busy((event.time_range.start, event.time_range.end) for event in events) / 1e3 / calls, names


def busy(spans: Iterable[Span]) -> float:
    """The length of the spans' union."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def calls_in(seconds: float, call: Call, most: int = 50) -> int:
    """How many calls take about so long; at least 3."""
    return max(3, min(most, int(seconds * 1e3 / max(wall_ms(call, 1), 1e-3))))
