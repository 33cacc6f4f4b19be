"""Steps of generation with 8-bit weights, in blocks of 32 with a scale each.

A step of one sequence takes about as long as reading the weights; 8-bit weights have little more than a quarter of the
bytes. The rest of the graph stays float32. ONNX Runtime's MatMulNBits rounds the other factor to 8 bits, too.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxscript.optimizer import remove_unused_nodes

from export.graphs.shared_weights import SharedWeights
from export.kernels.functions import OPSETS

BITS, BLOCK = 8, 32
INT8_INPUTS = 4  # accuracy_level of MatMulNBits
DOMAIN = "com.microsoft"

Constants = Mapping[str, onnx.TensorProto]


def quantized(model: onnx.ModelProto, weights: SharedWeights | None, folder: Path) -> onnx.ModelProto:
    """A copy of ``model`` whose products with constant matrices have 8-bit weights.

    Large tensors are read from ``folder``, and written to the file of ``weights``.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    transposed = {
        node.output[0]: constants[node.input[0]]
        for node in graph.node
        if node.op_type == "Transpose" and node.input[0] in constants
    }
    made: dict[str, np.ndarray] = {}
    for index, node in enumerate(graph.node):
        matrix = _matrix(node, constants, transposed, folder)
        if matrix is None or min(matrix.shape) < BLOCK:
            continue
        names = [f"{node.input[1]}_{kind}" for kind in ("8bit", "scales")]
        if names[0] not in made:
            made |= dict(zip(names, _packed(matrix), strict=True))
        graph.node[index].CopyFrom(_product(node, matrix.shape, names))
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in made.items())
    copy.opset_import.append(helper.make_opsetid(DOMAIN, OPSETS[DOMAIN]))
    remove_unused_nodes(copy)
    if weights:
        weights.move(copy.graph)
    return copy


def _matrix(node: onnx.NodeProto, constants: Constants, transposed: Constants, folder: Path) -> np.ndarray | None:
    """The constant float32 matrix [k, n] that ``node`` multiplies its first input [..., k] with, or None."""
    if node.op_type not in ("MatMul", "Gemm"):
        return None
    tensor = constants.get(node.input[1], transposed.get(node.input[1]))
    if tensor is None or len(tensor.dims) != 2 or tensor.data_type != onnx.TensorProto.FLOAT:
        return None
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if attributes.get("transA") or any(attributes.get(name, 1) != 1 for name in ("alpha", "beta")):
        return None
    matrix = numpy_helper.to_array(tensor, str(folder))
    is_transposed = bool(attributes.get("transB")) != (node.input[1] in transposed)
    return matrix.T if is_transposed else matrix


def _packed(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers [n, blocks, BLOCK], where 128 means zero, and the scales [n, blocks] of a matrix [k, n]."""
    logging.basicConfig(level=logging.WARNING)  # otherwise the import below logs INFO of all libraries
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        DefaultWeightOnlyQuantizer,
    )

    config = DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=True, bits=BITS)
    packed, scales, _ = DefaultWeightOnlyQuantizer(config).qbits_block_quant(np.ascontiguousarray(matrix))
    return packed, scales


def _product(node: onnx.NodeProto, shape: tuple[int, ...], names: list[str]) -> onnx.NodeProto:
    bias = ["", "", node.input[2]] if len(node.input) > 2 and node.input[2] else []
    return helper.make_node(
        "MatMulNBits", [node.input[0], *names, *bias], [*node.output], node.name, domain=DOMAIN,
        K=shape[0], N=shape[1], bits=BITS, block_size=BLOCK, accuracy_level=INT8_INPUTS,
    )  # fmt: skip
