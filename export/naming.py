"""Tensor names: how torch, Hugging Face and others save what our modules call ``layers.0.attention.q_proj.weight``."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from export.checkpoint import CheckpointError

Tensors = dict[str, Tensor]

BERT = {
    r"embeddings\.(word|position|token_type)_embeddings\.weight": r"embeddings.\1.weight",
    r"embeddings\.LayerNorm\.": "embedding_norm.",
    r"encoder\.layer\.(\d+)\.attention\.self\.(q|k|v)(?:uery|ey|alue)\.": r"layers.\1.attention.\2_proj.",
    r"encoder\.layer\.(\d+)\.attention\.output\.dense\.": r"layers.\1.attention.out_proj.",
    r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.": r"layers.\1.norm1.",
    r"encoder\.layer\.(\d+)\.intermediate\.dense\.": r"layers.\1.linear1.",
    r"encoder\.layer\.(\d+)\.output\.dense\.": r"layers.\1.linear2.",
    r"encoder\.layer\.(\d+)\.output\.LayerNorm\.": r"layers.\1.norm2.",
}
BERT_ASIDE = r"(pooler|cls)\.|embeddings\.position_ids$"  # heads on top of the hidden states, and a constant


def own_names(tensors: Mapping[str, Tensor]) -> Tensors:
    """The tensors of torch's or a BERT's modules by our names; names that are nobody's stay as they are."""
    found = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    if any(name.startswith("embeddings.word_embeddings") for name in found):
        return {_renamed(name, BERT): tensor for name, tensor in found.items() if not re.match(BERT_ASIDE, name)}
    if any(name.startswith("self_attn.") for name in found):  # one TransformerEncoderLayer
        found = {f"layers.0.{name}": tensor for name, tensor in found.items()}
    found = {
        re.sub(r"^norm\.", "final_norm.", name.replace(".self_attn.", ".attention.")): x for name, x in found.items()
    }
    return _unpacked(found)


def _renamed(name: str, table: Mapping[str, str]) -> str:
    for pattern, ours in table.items():
        if re.match(pattern, name):
            return re.sub(f"^{pattern}", ours, name)
    return name


def _unpacked(tensors: Tensors) -> Tensors:
    """``in_proj_weight`` of torch.nn.MultiheadAttention as three projections, and its other names as ours."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        packed = re.fullmatch(r"(.*?)in_proj_(weight|bias)", name)
        if packed:
            parts = dict(zip("qkv", tensor.chunk(3), strict=True))
            found |= {f"{packed[1]}{letter}_proj.{packed[2]}": part for letter, part in parts.items()}
        else:
            found[re.sub(r"([qkv]_proj)_weight$", r"\1.weight", name)] = tensor
    return found


def mapped(tensors: Mapping[str, Tensor], file: Path) -> Tensors:
    """The tensors a mapping file names, by our names: ``{"q_proj.weight": "query/kernel"}``.

    ``{"q_proj.weight": {"from": "query/kernel", "transpose": true}}`` turns a kernel [in, out], or [in, heads, d], or
    for out_proj [heads, d, out], into torch's [out, in]; a bias [heads, d] is flattened.

    Raises:
        CheckpointError: the file is no such mapping, or names a tensor that is not there.
    """
    try:
        mapping = json.loads(file.read_text())
        sources: dict[str, dict[str, Any]] = {
            ours: {"from": said} if isinstance(said, str) else dict(said) for ours, said in mapping.items()
        }
        missing = [str(said["from"]) for said in sources.values() if said["from"] not in tensors]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise CheckpointError(f'{file} is no mapping {{"our name": "their name"}}') from None
    if missing:
        raise CheckpointError(f"{file} names {', '.join(missing)}; the checkpoint has {', '.join(sorted(tensors))}")
    return {ours: _shaped(ours, tensors[said["from"]], said.get("transpose") is True) for ours, said in sources.items()}


def _shaped(ours: str, tensor: Tensor, transpose: bool) -> Tensor:
    if ours.endswith("bias"):
        return tensor.reshape(-1)
    if not transpose:
        return tensor
    flat = tensor.reshape(-1, tensor.shape[-1]) if "out_proj" in ours else tensor.reshape(tensor.shape[0], -1)
    return flat.T.contiguous()
