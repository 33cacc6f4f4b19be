"""Convert a half precision graph to one in float32 that rounds to half precision after every operator.

ONNX Runtime's CPU provider has few kernels for bfloat16, and runs whole graphs of float16 in float32. This twin runs on
every provider: it has the same nodes, and each intermediate number is one of the half type.
"""

from pathlib import Path

import onnx
import onnx.inliner
from onnx import TensorProto, helper, numpy_helper

HALVES = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
TYPED = {"Cast", "Constant", "ConstantOfShape"}  # operators with an attribute for the type of their output


def rounding_twin(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """``model`` with float32 in place of float16 and bfloat16, including inputs and outputs; functions are inlined.

    The external data of ``model`` is in ``folder``; the twin has none.

    Raises:
        ValueError: onnx cannot infer the type of a tensor.
    """
    twin = onnx.inliner.inline_local_functions(model)
    onnx.load_external_data_for_model(twin, str(folder))
    half = next(value.type.tensor_type.elem_type for value in twin.graph.output)
    _declare(twin.graph, half)
    twin = onnx.shape_inference.infer_shapes(twin)
    _twin(twin.graph)
    return twin


def _declare(graph: onnx.GraphProto, half: int) -> None:
    """Declare the outputs of ONNX Runtime's operators, whose types onnx cannot infer, as ``half``."""
    for node in graph.node:
        if node.domain:
            graph.value_info.extend(helper.make_tensor_value_info(name, half, None) for name in node.output if name)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _declare(attribute.g, half)


def _twin(graph: onnx.GraphProto) -> None:
    values = [*graph.value_info, *graph.input, *graph.output]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    for value in [*graph.input, *graph.output]:
        if types[value.name] in HALVES:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in graph.initializer:
        if tensor.data_type in HALVES:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float32"), tensor.name))
    del graph.value_info[:]
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _twin(attribute.g)
        rounded = []
        for place, name in enumerate(node.output):
            if name and name not in types:
                raise ValueError(f"the type of {name}, an output of {node.op_type}, is not known")
            if name and types[name] in HALVES:
                node.output[place] = f"{name} as made"
                half = f"{name} in half"
                if node.op_type in TYPED:
                    half = node.output[place]
                else:
                    rounded.append(helper.make_node("Cast", [node.output[place]], [half], to=types[name]))
                rounded.append(helper.make_node("Cast", [half], [name], to=TensorProto.FLOAT))
        graph.node.extend([node, *rounded])
