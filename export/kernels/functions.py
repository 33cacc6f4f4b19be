"""The kernels of the fast paths: softmax(q k^T) v as ONNX functions of domain ``heed``, without all scores in memory.

Queries are scaled before, unless a function has an attribute ``scale``. Shapes: B batch, H heads, K kv_heads (H is a
multiple of K), M queries, N keys with the past, D d_k, E d_v. The functions are written in ONNX's textual syntax; ONNX
Runtime inlines them when it loads a graph.
"""

import re

import onnx
from onnx import parser

from export.kernels.blocks import BLOCKS
from export.kernels.cuda import FUSED, FUSED_CAUSAL, FUSED_MASKED, FUSED_PADDED, FUSED_SQUARE
from export.kernels.experts import EXPERTS, EXPERTS_TRANSPOSED
from export.kernels.fused import CAUSAL, FLASH, LONG_SQUARE, PADDED, SQUARE
from export.kernels.masked import MASKED

DOMAIN = "heed"
OPSETS = {"": 20, "com.microsoft": 1, DOMAIN: 1}

_TEXTS = {
    "Flash": FLASH,
    "Padded": PADDED,
    "Square": SQUARE,
    "LongSquare": LONG_SQUARE,
    "Causal": CAUSAL,
    "Blocks": BLOCKS,
    "Masked": MASKED,
    "Fused": FUSED,
    "FusedSquare": FUSED_SQUARE,
    "FusedCausal": FUSED_CAUSAL,
    "FusedPadded": FUSED_PADDED,
    "FusedMasked": FUSED_MASKED,
    "Experts": EXPERTS,
    "ExpertsTransposed": EXPERTS_TRANSPOSED,
}
_OPSETS = dict.fromkeys(("FusedPadded", "FusedMasked"), OPSETS | {"": 24})  # the first version with Attention's lengths
SCALES = {"Fused", "FusedCausal"}  # kernels that scale the queries themselves


def complete(model: onnx.ModelProto) -> None:
    """Add the functions that the nodes of a traced ``model`` call, and their operator sets."""
    kernels = {node.op_type for node in model.graph.node if node.domain == DOMAIN and node.op_type in _TEXTS}
    added = {function.name: function for kernel in sorted(kernels) for function in _functions(kernel)}
    model.functions.extend(added.values())
    declared = {opset.domain: opset for opset in model.opset_import}
    for domain, version in (item for kernel in kernels for item in _opsets_of(kernel).items()):
        if domain not in declared:
            declared[domain] = model.opset_import.add(domain=domain)
        declared[domain].version = max(version, declared[domain].version)


def _opsets_of(kernel: str) -> dict[str, int]:
    """The version of each operator set that a graph with ``kernel`` needs."""
    return _OPSETS.get(kernel, OPSETS)


def _functions(kernel: str) -> list[onnx.FunctionProto]:
    """The functions that ``kernel`` calls, and ``kernel`` itself."""
    opsets = ", ".join(f'"{domain}" : {version}' for domain, version in _opsets_of(kernel).items())
    head = f'<opset_import: [{opsets}], domain: "{DOMAIN}">'
    called = dict.fromkeys(re.findall(rf"{DOMAIN}\.(\w+)", _TEXTS[kernel]))
    return [parser.parse_function(head + _TEXTS[name]) for name in (*called, kernel)]
