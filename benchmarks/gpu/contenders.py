"""Attention on the device by Heed's graphs and by torch's kernels, with the same tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.cells import BLOCK, Engine
from benchmarks.gpu.clock import wait
from benchmarks.gpu.opened import choose_graph, graph_name, open_model
from models.precision import name_in

ELEMENT_TYPES = {torch.float32: 1, torch.float16: 10, torch.bfloat16: 16}  # TensorProto's
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
Tensors = dict[str, Tensor]
Attend = Callable[[], Tensors]


def tensors(cell: Engine, device: str) -> Tensors:
    """Standard normal query, key and value [batch, heads, n, d]."""
    generator = torch.Generator(device).manual_seed(0)
    shape, dtype = (cell.batch, cell.heads, cell.n, cell.d), getattr(torch, cell.dtype)
    float32 = {name: torch.randn(shape, generator=generator, device=device) for name in ("query", "key", "value")}
    tensors = {name: tensor.to(dtype) for name, tensor in float32.items()}
    wait()  # ONNX Runtime uses another CUDA stream
    return tensors


class Heed:
    """The graph that the service would run, in its session.

    Inputs and outputs stay on the device. ``graph`` is the name of its file.

    Raises:
        FileNotFoundError: the model was not exported.
        Exception: an error of ONNX Runtime.
    """

    def __init__(self, cell: Engine, inputs: Tensors, repository: Path, provider: str) -> None:
        model = open_model(repository, name_in(BLOCK, cell.dtype), provider)
        shapes = {key: tuple(tensor.shape) for key, tensor in inputs.items()}
        outputs = ["output"] if cell.path == "output" else ["output", "weights"]
        graph = choose_graph(model, shapes, outputs, cell.is_causal)
        self.graph = graph_name(graph)
        self._session = graph.session.onnx
        self._outputs = {key: inputs["query"].new_full(_shape(key, cell), torch.nan) for key in outputs}
        wait()
        self._binding = self._session.io_binding()
        for key, tensor in inputs.items():
            self._binding.bind_input(key, **_buffer(tensor))
        if cell.is_causal and "is_causal" in graph.inputs:
            self._binding.bind_ortvalue_input("is_causal", onnxruntime.OrtValue.ortvalue_from_numpy(np.array(True)))
        for key, tensor in self._outputs.items():
            self._binding.bind_output(key, **_buffer(tensor))

    def __call__(self) -> Tensors:
        self._session.run_with_iobinding(self._binding)
        return self._outputs

    @property
    def output_mib(self) -> int:
        """The size of the outputs, which are allocated in advance."""
        return sum(tensor.nbytes for tensor in self._outputs.values()) >> 20

    def shrink_arena(self) -> None:
        """Run, and return the memory that ONNX Runtime's arena keeps for later runs."""
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0")
        self._session.run_with_iobinding(self._binding, options)


def torch_kernels(cell: Engine, inputs: Tensors) -> dict[str, Attend]:
    """torch's kernels; one that does not support the cell raises RuntimeError when it is called."""
    query, key, value = inputs.values()

    def fused(backend: SDPBackend) -> Tensors:
        with sdpa_kernel(backend):
            return {"output": scaled_dot_product_attention(query, key, value, is_causal=cell.is_causal)}

    def explicit() -> Tensors:
        weights = torch.softmax((query * cell.d**-0.5) @ key.transpose(-1, -2), -1)
        return {"output": weights @ value, "weights": weights}

    if cell.path == "weights":
        return {"explicit": explicit}
    names = [name for name in KERNELS if name != "math" or query.device.type == "cpu"]
    return {name: lambda backend=KERNELS[name]: fused(backend) for name in names}


def errors(cell: Engine, inputs: Tensors, outputs: Tensors) -> dict[str, float]:
    """The largest absolute error of each output against float64, computed head by head; infinite for NaN."""
    worst = dict.fromkeys(outputs, 0.0)
    i = torch.arange(cell.n, device=inputs["query"].device)
    for b in range(cell.batch):
        for h in range(cell.heads):
            query, key, value = (tensor[b, h].double() for tensor in inputs.values())
            scores = query @ key.T * cell.d**-0.5
            if cell.is_causal:
                scores.masked_fill_(i > i[:, None], -torch.inf)
            weights = torch.softmax(scores, -1)
            for key, exact in {"output": weights @ value, "weights": weights}.items():
                if key in outputs:
                    error = float((outputs[key][b, h].double() - exact).abs().max())
                    worst[key] = max(worst[key], error if error == error else float("inf"))
    return worst


def _shape(output: str, cell: Engine) -> tuple[int, ...]:
    return cell.batch, cell.heads, cell.n, cell.d if output == "output" else cell.n


def _buffer(tensor: Tensor) -> dict[str, Any]:
    return {
        "device_type": tensor.device.type,
        "device_id": tensor.device.index or 0,
        "element_type": ELEMENT_TYPES[tensor.dtype],
        "shape": tuple(tensor.shape),
        "buffer_ptr": tensor.data_ptr(),
    }
