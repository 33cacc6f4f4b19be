"""Trace fast paths that differ only in their kernel once: tracing takes most of an export's time."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx
from torch import nn

from export.graphs.graph import export_graph, part_of
from export.kernels.fast_path import CAUSAL_TENSORS, JOINT, FastPath
from export.kernels.functions import DOMAIN, SCALES, complete
from models.block import Block

TENSORS = 3  # the first inputs of every kernel: query, key and value


def joint_graphs(block: Block, module: nn.Module, paths: Mapping[str, FastPath]) -> dict[str, onnx.ModelProto]:
    """The graphs, by name, of the ``paths`` that share a trace with another path."""
    groups: defaultdict[tuple[Sequence[str], bool], list[FastPath]] = defaultdict(list)
    for path in paths.values():
        if path.kernel and path.kernel not in SCALES:
            groups[path.outputs, "past_key" in path.takes].append(path)
    graphs: dict[str, onnx.ModelProto] = {}
    for group in groups.values():
        if len(group) > 1:
            joint = _joint(group)
            trace = export_graph(block, module, *joint.graph(block), joint)
            graphs |= {name: _cut(trace, joint, path, block) for name, path in paths.items() if path in group}
    return graphs


def _joint(paths: Sequence[FastPath]) -> FastPath:
    """A path with the inputs of all ``paths``. Its kernel is a placeholder for theirs, with the arguments of all."""
    takes = dict.fromkeys(name for path in paths for name in path.takes)
    arguments = dict.fromkeys(name for path in paths for name in path.arguments)
    return replace(paths[0], kernel=JOINT, takes=tuple(takes), arguments=(*arguments, *CAUSAL_TENSORS), fixes={})


def _cut(trace: onnx.ModelProto, joint: FastPath, path: FastPath, block: Block) -> onnx.ModelProto:
    """The graph of ``path``, from the trace of ``joint``."""
    model = onnx.ModelProto()
    model.CopyFrom(trace)
    for node in model.graph.node:
        if (node.domain, node.op_type) == (DOMAIN, JOINT):
            arguments = dict(zip(joint.arguments, node.input[TENSORS:], strict=True))
            node.op_type = path.kernel
            if path.kernel == "Causal":
                node.input[0], node.input[2] = (arguments[name] for name in CAUSAL_TENSORS)
            node.input[TENSORS:] = [arguments[name] for name in path.arguments]
    model = part_of(model, *path.graph(block))
    complete(model)
    return model
