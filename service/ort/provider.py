"""The ONNX Runtime provider that runs the models: tried at the start, and read back from each session."""

import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime

from service.base.errors import DeviceLost, HeedError, NotEnoughMemory, OutOfMemory
from service.ort import cuda
from service.ort.failures import HOST_MEMORY, FailureKind, classify, short_message
from service.ort.pinned_memory import PinnedPool, pinned
from service.ort.placement import CPU, CUDA, RECORDED
from service.ort.weight_copies import WeightCopies, weight_bytes

log = logging.getLogger("heed")

VERSION: str = onnxruntime.__version__  # of ONNX Runtime

DOUBLING = 0  # how the arena grows; to grow as needed (1) is no faster and saves little memory
ERROR, FATAL = 3, 4  # levels of ONNX Runtime's log
# How long a thread of a run that has no work polls for more before it sleeps. Without polling Linux often wakes it on
# the CPU of the thread that has work for it, and both share that CPU; long polling starves the event loop.
SPIN_MICROSECONDS = "50"

_opening = threading.Lock()
_arenas: set[str] = set()  # that are registered


class ProviderUnavailable(RuntimeError):
    """The setting asks for ``cuda``, which does not work; the message says why."""


@dataclass(eq=False)
class Provider:
    """The provider in use, the reason for its choice, and whether it still works."""

    name: Literal["cuda", "cpu"]
    reason: str
    memory: int = 0  # upper limit in bytes on this process's part of the GPU's, the first visible; 0 = none
    available_bytes: int = 0  # that limit, or the memory that was free at the start; 0 = it is no GPU
    # Upper limit in bytes on the CPU memory of all runs together, and on that of copies of weights; 0 = none.
    host_memory: int = 0
    pinned: PinnedPool | None = None  # memory for the outputs of blocks, on a GPU
    health_check: Callable[[], None] | None = None  # raises where the device can run nothing any more
    lost_reason: str = ""  # why the device has failed; empty while it works
    on_lost: Callable[[], None] = lambda: None
    copies: WeightCopies = field(init=False)

    def __post_init__(self) -> None:
        self.copies = WeightCopies(self.host_memory)

    def translate(self, error: Exception) -> HeedError | None:
        """The client's error for an error of ONNX Runtime; None where neither memory nor the device is the cause.

        After an error of the device the health check runs again: one run that CUDA cannot do must not end the service.
        """
        text = str(error)
        failure = classify(text)
        if failure is FailureKind.MEMORY:
            log.warning("out of memory: %s", short_message(text))
            if self.name == "cpu" or HOST_MEMORY.search(text):
                return NotEnoughMemory()
            return OutOfMemory(
                "the device has too little free memory for this run; send a smaller one, or try again later"
            )
        if failure is FailureKind.DEVICE:
            log.error("%s", short_message(text))
        if failure is FailureKind.DEVICE and not self.lost_reason and self.health_check:
            try:
                self.health_check()
            except Exception as second:
                log.debug("the health check failed after an error of the device", exc_info=True)
                self.lost_reason = f"{short_message(text)}; then: {short_message(str(second))}"
                log.critical("provider %s is lost: %s", self.name, self.lost_reason)
                self.on_lost()
        return DeviceLost("the device that models run on is lost") if self.lost_reason else None


def choose(wanted: Literal["auto", "cuda", "cpu"], memory: int = 0, host_memory: int = 0) -> Provider:
    """Choose the provider that ``wanted`` names; ``auto`` is CUDA where it works, else the CPU.

    Args:
        memory: upper limit in bytes on what this process uses of the GPU; 0 = none.
        host_memory: upper limit in bytes on what all runs together use on the CPU, and on copies of weights; 0 = none.

    Raises:
        ProviderUnavailable: ``cuda`` is wanted and does not work.
    """
    if wanted == "cpu":
        return Provider("cpu", "requested", host_memory=host_memory)
    reason = "requested" if wanted == "cuda" else "CUDA works"
    on_cuda = Provider("cuda", reason, memory=memory, host_memory=host_memory)
    failure = _unavailable_reason(on_cuda)
    if failure is None:
        on_cuda.pinned = pinned()
        return on_cuda
    if wanted == "cuda":
        raise ProviderUnavailable(f"provider cuda: {failure}")
    return Provider("cpu", failure, host_memory=host_memory)


def open_session(
    model: Path | bytes, provider: Provider, threads: int, prepack: bool = True
) -> onnxruntime.InferenceSession:
    """A session of ``model`` on ``provider``, with ``threads`` threads for a run.

    With ``prepack`` it has a copy of its matrices in the layout of its kernels, if there is room for it: the fewer rows
    a request has, the more it gains. Without it, it maps weights that are in a file, and has no copy on the CPU:
    constant folding would copy each transposed matrix, as that of tied embeddings, which a product can read as it is.

    Raises:
        ProviderUnavailable: CUDA was chosen, and this session does not run on it.
        Exception: ONNX Runtime's own, for a file it cannot load.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = FATAL  # it writes to stderr itself; errors are raised, and Heed logs them
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_MICROSECONDS)
    options.add_session_config_entry(RECORDED, "1")
    size, can_map = weight_bytes(model)
    copied = size if provider.name == "cpu" else 0
    has_copy = prepack and provider.copies.reserve(copied)
    disabled = []
    if not has_copy:
        options.add_session_config_entry("session.disable_prepacking", "1")
        disabled = ["ConstantFolding"] if provider.name == "cpu" else []
    if prepack and not has_copy:
        log.info("%s: no room for a copy of its weights (%s); runs of few rows take longer", model, provider.copies)
    if can_map:  # else the arena would reserve memory for mapped weights, too
        options.enable_mem_pattern = False
    _open_arena("Cpu", 2 * provider.host_memory)
    if has_copy or can_map:  # weights that are neither counted nor mapped are not in the arena
        options.add_session_config_entry("session.use_env_allocators", "1")
    providers: list[Any] = [CPU]
    if provider.name == "cuda":
        # Without TF32 float32 is multiplied as float32; tensor cores would round factors to ten bits.
        on_cuda = {"device_id": "0", "use_tf32": "0"}
        providers = [(CUDA, on_cuda | ({"gpu_mem_limit": str(provider.memory)} if provider.memory else {})), CPU]
        _open_arena("Cuda", provider.memory)
    # With fallback, ONNX Runtime would go on with the CPU when CUDA fails, at the start or while serving.
    with ExitStack() as copy:
        if has_copy:
            copy.callback(provider.copies.release, copied)
        session = onnxruntime.InferenceSession(
            model, options, providers=providers, enable_fallback=0, disabled_optimizers=disabled
        )
        weakref.finalize(session, copy.pop_all().close)
    if provider.name == "cuda" and CUDA not in session.get_providers():
        raise ProviderUnavailable(f"provider cuda: fell back to {session.get_providers()}")
    return session


def shrink_arena(provider: Provider) -> None:
    """Free the memory on the CPU that earlier runs needed and that no run uses now.

    ONNX Runtime does it at the end of a run with this option: here the run of a graph of two operators.
    """
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    square = np.zeros((cuda.SIZE, cuda.SIZE), np.float32)
    _probe_on_cpu(provider.host_memory).run(None, {"a": square, "b": square}, options)


@cache
def _probe_on_cpu(host_memory: int) -> onnxruntime.InferenceSession:
    return open_session(cuda.PROBE, Provider("cpu", "requested", host_memory=host_memory), 1)


def _open_arena(name: Literal["Cpu", "Cuda"], limit: int) -> None:
    """Register one arena for all sessions of this process on a device, with the limit of the first session.

    It keeps what all runs at one time needed at most; arenas of sessions would keep the maximum of each, and their
    limits, such as ``gpu_mem_limit``, would hold for each. A run that needs more than ``limit`` bytes of it fails.
    """
    with _opening:
        if name in _arenas:
            return
        memory = onnxruntime.OrtMemoryInfo(
            name, onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
        )
        arena = onnxruntime.OrtArenaCfg({"arena_extend_strategy": DOUBLING} | ({"max_mem": limit} if limit else {}))
        provider, options = (CPU, {}) if name == "Cpu" else (CUDA, {"device_id": "0"})
        onnxruntime.create_and_register_allocator_v2(provider, memory, options, arena)
        _arenas.add(name)


def _unavailable_reason(provider: Provider) -> str | None:
    """Why CUDA cannot be used; None where it can, and then ``provider`` has its health check and its memory."""
    if CUDA not in onnxruntime.get_available_providers():
        return "this ONNX Runtime is built without CUDA (install heed-attention[gpu])"
    cuda.load_libraries()
    onnxruntime.set_default_logger_severity(FATAL)  # its errors are raised, too
    try:
        provider.health_check = partial(cuda.health_check, open_session(cuda.PROBE, provider, 1))
        provider.health_check()
        provider.available_bytes = provider.memory or cuda.free_memory()
    except Exception as error:
        log.debug("CUDA was tried and failed", exc_info=True)
        reason = cuda.missing_library() or short_message(str(error))
        return f"CUDA was tried and failed: {reason}"
    finally:
        onnxruntime.set_default_logger_severity(ERROR)  # it warns of each session that CUDA is no plugin of it
    return None
