"""The kernels of the fast paths, as ONNX functions of domain ``heed``: softmax(q k^T) v, the scores never held whole.

Queries are scaled before they come here, unless a function has an attribute for it. Shapes: B batch, H heads, K
kv_heads (H is a multiple of K), M queries, N keys with the past, D d_k, E d_v. A function is text, so that it reads as
the graph it is, and is inlined when it is loaded.
"""

import onnx
from onnx import parser

from export.blocks_kernel import BLOCKS, ROWS
from export.cuda_kernels import FUSED, FUSED_CAUSAL, FUSED_MASKED, FUSED_PADDED, FUSED_SQUARE
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
    "Fused": FUSED,
    "FusedSquare": FUSED_SQUARE,
    "FusedCausal": FUSED_CAUSAL,
    "FusedPadded": FUSED_PADDED,
    "FusedMasked": FUSED_MASKED,
}
_CALLS = {
    "Padded": ("Flash",),
    "Causal": ("Square", "Flash"),
    "Masked": ("Blocks",),
    "FusedCausal": ("FusedSquare", "Fused"),
}
_OPSETS = {"FusedPadded": OPSETS | {"": 24}, "FusedMasked": OPSETS | {"": 24}}  # where there is Attention
SCALES = {"Fused", "FusedCausal"}  # kernels that scale the queries themselves


def opsets_of(kernel: str) -> dict[str, int]:
    """The opsets a graph needs that calls ``kernel``."""
    return _OPSETS.get(kernel, OPSETS)


def functions(kernel: str) -> list[onnx.FunctionProto]:
    """``kernel`` and the functions it calls."""
    opsets = ", ".join(f'"{domain}" : {version}' for domain, version in opsets_of(kernel).items())
    head = f'<opset_import: [{opsets}], domain: "{DOMAIN}">'
    return [parser.parse_function(head + _TEXTS[name]) for name in (*_CALLS.get(kernel, ()), kernel)]
