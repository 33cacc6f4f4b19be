"""The blocks in half precision that tests serve: one that ONNX Runtime runs on the CPU in either type."""

from dataclasses import replace

from models.catalogue import BLOCKS
from models.precision import in_precision

SDPA = BLOCKS["scaled_dot_product"]
ATTENTION = replace(
    SDPA,
    name="attention",
    inputs={name: of for name, of in SDPA.inputs.items() if of.required or name in ("attn_mask", "is_causal", "scale")},
    outputs={name: SDPA.outputs[name] for name in ("output", "weights", "scores")},
)
HALVES = {
    block.name: block for block in (in_precision(ATTENTION, "float16"), in_precision(BLOCKS["efficient"], "bfloat16"))
}
