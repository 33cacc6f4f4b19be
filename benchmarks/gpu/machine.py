"""The device, what drives it, and how much of its memory is taken."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from benchmarks.serving import hardware


def describe(provider: str) -> dict[str, Any]:
    """The machine, and the GPU where that is what is measured."""
    gpu = {}
    if provider == "cuda":
        name, driver, memory = asked("name,driver_version,memory.total").split(", ")
        gpu = {"gpu": name, "driver": driver, "gpu_memory": memory}
    return gpu | hardware.describe()


def slug() -> str:
    """nvidia-h200, say."""
    return re.sub(r"[^a-z0-9]+", "-", asked("name").lower()).strip("-")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "onnxruntime": onnxruntime.__version__}
    if torch.version.cuda:
        found |= {"torch's CUDA": torch.version.cuda, "torch's cuDNN": str(torch.backends.cudnn.version())}
    return found | {"numpy": np.__version__}


def torch_sees_a_gpu() -> bool:
    return torch.cuda.is_available()


def asked(what: str) -> str:
    """What nvidia-smi says of the first GPU.

    Raises:
        RuntimeError: it is not there, or finds none.
    """
    if shutil.which("nvidia-smi") is None:
        raise RuntimeError("no GPU: nvidia-smi is not installed")
    command = ["nvidia-smi", "--id=0", f"--query-gpu={what}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"no GPU: nvidia-smi says {(done.stdout + done.stderr).strip()[:300]}")
    return done.stdout.strip()


def with_libraries(path: str) -> str:
    """``path`` (LD_LIBRARY_PATH) and where torch's wheels have CUDA's libraries: servers do without torch itself."""
    beside = sorted(map(str, Path(torch.__file__).parents[1].glob("nvidia/*/lib")))
    return os.pathsep.join(filter(None, [path, *beside]))


def memory_mib() -> int:
    """What is taken of the first GPU's memory, by every process."""
    return int(asked("memory.used").split()[0])
