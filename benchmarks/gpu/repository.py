"""The measured models: exported where the repository lacks them, and opened as the service opens them."""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from benchmarks import ROOT
from export.verification.checks import CANONICAL
from models.precision import name_in
from service.model.graph import Graph
from service.model.loader import open_version
from service.model.model import Model
from service.ort.provider import choose


def export(options: Namespace, blocks: Iterable[str], dtype: str = "float32") -> Path:
    """Export the missing ``blocks``; return the repository of the dtype.

    Raises:
        RuntimeError: the export failed.
    """
    repository: Path = options.repository / dtype
    missing = [name for name in blocks if not (repository / name_in(name, dtype) / "1" / "model.onnx").exists()]
    if missing:
        command = [sys.executable, "-m", "export", *missing, "--repository", repository, "--dtype", dtype]
        command += ["--cuda"] if options.provider == "cuda" else []
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"heed export: {done.stderr.strip()[-400:]}")
    return repository


@cache
def open_model(repository: Path, name: str, provider: str) -> Model:
    """Version 1 of the model, with one thread, on the provider without a fallback.

    Raises:
        ProviderUnavailable: CUDA does not work here.
    """
    return open_version(repository / name / "1", choose(provider), 1)  # type: ignore[arg-type]


def graph_name(graph: Graph) -> str:
    """The name of the graph's file."""
    return graph.spec.fast_path if graph.spec else CANONICAL
