"""Which ONNX Runtime provider runs the models: asked for, tried, and read back from the session; never assumed."""

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import onnxruntime

log = logging.getLogger("heed")

DOUBLING = 0  # how the arena grows; as much as is asked for, 1, is no quicker and saves little
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


class ProviderUnavailable(RuntimeError):
    """``cuda`` was asked for and cannot be had; the message says why."""


@dataclass(frozen=True)
class Provider:
    """The provider in use, and why it is this one."""

    name: Literal["cuda", "cpu"]
    reason: str


def choose(wanted: Literal["auto", "cuda", "cpu"], probe: Path | None) -> Provider:
    """Settle on a provider; ``probe`` is a model to try CUDA with.

    Raises:
        ProviderUnavailable: ``cuda`` was asked for and does not work.
    """
    if wanted == "cpu":
        return Provider("cpu", "asked for")
    trouble = _cuda_trouble(probe)
    if trouble is None:
        return Provider("cuda", "asked for" if wanted == "cuda" else "CUDA works")
    if wanted == "cuda":
        raise ProviderUnavailable(f"provider cuda: {trouble}")
    return Provider("cpu", trouble)


def open_session(model: Path, provider: Provider, threads: int, prepack: bool = True) -> onnxruntime.InferenceSession:
    """A session of ``model`` on ``provider``, with ``threads`` threads a run.

    With ``prepack`` it holds a copy of its matrices, laid out for its kernels: quicker the fewer rows a request has.

    Raises:
        ProviderUnavailable: CUDA was chosen and this session fell back.
        Exception: ONNX Runtime's own, for a file it cannot load.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # below errors it reports every optional input of every model
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # spinning threads starve the event loop
    if provider.name == "cpu":
        _open_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    providers = [CUDA, CPU] if provider.name == "cuda" else [CPU]
    session = onnxruntime.InferenceSession(model, options, providers=providers)
    if provider.name == "cuda" and CUDA not in session.get_providers():
        raise ProviderUnavailable(f"provider cuda: {model} fell back to {session.get_providers()}")
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


def _cuda_trouble(probe: Path | None) -> str | None:
    """Why CUDA cannot be used; None when it can."""
    if CUDA not in onnxruntime.get_available_providers():
        return "this ONNX Runtime is built without CUDA (install heed-attention[gpu])"
    if probe is None:
        return "the model repository is empty, so CUDA could not be tried"
    onnxruntime.preload_dlls()
    try:
        open_session(probe, Provider("cuda", "tried"), 1)
    except Exception as error:
        log.debug("CUDA was tried and failed", exc_info=True)
        return f"CUDA was tried and failed: {error}"
    return None
