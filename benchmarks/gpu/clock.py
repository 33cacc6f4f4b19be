"""The time of a call: on the device, by profiler, and for the caller, by the wall clock."""

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], Any]
Span = tuple[float, float]


def wait() -> None:
    """Wait until the device has finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def wall_ms(call: Call, calls: int) -> float:
    """The time of one call until the device has finished, with the host's work; the mean of ``calls``."""
    start = perf_counter()
    for _ in range(calls):
        call()
        wait()
    return 1e3 * (perf_counter() - start) / calls


def device_ms(call: Call, calls: int) -> tuple[float, list[str]]:
    """The time for which one call keeps the device busy, and the names of its kernels, longest first.

    CUPTI sees the kernels of all libraries in this process, so torch and ONNX Runtime are measured by the same clock.

    Raises:
        RuntimeError: the profiler recorded no event of the device.
    """
    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        wait()
    events = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    if not events:
        raise RuntimeError("the profiler recorded nothing on the device")
    times_us: dict[str, float] = {}
    for event in events:
        times_us[event.name] = times_us.get(event.name, 0.0) + event.time_range.elapsed_us()
    names = sorted(times_us, key=times_us.__getitem__, reverse=True)
    return busy((event.time_range.start, event.time_range.end) for event in events) / 1e3 / calls, names


def busy(spans: Iterable[Span]) -> float:
    """The length of the union of the spans."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def calls_in(seconds: float, call: Call, limit: int = 50) -> int:
    """The number of calls that take about ``seconds``, from 3 to ``limit``."""
    return max(3, min(limit, int(seconds * 1e3 / max(wall_ms(call, 1), 1e-3))))
