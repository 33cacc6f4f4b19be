"""Export a block as an ONNX graph with torch's exporter and the block's names, dimensions and defaults.

The inputs and outputs of a graph have the block's symbolic dimensions (``m``, ``past + n``, ``1|batch``). An optional
input has an initializer of the same name, its default, which ONNX Runtime lets a request override.
"""

import gc
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager, nullcontext

import ml_dtypes  # noqa: F401  # defines numpy's dtype "bfloat16"
import numpy as np
import onnx
import onnx_ir
import torch
from onnxscript.optimizer import remove_unused_nodes
from torch import nn
from torch.export import Dim
from torch.onnx._internal.exporter import _core as exporter

from export.graphs.decomposition import OPSET, operators, traced, without_repetition
from export.graphs.shared_weights import SharedWeights
from export.kernels.fast_path import FastPath
from export.kernels.functions import complete
from models.attention import AttentionOutputs
from models.block import Block, Input, Sizes, size
from models.examples import SIZES

# All sizes differ, so that the exporter cannot confuse two axes; m and n are longer than a chunk of ``models.linear``.
TRACED = {**SIZES["distinct"], "m": 130, "n": 197, "past": 67}


class _Selection(nn.Module):
    """A block's module with some of its inputs and outputs; ``fixed`` parameters are constants."""

    def __init__(self, module: nn.Module, outputs: Sequence[str], fixed: Mapping[str, bool]) -> None:
        super().__init__()
        self.module = module
        self.outputs = outputs
        self.fixed = fixed

    def forward(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        attended: AttentionOutputs = self.module(**inputs, **self.fixed)
        return [getattr(attended, name) for name in self.outputs]


def export_graph(
    block: Block,
    module: nn.Module,
    inputs: Sequence[str],
    outputs: Sequence[str],
    path: FastPath | None = None,
    sizes: Sizes = TRACED,
    weights: SharedWeights | None = None,
) -> onnx.ModelProto:
    """The graph of ``block`` with these ``inputs`` and ``outputs``; other options have no nodes.

    With ``path``, its kernel computes attention, and the parameters that it fixes are constants. ``sizes`` are those of
    the inputs to trace with. With ``weights``, the large tensors go to that file, and the graph refers to them.

    Raises:
        Exception: torch cannot trace the module.
        torch.onnx.OnnxExporterError: ONNX has no such operator.
    """
    specs = {name: block.inputs[name] for name in inputs}
    examples = {name: _trace_input(spec, sizes) for name, spec in specs.items()}
    # Their warnings report missing packages, unsimplified nodes, and locations in torch's code.
    for name in ("torch.onnx", "torch.fx", "onnxscript"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(), _no_collections(), path.traced() if path else nullcontext():
        warnings.simplefilter("ignore")  # about deprecated functions that torch itself calls
        selection = _Selection(module.eval(), outputs, path.fixes if path else {})
        decomposed = traced(selection, examples, {name: _dynamic(spec) for name, spec in specs.items()})
        with without_repetition():
            program = exporter.export(
                decomposed,
                registry=operators(),
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                verbose=False,
            )
    _rename_inner(program.model.graph)
    if weights:
        weights.move_all(program.model)
    model = program.model_proto
    complete(model)
    defaults = {name: default_tensor(spec, block.left_out, module) for name, spec in specs.items() if not spec.required}
    return _finish(model, specs, {name: block.outputs[name].shape for name in outputs}, defaults)


@contextmanager
def _no_collections() -> Iterator[None]:
    """A context without garbage collection, which would spend a tenth of an export's time on torch's objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _rename_inner(graph: onnx_ir.Graph) -> None:
    """Rename inner values that have the name of an input or output: torch names them after operators and arguments."""
    own = {id(value) for value in (*graph.inputs, *graph.outputs)}
    names = {value.name for value in (*graph.inputs, *graph.outputs)}
    for value in (*graph.initializers.values(), *(value for node in graph for value in node.outputs)):
        if value.name in names and id(value) not in own:
            value.name = f"{value.name}_inner"


def part_of(model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """A copy of ``model`` with only these inputs and outputs, and the nodes that these outputs need.

    The defaults of the other inputs become constants.
    """
    part = onnx.ModelProto()
    part.CopyFrom(model)
    _keep(part.graph.output, outputs)
    remove_unused_nodes(part)  # onnx-ir warns about a node with a removed input
    _keep(part.graph.input, inputs)
    remove_unused_nodes(part)  # and unused defaults of inputs
    return part


def _keep(values: MutableSequence[onnx.ValueInfoProto], names: Collection[str]) -> None:
    kept = [value for value in values if value.name in names]
    del values[:]
    values.extend(kept)


def _trace_input(spec: Input, sizes: Sizes) -> torch.Tensor:
    """A tensor to trace with. Its broadcast axes have size 1, so that the exporter takes no other size from them."""
    ones = {dim: 1 for dim in spec.shape if isinstance(dim, str) and dim.startswith("1|")}
    shape = [size(dim, {**sizes, **ones}) for dim in spec.shape]
    fill = spec.default if isinstance(spec.default, (bool, int, float)) else 0
    return torch.full(shape, fill, dtype=getattr(torch, spec.dtype))


def _dynamic(spec: Input) -> dict[int, object]:
    free = (axis for axis, dim in enumerate(spec.shape) if isinstance(dim, str) and not dim.startswith("1|"))
    return dict.fromkeys(free, Dim.DYNAMIC)


def _finish(
    model: onnx.ModelProto,
    inputs: dict[str, Input],
    outputs: dict[str, tuple[int | str, ...]],
    defaults: dict[str, np.ndarray],
) -> onnx.ModelProto:
    graph = model.graph
    del graph.value_info[:]  # traced shapes; ONNX Runtime infers its own from the dimensions set below
    del model.metadata_props[:]
    for node in graph.node:
        del node.metadata_props[:]  # stack traces with paths of this machine
        node.doc_string = ""
    shapes = _distinct(inputs) | outputs
    for value in [*graph.input, *graph.output]:
        for declared, dim in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            declared.Clear()
            if isinstance(dim, int):
                declared.dim_value = dim
            else:
                declared.dim_param = dim
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in defaults.items())
    if not any(tensor.external_data for tensor in graph.initializer):  # the checker would look for their file
        onnx.checker.check_model(model, full_check=not model.functions)  # onnx does not know all operators of functions
    return model


def _distinct(inputs: Mapping[str, Input]) -> dict[str, tuple[int | str, ...]]:
    """The shapes of the inputs, with primes where two would be equal and broadcast: ``1|m``, ``1|m'``.

    ONNX Runtime reuses a tensor's memory for another whose dimensions have the same names; but one may have size 1.
    """
    shapes: dict[str, tuple[int | str, ...]] = {}
    earlier: list[tuple[int | str, ...]] = []
    for name, spec in inputs.items():
        primes = "'" * earlier.count(spec.shape)
        earlier.append(spec.shape)
        shapes[name] = tuple(f"{dim}{primes}" if str(dim).startswith("1|") else dim for dim in spec.shape)
    return shapes


def default_tensor(spec: Input, left_out: Sizes, module: nn.Module) -> np.ndarray:
    """The default of an optional input; its sizes are those of ``left_out``, or 1.

    An input that replaces a learned tensor of ``module`` has this tensor as its default.
    """
    if spec.learned:
        learned: np.ndarray = module.state_dict()[spec.learned].float().numpy()
        return learned.astype(spec.dtype)
    assert spec.default is not None
    shape = [dim if isinstance(dim, int) else left_out.get(dim, 1) for dim in spec.shape]
    return np.broadcast_to(np.asarray(spec.default, np.dtype(spec.dtype)), shape)
