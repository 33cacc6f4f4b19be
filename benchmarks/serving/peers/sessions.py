"""Sessions with one thread for the graphs in the folder BENCH_MODELS; runs in the other servers' environments."""

import os

import onnxruntime

MODELS = os.environ["BENCH_MODELS"]
NAMES = [name for name in ("sdpa", "sdpa_output", "mha", "mha_output") if os.path.isdir(f"{MODELS}/{name}")]


def open_session(name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(f"{MODELS}/{name}/1/model.onnx", options, providers=["CPUExecutionProvider"])
