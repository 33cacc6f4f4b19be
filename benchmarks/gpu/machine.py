"""The machine and its GPU: names, versions, used memory."""

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

from benchmarks.report import hardware


def describe(provider: str) -> dict[str, Any]:
    """A description of the machine, with the GPU if the provider is cuda."""
    gpu = {}
    if provider == "cuda":
        name, driver, memory = query("name,driver_version,memory.total").split(", ")
        gpu = {"gpu": name, "driver": driver, "gpu_memory": memory}
    return gpu | hardware.describe()


def slug() -> str:
    """The GPU in a file name, such as nvidia-h200."""
    return re.sub(r"[^a-z0-9]+", "-", query("name").lower()).strip("-")


def versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": torch.__version__, "onnxruntime": onnxruntime.__version__}
    if torch.version.cuda:
        versions |= {"torch's CUDA": torch.version.cuda, "torch's cuDNN": str(torch.backends.cudnn.version())}
    return versions | {"numpy": np.__version__}


def torch_sees_a_gpu() -> bool:
    return torch.cuda.is_available()


def query(fields: str) -> str:
    """The values of ``fields`` that nvidia-smi prints for the first GPU.

    Raises:
        RuntimeError: nvidia-smi is not installed or finds no GPU.
    """
    if shutil.which("nvidia-smi") is None:
        raise RuntimeError("no GPU: nvidia-smi is not installed")
    command = ["nvidia-smi", "--id=0", f"--query-gpu={fields}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"no GPU: nvidia-smi says {(done.stdout + done.stderr).strip()[:300]}")
    return done.stdout.strip()


def with_libraries(path: str) -> str:
    """``path`` (LD_LIBRARY_PATH) and the CUDA libraries of torch's wheels, as servers do not import torch."""
    folders = sorted(map(str, Path(torch.__file__).parents[1].glob("nvidia/*/lib")))
    return os.pathsep.join(filter(None, [path, *folders]))


def memory_mib() -> int:
    """The used memory of the first GPU, by all processes."""
    return int(query("memory.used").split()[0])
