"""Which ONNX Runtime provider runs the models: asked for, tried, and read back from the session; never assumed."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import onnxruntime

from service import cuda
from service.device import Device
from service.errors import DeviceLost, HeedError, OutOfMemory
from service.failure import Kind, brief, kind
from service.host_memory import pinned
from service.placement import CPU, CUDA, RECORDED

log = logging.getLogger("heed")

DOUBLING = 0  # how the arena grows; as much as is asked for, 1, is no quicker and saves little
WARNING, FATAL = 2, 4  # of ONNX Runtime's log


class ProviderUnavailable(RuntimeError):
    """``cuda`` was asked for and cannot be had; the message says why."""


@dataclass(eq=False)
class Provider:
    """The provider in use, why it is this one, and whether it still works."""

    name: Literal["cuda", "cpu"]
    reason: str
    device: int = 0  # which GPU
    memory: int = 0  # bytes of it that this process may fill; 0 = all
    room: int = 0  # bytes of it that there are for this process, or were at the start; 0 = it is no GPU
    graphs: bool = False  # CUDA graphs are captured
    runs: Device | None = None  # how runs of blocks reach it, where session.run is not the way
    prove: Callable[[], None] | None = None  # raises where nothing can be run any more
    lost: str = ""  # why that is so
    when_lost: Callable[[], None] = lambda: None

    def meaning(self, error: Exception) -> HeedError | None:
        """What an error of ONNX Runtime is to a client; None where it is no matter of memory or of the device.

        After one that may be the device's end, what was tried at the start is tried again: a run that asked too much
        of CUDA harms itself alone, and must not end the service.
        """
        words = str(error)
        of = kind(words)
        if of is Kind.MEMORY:
            log.warning("out of memory: %s", brief(words))
            return OutOfMemory("the device has too little memory left for this run; a smaller one, or later, may fit")
        if of is Kind.DEVICE:
            log.error("%s", brief(words))
        if of is Kind.DEVICE and not self.lost and self.prove:
            try:
                self.prove()
            except Exception as again:
                log.debug("tried again after a failure", exc_info=True)
                self.lost = f"{brief(words)}; then: {brief(str(again))}"
                log.critical("provider %s is lost: %s", self.name, self.lost)
                self.when_lost()
        return DeviceLost("the device that models run on is lost") if self.lost else None


def choose(wanted: Literal["auto", "cuda", "cpu"], device: int = 0, memory: int = 0, graphs: bool = False) -> Provider:
    """Settle on a provider; CUDA is tried on GPU ``device``, of which ``memory`` bytes may be filled (0 = all).

    Raises:
        ProviderUnavailable: ``cuda`` was asked for and does not work.
    """
    if wanted == "cpu":
        return Provider("cpu", "asked for")
    on_cuda = Provider("cuda", "asked for" if wanted == "cuda" else "CUDA works", device, memory, graphs)
    trouble = _trouble(on_cuda)
    if trouble is None:
        on_cuda.runs = Device(pinned(device), graphs)
        return on_cuda
    if wanted == "cuda":
        raise ProviderUnavailable(f"provider cuda: {trouble}")
    return Provider("cpu", trouble)


def open_session(
    model: Path | bytes, provider: Provider, threads: int, prepack: bool = True, captures: bool = False
) -> onnxruntime.InferenceSession:
    """A session of ``model`` on ``provider``, with ``threads`` threads a run.

    With ``prepack`` it holds a copy of its matrices, laid out for its kernels: quicker the fewer rows a request has.
    One that ``captures`` CUDA graphs has memory of its own: what is captured goes on using the same addresses.

    Raises:
        ProviderUnavailable: CUDA was chosen and this session fell back.
        Exception: ONNX Runtime's own, for a file it cannot load.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # below errors it reports every optional input of every model
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # spinning threads starve the event loop
    options.add_session_config_entry(RECORDED, "1")
    if not captures:
        _open_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    providers: list[Any] = [CPU]
    if provider.name == "cuda":
        asked = _cuda_options(provider) | ({"enable_cuda_graph": "1"} if captures else {})
        providers = [(CUDA, asked), CPU]
        if not captures:
            _open_device_arena(provider.device, provider.memory)
    # Where CUDA fails, ONNX Runtime would go on with the CPU, at the start or in the midst of serving.
    session = onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)
    if provider.name == "cuda" and CUDA not in session.get_providers():
        raise ProviderUnavailable(f"provider cuda: fell back to {session.get_providers()}")
    return session


def giving_back() -> onnxruntime.RunOptions:
    """Options of a run on the CPU that gives the system, at its end, all of the arena that nobody uses."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


@cache
def _open_arena() -> None:
    """One arena for all sessions of this process: it keeps what the largest runs at one time needed, not each session's
    own largest."""
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg({"arena_extend_strategy": DOUBLING}))


@cache
def _open_device_arena(device: int, most: int) -> None:
    """The same on a GPU. ``gpu_mem_limit`` would bound each session alone; this bounds all of them together."""
    memory = onnxruntime.OrtMemoryInfo(
        "Cuda", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, device, onnxruntime.OrtMemType.DEFAULT
    )
    arena = onnxruntime.OrtArenaCfg({"arena_extend_strategy": DOUBLING} | ({"max_mem": most} if most else {}))
    onnxruntime.create_and_register_allocator_v2(CUDA, memory, {"device_id": str(device)}, arena)


def _cuda_options(provider: Provider) -> dict[str, str]:
    """float32 stays float32: tensor cores would round what is multiplied to ten bits (TF32)."""
    options = {"device_id": str(provider.device), "use_tf32": "0"}
    return options | ({"gpu_mem_limit": str(provider.memory)} if provider.memory else {})


def _trouble(provider: Provider) -> str | None:
    """Why CUDA cannot be used; None when it can, and then ``provider`` can tell whether it still does."""
    if CUDA not in onnxruntime.get_available_providers():
        return "this ONNX Runtime is built without CUDA (install heed-attention[gpu])"
    cuda.load_libraries()
    onnxruntime.set_default_logger_severity(FATAL)  # what it has to say is told below
    try:
        provider.prove = partial(cuda.prove, open_session(cuda.PROBE, provider, 1))
        provider.prove()
        provider.room = provider.memory or cuda.free_memory(provider.device)
    except Exception as error:
        log.debug("CUDA was tried and failed", exc_info=True)
        said = cuda.missing_library() or brief(str(error))
        return f"CUDA was tried and failed: {said}"
    finally:
        onnxruntime.set_default_logger_severity(WARNING)
    return None
