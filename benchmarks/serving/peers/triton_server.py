"""Triton with its C++ ONNX Runtime backend: write a model repository, and replace this process by the server.

usage: python triton_server.py BINARY BACKENDS INSTANCES THREADS BATCHING

INSTANCES of each model have a session with THREADS threads each; BATCHING is on or off.
"""

import os
import shutil
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from sessions import MODELS, NAMES, open_session

MAX_BATCH_SIZE = 64


def config(session: Any, instances: int, threads: int, batching: bool) -> str:
    """Triton's configuration of a graph; Triton adds the axis of the batch to each shape."""

    def tensors(nodes: Any) -> str:
        shapes = [(node, [size if isinstance(size, int) else -1 for size in node.shape[1:]]) for node in nodes]
        return ", ".join(f'{{ name: "{node.name}" data_type: TYPE_FP32 dims: {dims} }}' for node, dims in shapes)

    return f"""
        backend: "onnxruntime"
        max_batch_size: {MAX_BATCH_SIZE}
        input [ {tensors(session.get_inputs())} ]
        output [ {tensors(session.get_outputs())} ]
        instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
        parameters {{ key: "intra_op_thread_count" value: {{ string_value: "{threads}" }} }}
        {"dynamic_batching { }" if batching else ""}
    """


def main(binary: str, backends: str, instances: str, threads: str, batching: str) -> None:
    repository = Path(mkdtemp())
    for name in NAMES:
        version = repository / name / "1"
        version.mkdir(parents=True)
        shutil.copy(f"{MODELS}/{name}/1/model.onnx", version)
        text = config(open_session(name), int(instances), int(threads), batching == "on")
        (version.parent / "config.pbtxt").write_text(text)
    flags = {
        "model-repository": repository,
        "backend-directory": backends,
        "http-address": "127.0.0.1",
        "http-port": os.environ["BENCH_PORT"],
        "allow-grpc": str("BENCH_GRPC_PORT" in os.environ).lower(),
        "grpc-address": "127.0.0.1",
        "grpc-port": os.environ.get("BENCH_GRPC_PORT", "8001"),
        "allow-metrics": "false",
        "log-info": "false",
    }
    if libraries := os.environ.get("BENCH_TRITON_LIBRARIES"):
        os.environ["LD_LIBRARY_PATH"] = libraries
    os.execv(binary, [binary, *(f"--{name}={value}" for name, value in flags.items())])


if __name__ == "__main__":
    main(*sys.argv[1:])
