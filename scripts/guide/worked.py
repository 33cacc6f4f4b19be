"""The worked answer of each block's page: a request that can be computed by hand, and what the block answers.

A block with learned weights, and a stack, is built at the sizes of ``TINY``, with matrices that have ones on their
diagonal and zeros elsewhere.
"""

import json
from typing import Any

import numpy as np
import torch
from torch import nn

from models import additive, cross_decoder, encoder, luong, multi_head
from models.additive import AdditiveConfig
from models.block import Block
from models.luong import LuongGeneralConfig
from models.multi_head import MultiHeadConfig
from models.transformer import TransformerConfig

SIZES = ("d_model", "num_heads", "num_kv_heads", "num_layers", "d_ff", "vocab_size", "d_q", "d_k", "d_a", "d_v")
SHOWN = ("scores", "weights", "cross_weights", "output")  # of these the outputs that the block has
REQUEST: dict[str, Any] = {"query": [[1.0, 2.0]], "key": [[1.0, 0.0], [0.0, 1.0]], "value": [[10.0], [20.0]]}
WIDE = REQUEST | {"value": [[10.0, 0.0], [0.0, 20.0]]}
SELF: dict[str, Any] = {"x": [[1.0, 2.0], [3.0, 0.0]]}
CROSS: dict[str, Any] = {"x": [[1.0, 2.0]], "memory": [[1.0, 0.0], [0.0, 1.0]]}
IDS: dict[str, Any] = {"input_ids": [0, 1]}
ADDITIVE = AdditiveConfig(d_q=2, d_k=2, d_a=2, d_v=1)
STACK = {"d_model": 2, "num_heads": 1, "num_layers": 1, "d_ff": 2, "layer_norm_eps": 0.0}
WORDS: dict[str, Any] = STACK | {"vocab_size": 2, "activation": "gelu"}
TINY: dict[str, tuple[Block, dict[str, Any]]] = {
    "projected": (multi_head.block(MultiHeadConfig(2, 1, vdim=1, d_v=1, out_proj=False)), REQUEST),
    "self_attention": (multi_head.block(MultiHeadConfig(2, 1, out_proj=False, inputs="x")), SELF),
    "cross_attention": (multi_head.block(MultiHeadConfig(2, 1, out_proj=False, inputs="x, memory")), CROSS),
    "multi_head": (multi_head.block(MultiHeadConfig(2, 2)), WIDE),
    "multi_head_self_attention": (multi_head.block(MultiHeadConfig(2, 1, d_k=2, d_v=1, inputs="x")), SELF),
    "grouped_query": (
        multi_head.block(MultiHeadConfig(4, 4, num_kv_heads=2, bias=False, inputs="x")),
        {"x": [[1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 0.0, 2.0]]},
    ),
    "multi_query": (multi_head.block(MultiHeadConfig(2, 2, num_kv_heads=1, bias=False, inputs="x")), SELF),
    "additive": (additive.block(ADDITIVE), REQUEST),
    "luong_general": (luong.block(LuongGeneralConfig(d_q=2, d_k=2, d_v=1)), REQUEST),
    "luong_concat": (additive.block(ADDITIVE), REQUEST),
    "encoder": (encoder.encoder(TransformerConfig(**WORDS, norm="post", embedding_norm=True)), IDS),
    "decoder": (encoder.decoder(TransformerConfig(**WORDS, norm="pre", final_norm=True)), IDS),
    "cross_decoder": (cross_decoder.cross_decoder(TransformerConfig(**STACK)), CROSS | SELF),
}


def example(block: Block) -> tuple[Block, nn.Module, dict[str, Any]]:
    """``block``, or the tiny one for it, with its weights, and the request."""
    tiny, request = TINY.get(block.name, (block, REQUEST))
    module = tiny.build().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:  # v of additive attention adds all features
                parameter.copy_(torch.ones(parameter.shape) if name == "v.weight" else torch.eye(*parameter.shape))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
    return tiny, module, request


def arrays(block: Block, request: dict[str, Any]) -> dict[str, np.ndarray]:
    """``request`` with the leading axes that the block's shapes have and lists leave out."""
    inputs = {name: np.array(numbers, block.inputs[name].dtype) for name, numbers in request.items()}
    return {name: x[(None,) * (len(block.inputs[name].shape) - x.ndim)] for name, x in inputs.items()}


def worked(block: Block) -> dict[str, np.ndarray]:
    """What the block answers, without leading axes of size 1."""
    tiny, module, request = example(block)
    with torch.no_grad():
        answer = module(**{name: torch.from_numpy(x) for name, x in arrays(tiny, request).items()})._asdict()
    shown = {name: answer[name].numpy() for name in SHOWN if name in tiny.outputs and answer[name] is not None}
    return {name: short(x) for name, x in shown.items()}


def short(x: np.ndarray) -> np.ndarray:
    """``x`` without leading axes of size 1; the last two stay."""
    return x.reshape(*(size for size in x.shape[:-2] if size > 1), *x.shape[-2:])


def text(block: Block) -> str:
    """The section of the page, in Markdown."""
    tiny, module, request = example(block)
    parameters = dict(module.named_parameters())
    matrices = {name: tuple(parameter.shape) for name, parameter in parameters.items() if parameter.ndim > 1}
    said = ["To check by hand. Numbers are rounded to four decimals, and leading axes of size 1 are left out."]
    if matrices:
        sizes = ", ".join(f"`{name}` {size}" for name, size in tiny.config.items() if name in SIZES and size)
        others = "; v is [1, 1]" if matrices.pop("v.weight", None) else ""
        others += "; every bias is 0" if "bias" in " ".join(parameters) else ""
        said.append(f"The sizes are not those of the block that is served, but {sizes}.")
        said.append(f"Every learned matrix has ones on its diagonal and zeros elsewhere{others}.")
    if any(rows != columns for rows, columns in matrices.values()):
        said.append("So a projection to fewer numbers keeps the first ones, and one to more appends zeros.")
    if "norm" in " ".join(parameters):
        said.append("The norms have epsilon 0: of two numbers they make the larger 1 and the smaller -1.")
    numbers = {name: np.round(x.astype(float), 4).tolist() for name, x in worked(block).items()}
    answer = json.dumps(numbers).replace("-Infinity", "null")
    return "\n\n".join(
        ("## A worked answer", " ".join(said), f"```json\n{json.dumps(request)}\n```", f"```json\n{answer}\n```")
    )
