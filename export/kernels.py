"""The kernels of the fast paths, as ONNX functions of domain ``heed``: softmax(q k^T) v, the scores never held whole.

Queries are scaled before they come here. Shapes: B batch, H heads, K kv_heads (H is a multiple of K), M queries, N keys
with the past, D d_k, E d_v. A function is text, so that it reads as the graph it is, and is inlined when it is loaded.
"""

import onnx
from onnx import parser

from export.blocks_kernel import BLOCKS, ROWS
from export.fused_kernels import CAUSAL, FLASH, PADDED, SQUARE
from export.masked_kernel import MASKED

DOMAIN = "heed"
OPSETS = {"": 20, "com.microsoft": 1, DOMAIN: 1}

_TEXTS = {
    "Flash": FLASH,
    "Padded": PADDED,
    "Square": SQUARE,
    "Causal": CAUSAL,
    "Blocks": BLOCKS.replace("ROWS", str(ROWS)),
    "Masked": MASKED,
}
_CALLS = {"Padded": ("Flash",), "Causal": ("Square", "Flash"), "Masked": ("Blocks",)}


def functions(kernel: str) -> list[onnx.FunctionProto]:
    """``kernel`` and the functions it calls."""
    opsets = ", ".join(f'"{domain}" : {version}' for domain, version in OPSETS.items())
    head = f'<opset_import: [{opsets}], domain: "{DOMAIN}">'
    return [parser.parse_function(head + _TEXTS[name]) for name in (*_CALLS.get(kernel, ()), kernel)]
