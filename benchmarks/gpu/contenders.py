"""Attention on the device by Heed's graphs and by torch's kernels, over the same tensors."""

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
from benchmarks.gpu.opened import chosen, graph_name, opened, settled
from models.precision import name_in
from service.provider import open_session

ELEMENTS = {torch.float32: 1, torch.float16: 10, torch.bfloat16: 16}  # TensorProto's
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
Tensors = dict[str, Tensor]
Attend = Callable[[], Tensors]


def tensors(cell: Engine, device: str) -> Tensors:
    """query, key and value, [batch, heads, n, d] standard normal."""
    source = torch.Generator(device).manual_seed(0)
    shape, dtype = (cell.batch, cell.heads, cell.n, cell.d), getattr(torch, cell.dtype)
    drawn = {name: torch.randn(shape, generator=source, device=device) for name in ("query", "key", "value")}
    found = {name: tensor.to(dtype) for name, tensor in drawn.items()}
    wait()  # ONNX Runtime has a stream of its own
    return found


class Heed:
    """The graph that the service would run, in its session or, where it ``captures``, in one for CUDA graphs.

    Inputs and outputs stay on the device. ``graph`` is the name of its file.

    Raises:
        FileNotFoundError: the model was not exported.
        Exception: ONNX Runtime's own.
    """

    def __init__(self, cell: Engine, given: Tensors, repository: Path, provider: str, captures: bool = False) -> None:
        name = name_in(BLOCK, cell.dtype)
        model = opened(repository, name, provider)
        shapes = {of: tuple(tensor.shape) for of, tensor in given.items()}
        outputs = ["output"] if cell.path == "output" else ["output", "weights"]
        graph = chosen(model, shapes, outputs, cell.is_causal)
        self.graph = graph_name(graph)
        self._session = graph.session
        if captures:
            file = repository / name / "1" / f"{self.graph}.onnx"
            self._session = open_session(file, settled(repository, provider), 1, captures=True)
        self._found = {of: given["query"].new_full(_shape(of, cell), torch.nan) for of in outputs}
        wait()
        self._binding = self._session.io_binding()
        for of, tensor in given.items():
            self._binding.bind_input(of, **_place(tensor))
        if cell.is_causal and "is_causal" in graph.takes:
            self._binding.bind_ortvalue_input("is_causal", onnxruntime.OrtValue.ortvalue_from_numpy(np.array(True)))
        for of, tensor in self._found.items():
            self._binding.bind_output(of, **_place(tensor))

    def __call__(self) -> Tensors:
        self._session.run_with_iobinding(self._binding)
        return self._found

    @property
    def answered_mib(self) -> int:
        """What the outputs take, which are there from the beginning."""
        return sum(tensor.nbytes for tensor in self._found.values()) >> 20

    def give_back(self) -> None:
        """Run, and then give the device what ONNX Runtime keeps of its memory for later runs."""
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0")
        self._session.run_with_iobinding(self._binding, options)


def torch_kernels(cell: Engine, given: Tensors) -> dict[str, Attend]:
    """Each of torch's; one that cannot do this raises RuntimeError when it is called."""
    query, key, value = given.values()

    def fused(backend: SDPBackend) -> Tensors:
        with sdpa_kernel(backend):
            return {"output": scaled_dot_product_attention(query, key, value, is_causal=cell.is_causal)}

    def explicit() -> Tensors:
        weights = torch.softmax((query * cell.d**-0.5) @ key.transpose(-1, -2), -1)
        return {"output": weights @ value, "weights": weights}

    if cell.path == "weights":
        return {"explicit": explicit}
    there = KERNELS if query.device.type == "cpu" else {name: of for name, of in KERNELS.items() if name != "math"}
    return {name: lambda backend=of: fused(backend) for name, of in there.items()}


def errors(cell: Engine, given: Tensors, found: Tensors) -> dict[str, float]:
    """The largest error of each output against float64, head by head; infinite where a number is none."""
    worst = dict.fromkeys(found, 0.0)
    i = torch.arange(cell.n, device=given["query"].device)
    for b in range(cell.batch):
        for h in range(cell.heads):
            query, key, value = (tensor[b, h].double() for tensor in given.values())
            scores = query @ key.T * cell.d**-0.5
            if cell.is_causal:
                scores.masked_fill_(i > i[:, None], -torch.inf)
            weights = torch.softmax(scores, -1)
            for of, exact in {"output": weights @ value, "weights": weights}.items():
                if of in found:
                    error = float((found[of][b, h].double() - exact).abs().max())
                    worst[of] = max(worst[of], error if error == error else float("inf"))
    return worst


def _shape(of: str, cell: Engine) -> tuple[int, ...]:
    return cell.batch, cell.heads, cell.n, cell.d if of == "output" else cell.n


def _place(tensor: Tensor) -> dict[str, Any]:
    return {
        "device_type": tensor.device.type,
        "device_id": tensor.device.index or 0,
        "element_type": ELEMENTS[tensor.dtype],
        "shape": tuple(tensor.shape),
        "buffer_ptr": tensor.data_ptr(),
    }
