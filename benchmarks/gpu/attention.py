"""Attention on the device by Heed's graphs and by torch, in alternating turns with the same tensors."""

import gc
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.clock import times_ms, wait
from benchmarks.gpu.repository import export, graph_name, open_model
from benchmarks.gpu.rows import Row, Rows, failed, in_processes
from models.precision import name_in

BLOCK = "scaled_dot_product"
BATCH, HEADS, D = 8, 16, 64
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
SHORT = (64,)  # in a trial
KINDS = {"output": LENGTHS, "weights": LENGTHS[:-2], "causal": LENGTHS}  # longer weights are refused by the service
ELEMENT_TYPES = {torch.float32: 1, torch.float16: 10, torch.bfloat16: 16}  # TensorProto's
Tensors = dict[str, Tensor]
Attend = Callable[[], Tensors]


def cell_name(kind: str, dtype: str, n: int) -> str:
    return f"attention/{kind}/{dtype}/{n}"


def measure(options: Namespace, rows: Rows) -> Iterator[tuple[str, Row]]:
    """Measure the missing cells: first bfloat16, which has gates, and float32 last, which needs most memory."""
    for dtype in reversed(options.dtypes):
        location = export(options, [BLOCK], dtype), options.provider
        for kind, lengths in KINDS.items():
            names = {cell_name(kind, dtype, n): n for n in (lengths if options.provider == "cuda" else SHORT)}
            if missing := tuple(name for name in names if not rows.has(name)):
                task = partial(compare_all, *location, kind, dtype, [names[name] for name in missing])
                yield from in_processes(1, {missing: task})


def compare_all(repository: Path, provider: str, kind: str, dtype: str, lengths: list[int]) -> list[Row]:
    """A row for each of ``lengths``."""
    results = []
    for n in lengths:
        gc.collect()  # frees the tensors of the last length
        try:
            results.append(compare(repository, provider, kind, dtype, n))
        except Exception as error:
            results.append(failed(error))
    return results


def compare(repository: Path, provider: str, kind: str, dtype: str, n: int) -> Row:
    """Times and errors of Heed's graph and of torch."""
    shape = (BATCH, HEADS, n, D) if provider == "cuda" else (1, 2, n, D)
    torch.manual_seed(0)
    inputs = {name: torch.randn(shape, device=provider).to(getattr(torch, dtype)) for name in ("query", "key", "value")}
    wait()  # ONNX Runtime uses another CUDA stream
    graph, ours = in_heed(repository, provider, kind, dtype, inputs)
    theirs = in_torch(kind, inputs)
    error, outputs = errors(kind, inputs, ours()), theirs()
    allowed = {name: 2 * its + _last_place(outputs[name]) for name, its in errors(kind, inputs, outputs).items()}
    del outputs
    return {
        "dtype": dtype,
        "graph": graph,
        "ms": dict(zip(("heed", "torch"), times_ms(ours, theirs, provider), strict=True)),
        "error": {name: its / allowed[name] for name, its in error.items()},
        "wrong": [
            f"{name}: error {its:.3g}, allowed {allowed[name]:.3g}"
            for name, its in error.items()
            if not its <= allowed[name]
        ],
    }


def in_heed(repository: Path, provider: str, kind: str, dtype: str, inputs: Tensors) -> tuple[str, Attend]:
    """The name of the graph that the service selects, and a call of it; inputs and outputs stay on the device."""
    model = open_model(repository, name_in(BLOCK, dtype), provider)
    query = inputs["query"]
    outputs = {"output": torch.full_like(query, torch.nan)}
    if kind == "weights":
        outputs["weights"] = query.new_full((*query.shape[:-1], query.shape[-2]), torch.nan)
    wait()
    options = {"is_causal": np.array(True)} if kind == "causal" else {}
    tensors = {name: np.zeros(query.shape, model.inputs[name].dtype) for name in inputs}  # only for their shapes
    graph = model.graph_for(tensors | options, list(outputs), model.bind(tensors | options))
    session = graph.session.onnx
    binding = session.io_binding()
    for name, tensor in inputs.items():
        binding.bind_input(name, **_buffer(tensor))
    for name in options.keys() & graph.inputs:
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(options[name]))
    for name, tensor in outputs.items():
        binding.bind_output(name, **_buffer(tensor))

    def attend() -> Tensors:
        session.run_with_iobinding(binding)
        return outputs

    return graph_name(graph), attend


def in_torch(kind: str, inputs: Tensors) -> Attend:
    """The kernel that torch chooses for the inputs; no kernel returns weights, so these are computed in steps."""
    query, key, value = inputs.values()

    def fused() -> Tensors:
        return {"output": scaled_dot_product_attention(query, key, value, is_causal=kind == "causal")}

    def in_steps() -> Tensors:
        weights = torch.softmax((query * D**-0.5) @ key.transpose(-1, -2), -1)
        return {"output": weights @ value, "weights": weights}

    return in_steps if kind == "weights" else fused


def errors(kind: str, inputs: Tensors, outputs: Tensors) -> dict[str, float]:
    """The largest absolute error of each output against float64, computed head by head; infinite for NaN."""
    wait()
    worst = dict.fromkeys(outputs, 0.0)
    for head in np.ndindex(*inputs["query"].shape[:2]):
        query, key, value = (tensor[head].double() for tensor in inputs.values())
        scores = query @ key.T * D**-0.5
        if kind == "causal":
            scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        weights = torch.softmax(scores, -1)
        for name, exact in {"output": weights @ value, "weights": weights}.items():
            if name in outputs:
                error = float((outputs[name][head].double() - exact).abs().nan_to_num(torch.inf).max())
                worst[name] = max(worst[name], error)
    return worst


def _last_place(tensor: Tensor) -> float:
    """One unit in the last place of the largest number."""
    return float(torch.finfo(tensor.dtype).eps * tensor.abs().max())


def _buffer(tensor: Tensor) -> dict[str, Any]:
    return {
        "device_type": tensor.device.type,
        "device_id": tensor.device.index or 0,
        "element_type": ELEMENT_TYPES[tensor.dtype],
        "shape": tuple(tensor.shape),
        "buffer_ptr": tensor.data_ptr(),
    }
