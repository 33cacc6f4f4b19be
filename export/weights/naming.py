"""Rename tensors from the names of torch, Hugging Face and others to those of our modules.

"Our" names are those of the modules in ``models``, such as ``layers.0.attention.q_proj.weight``.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from export.weights.checkpoint import CheckpointError, listed, not_finite

Tensors = Mapping[str, Tensor]

BERT_WORDS = "embeddings.word_embeddings.weight"
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
TENSORFLOW = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
# Task-specific layers on top of the hidden states, and constants.
BERT_IGNORED = r"(pooler|cls|classifier|qa_outputs|lm_head)\.|embeddings\.(position_ids|token_type_ids)$"

# Patterns of a block's first tensor: the part of its name before the match is the prefix. The first match is used.
ATTENTION_STARTS = (r"in_proj_weight|q_proj_weight|q_proj\.weight",)
STACK_STARTS = (
    re.escape(BERT_WORDS),
    r"layers\.0\.(?:self_attn|attention)\.(?:in_proj_weight|q_proj\.weight)",
    r"self_attn\.in_proj_weight",
)


@dataclass
class Named:
    """Tensors by our names, with the names in the file."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # our name -> the name in the file
    ignored: list[str] = field(default_factory=list)  # names in the file of tensors that the block does not have
    prefix: str = ""

    def add(self, ours: str, theirs: str, tensor: Tensor) -> None:
        """Add a tensor.

        Raises:
            CheckpointError: there is one of that name already, or it has a number that is not finite.
        """
        if fault := not_finite(tensor):
            raise CheckpointError(f"{theirs} contains {fault}")
        if ours in self.tensors:
            raise CheckpointError(f"{self.sources[ours]} and {theirs} are both {ours}")
        self.tensors[ours], self.sources[ours] = tensor, theirs

    def own(self, ours: str) -> str:
        """The name in the file, for a message; with our name if they differ."""
        theirs = self.sources.get(ours, ours)
        return theirs if theirs.endswith(ours) else f"{theirs} (our {ours})"

    def listed(self) -> str:
        """The names in the file, for a message."""
        return listed(sorted({*self.sources.values(), *self.ignored}))

    def is_bert(self) -> bool:
        """Whether the names are those of BERT, which RoBERTa shares."""
        return any(theirs.endswith(BERT_WORDS) for theirs in self.sources.values())


def own_names(tensors: Tensors, starts: Sequence[str] = (), prefix: str | None = None) -> Named:
    """Rename the tensors under ``prefix`` from torch's or BERT's names to ours; other names are kept.

    Without ``prefix``, it is the part of a name before ``starts``, if only one such part is in the file.

    Raises:
        CheckpointError: there is no tensor under the prefix, or there are several prefixes.
    """
    prefix = _detect_prefix(tensors, starts) if prefix is None else _check_prefix(tensors, prefix)
    named = Named(prefix=prefix, ignored=[name for name in tensors if not name.startswith(prefix)])
    inside = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if BERT_WORDS in inside:
        for name, tensor in inside.items():
            if re.match(BERT_IGNORED, name):
                named.ignored.append(prefix + name)
            else:
                named.add(_renamed(name, BERT), prefix + name, tensor)
        return named
    layer = "layers.0." if any(name.startswith("self_attn.") for name in inside) else ""  # one TransformerEncoderLayer
    for name, tensor in inside.items():
        ours = f"{layer}{name}".replace(".self_attn.", ".attention.").replace(".multihead_attn.", ".cross_attention.")
        ours = re.sub(r"^norm\.", "final_norm.", ours)
        _add_unpacked(named, ours, prefix + name, tensor)
    return named


def _check_prefix(tensors: Tensors, prefix: str) -> str:
    for candidate in (f"{prefix.removesuffix('.')}.", prefix):
        if any(name.startswith(candidate) for name in tensors):
            return candidate
    modules = sorted({name.rpartition(".")[0] for name in tensors} - {""})
    raise CheckpointError(f"no tensor's name begins with {prefix!r}; there are {listed(modules or sorted(tensors))}")


def _detect_prefix(tensors: Tensors, starts: Sequence[str]) -> str:
    for start in starts:
        prefixes = {match[1] or "" for name in tensors if (match := re.fullmatch(rf"(.*\.)?(?:{start})", name))}
        if "" in prefixes:
            return ""
        if len(prefixes) == 1:
            return prefixes.pop()
        if prefixes:
            choices = listed(f"--prefix {prefix.removesuffix('.')}" for prefix in sorted(prefixes))
            raise CheckpointError(f"several parts of the file fit; choose one: {choices}")
    return ""


def _renamed(name: str, table: Mapping[str, str]) -> str:
    for ending, ours in TENSORFLOW.items():
        if name.endswith(ending):
            name = name.removesuffix(ending) + ours
    for pattern, ours in table.items():
        if re.match(pattern, name):
            return re.sub(f"^{pattern}", ours, name)
    return name


def _add_unpacked(named: Named, ours: str, theirs: str, tensor: Tensor) -> None:
    """Add a tensor of torch.nn.MultiheadAttention; ``in_proj_weight`` and ``in_proj_bias`` are split into three."""
    packed = re.fullmatch(r"(.*?)in_proj_(weight|bias)", ours)
    if not packed:
        named.add(re.sub(r"([qkv]_proj)_weight$", r"\1.weight", ours), theirs, tensor)
        return
    if not tensor.ndim or tensor.shape[0] % 3:
        raise CheckpointError(
            f"{theirs} has shape {list(tensor.shape)}; expected the rows of query, key and value, a third each"
        )
    for letter, part in zip("qkv", tensor.chunk(3), strict=True):
        named.add(f"{packed[1]}{letter}_proj.{packed[2]}", theirs, part)


def mapped(tensors: Tensors, file: Path, prefix: str | None = None) -> Named:
    """Rename tensors by a JSON file from our names to those in the checkpoint: ``{"q_proj.weight": "query/kernel"}``.

    ``{"q_proj.weight": {"from": "query/kernel", "transpose": true}}`` also turns a kernel [in, out], or [in, heads, d],
    or for out_proj [heads, d, out], into torch's [out, in]; a bias [heads, d] is flattened. ``in_proj_weight`` and
    ``in_proj_bias`` mean query, key and value in one tensor. ``prefix`` is added to the names in the checkpoint.

    Raises:
        CheckpointError: the file is no such mapping, or the checkpoint has no such tensor.
    """
    named = Named(prefix="" if prefix is None else _check_prefix(tensors, prefix))
    try:
        mapping = json.loads(file.read_text())
        sources: dict[str, dict[str, Any]] = {
            ours: {"from": entry} if isinstance(entry, str) else dict(entry) for ours, entry in mapping.items()
        }
        theirs = {ours: f"{named.prefix}{entry['from']}" for ours, entry in sources.items()}
    except FileNotFoundError:
        raise CheckpointError(f"no such file: {file}") from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise CheckpointError(f'{file} is not a mapping {{"our name": "their name"}}') from None
    _require_names(file, theirs.values(), tensors)
    for ours, entry in sources.items():
        tensor = _reshaped(ours, tensors[theirs[ours]], entry.get("transpose") is True)
        _add_unpacked(named, ours, theirs[ours], tensor)
    named.ignored = [name for name in tensors if name not in theirs.values()]
    return named


def _require_names(file: Path, names: Iterable[str], tensors: Tensors) -> None:
    missing = [name for name in names if name not in tensors]
    if missing:
        raise CheckpointError(f"{file} names {listed(missing)}; the checkpoint has {listed(sorted(tensors))}")


def _reshaped(ours: str, tensor: Tensor, transpose: bool) -> Tensor:
    """The tensor in torch's shape, as ``mapped`` says."""
    if ours.endswith("bias"):
        return tensor.reshape(-1)
    if not transpose:
        return tensor
    flat = tensor.reshape(-1, tensor.shape[-1]) if "out_proj" in ours else tensor.reshape(tensor.shape[0], -1)
    return flat.T.contiguous()
