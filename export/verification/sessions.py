"""Sessions of ONNX Runtime to verify graphs with, and their outputs as numpy arrays in any type."""

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import TensorProto

Arrays = Mapping[str, np.ndarray]
Sessions = Mapping[str, onnxruntime.InferenceSession]
CPU = "CPUExecutionProvider"
BFLOAT16 = "tensor(bfloat16)"
HALVES = {"tensor(float16)": np.dtype(np.float16), BFLOAT16: np.dtype(ml_dtypes.bfloat16)}


def session(
    graph: bytes | Path, folder: Path | None = None, provider: str = CPU, prepack: bool = True
) -> onnxruntime.InferenceSession:
    """A session of ``graph`` on one thread of the CPU, or on another ``provider``.

    ``folder`` has the external data of a graph that is passed as bytes. Without ``prepack`` it is mapped, not copied.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # more would compete with exports in other processes
    options.log_severity_level = 3  # errors; its warnings report every optional input
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return onnxruntime.InferenceSession(graph, options, providers=[provider])


def input_names(run: onnxruntime.InferenceSession) -> set[str]:
    """The names of the inputs of a session, with the optional ones."""
    return {value.name for value in [*run.get_inputs(), *run.get_overridable_initializers()]}


def run_outputs(run: onnxruntime.InferenceSession, names: Sequence[str], inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs ``names`` of a session on any provider; those in half precision are returned as float32."""
    types = {
        value.name: value.type for value in [*run.get_inputs(), *run.get_overridable_initializers(), *run.get_outputs()]
    }
    feeds = {name: array.astype(HALVES.get(types[name], array.dtype)) for name, array in inputs.items()}
    if BFLOAT16 in types.values():  # numpy has no bfloat16, so session.run takes none
        binding = run.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, _value(array))
        for name in names:
            binding.bind_output(name, "cpu")  # on any device
        run.run_with_iobinding(binding)
        outputs = [_array(value) for value in binding.get_outputs()]
    else:
        outputs = run.run(names, feeds)
    return {
        name: array.astype(np.float32) if types[name] in HALVES else array
        for name, array in zip(names, outputs, strict=True)
    }


def _value(array: np.ndarray) -> onnxruntime.OrtValue:
    if array.dtype != HALVES[BFLOAT16]:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), TensorProto.BFLOAT16)


def _array(value: onnxruntime.OrtValue) -> np.ndarray:
    if value.data_type() != BFLOAT16:
        array: np.ndarray = value.numpy()
        return array
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(content, HALVES[BFLOAT16]).reshape(value.shape())
