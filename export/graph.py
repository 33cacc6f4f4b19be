"""A block as an ONNX graph: torch's exporter, then the block's own names, dimensions and defaults.

The dimensions of a graph are said once, by the block: every input and output carries its symbols (``m``, ``past + n``,
``1|batch``). An optional input is an ONNX input with a default tensor (an initializer of the same name), which ONNX
Runtime lets a request override.
"""

import functools
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import ml_dtypes  # noqa: F401  # by which numpy knows bfloat16
import numpy as np
import onnx
import torch
from torch import nn
from torch.export import Dim
from torch.onnx._internal.exporter import _core as exporter
from torch.onnx._internal.exporter._registration import ONNXRegistry

from export.fast_path import FastPath
from models.attention import Attended
from models.block import Block, Input, Sizes, size
from models.examples import SIZES

OPSET = 20  # the newest that Triton's ONNX Runtime of 2024 still loads
# No two sizes alike, so that the exporter cannot take one axis for another; long enough for several chunks.
TRACED = {**SIZES["distinct"], "m": 130, "n": 197, "past": 67}


class _Chosen(nn.Module):
    """The block with some of its inputs and outputs; ``fixed`` parameters are no inputs."""

    def __init__(self, module: nn.Module, outputs: Sequence[str], fixed: Mapping[str, bool]) -> None:
        super().__init__()
        self.module = module
        self.outputs = outputs
        self.fixed = fixed

    def forward(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        attended: Attended = self.module(**inputs, **self.fixed)
        return [getattr(attended, name) for name in self.outputs]


def export_graph(
    block: Block, module: nn.Module, inputs: Sequence[str], outputs: Sequence[str], path: FastPath | None = None
) -> onnx.ModelProto:
    """The graph that takes ``inputs`` and answers ``outputs``; options left out are off, at no cost.

    With ``path``, attention is its kernel, and what it fixes is on.

    Raises:
        torch.onnx.OnnxExporterError: torch cannot trace the module, or no ONNX operator says the same.
    """
    chosen = {name: block.inputs[name] for name in inputs}
    traced = {name: _trace_input(of) for name, of in chosen.items()}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports every optional package it lacks
    with warnings.catch_warnings(), path.in_place() if path else nullcontext():
        warnings.simplefilter("ignore")  # of torch's own deprecated calls
        program = exporter.export(
            _Chosen(module.eval(), outputs, path.fixes if path else {}),
            kwargs={"inputs": traced},
            registry=_operators(),
            opset_version=OPSET,
            dynamic_shapes={"inputs": {name: _dynamic(of) for name, of in chosen.items()}},
            input_names=list(inputs),
            output_names=list(outputs),
            verbose=False,
        )
    model = program.model_proto
    if path:
        path.complete(model)
    return _finish(model, chosen, {name: block.outputs[name].shape for name in outputs}, block.left_out)


@functools.cache
def _operators() -> ONNXRegistry:
    """How each operator of torch is written in ONNX.

    ``torch.onnx.export`` reads this from the sources of 500 functions for every graph, which takes as long as a small
    graph itself. So ``export_graph`` calls what lies below it, in torch 2.13, with one registry for all graphs.
    """
    return ONNXRegistry.from_torchlib(opset_version=OPSET)


def _trace_input(of: Input) -> torch.Tensor:
    """A tensor to trace with. Broadcast axes are 1 long, so that no other size is ever read off them."""
    ones = {dim: 1 for dim in of.shape if isinstance(dim, str) and dim.startswith("1|")}
    shape = [size(dim, {**TRACED, **ones}) for dim in of.shape]
    fill = of.default if isinstance(of.default, (bool, int, float)) else 0
    return torch.full(shape, fill, dtype=getattr(torch, of.dtype))


def _dynamic(of: Input) -> dict[int, object]:
    free = (axis for axis, dim in enumerate(of.shape) if isinstance(dim, str) and not dim.startswith("1|"))
    return dict.fromkeys(free, Dim.DYNAMIC)


def _finish(
    model: onnx.ModelProto, inputs: dict[str, Input], outputs: dict[str, tuple[int | str, ...]], left_out: Sizes
) -> onnx.ModelProto:
    graph = model.graph
    del graph.value_info[:]  # shapes as the trace saw them; ONNX Runtime infers its own from the names below
    del model.metadata_props[:]
    for node in graph.node:
        del node.metadata_props[:]  # stack traces of this machine
        node.doc_string = ""
    shapes = {name: of.shape for name, of in inputs.items()} | outputs
    for value in [*graph.input, *graph.output]:
        for declared, dim in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            declared.Clear()
            if isinstance(dim, int):
                declared.dim_value = dim
            else:
                declared.dim_param = dim
    for name, of in inputs.items():
        if not of.required:
            graph.initializer.append(onnx.numpy_helper.from_array(default_tensor(of, left_out), name))
    onnx.checker.check_model(model, full_check=not model.functions)  # onnx infers no types through ORT's own operators
    return model


def default_tensor(of: Input, left_out: Sizes) -> np.ndarray:
    """What an optional input is when a request leaves it out: 1 long where it broadcasts, empty along the past."""
    assert of.default is not None
    shape = [dim if isinstance(dim, int) else left_out.get(dim, 1) for dim in of.shape]
    return np.broadcast_to(np.asarray(of.default, np.dtype(of.dtype)), shape)
