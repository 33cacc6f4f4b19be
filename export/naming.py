"""Tensor names: how torch, Hugging Face and others save what our modules call ``layers.0.attention.q_proj.weight``."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from export.checkpoint import CheckpointError, listed

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
# heads on top of the hidden states, and constants
BERT_IGNORED = r"(pooler|cls|classifier|qa_outputs|lm_head)\.|embeddings\.(position_ids|token_type_ids)$"

# Where a block begins in a file: what stands before the match is its prefix. The first pattern that matches decides.
ATTENTION_STARTS = (r"in_proj_weight|q_proj_weight|q_proj\.weight",)
STACK_STARTS = (
    re.escape(BERT_WORDS),
    r"layers\.0\.(?:self_attn|attention)\.(?:in_proj_weight|q_proj\.weight)",
    r"self_attn\.in_proj_weight",
)


@dataclass
class Named:
    """Tensors by our names; for messages, and for what a name tells, the file's own."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # our name -> the file's
    ignored: list[str] = field(default_factory=list)  # the file's names of what is no part of the block
    prefix: str = ""

    def add(self, ours: str, theirs: str, tensor: Tensor) -> None:
        """One more tensor.

        Raises:
            CheckpointError: there is one of that name.
        """
        if ours in self.tensors:
            raise CheckpointError(f"{self.sources[ours]} and {theirs} are both {ours}")
        self.tensors[ours], self.sources[ours] = tensor, theirs

    def own(self, ours: str) -> str:
        """The file's name, and ours where it says something else."""
        theirs = self.sources.get(ours, ours)
        return theirs if theirs.endswith(ours) else f"{theirs} (our {ours})"

    def listed(self) -> str:
        """The file's names, for a message."""
        return listed(sorted({*self.sources.values(), *self.ignored}))

    def is_bert(self) -> bool:
        """By its names; those of a RoBERTa are the same."""
        return any(theirs.endswith(BERT_WORDS) for theirs in self.sources.values())


def own_names(tensors: Tensors, starts: Sequence[str] = (), prefix: str | None = None) -> Named:
    """The tensors under ``prefix`` by our names, if they are of torch's or a BERT's modules; others keep theirs.

    Without a ``prefix`` it is what stands before ``starts``, where that is one place in the file.

    Raises:
        CheckpointError: nothing is under the prefix, or there are several places.
    """
    prefix = _found_prefix(tensors, starts) if prefix is None else _said_prefix(tensors, prefix)
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
        ours = re.sub(r"^norm\.", "final_norm.", f"{layer}{name}".replace(".self_attn.", ".attention."))
        _add_unpacked(named, ours, prefix + name, tensor)
    return named


def _said_prefix(tensors: Tensors, prefix: str) -> str:
    for said in (f"{prefix.removesuffix('.')}.", prefix):
        if any(name.startswith(said) for name in tensors):
            return said
    modules = sorted({name.rpartition(".")[0] for name in tensors} - {""})
    raise CheckpointError(f"no tensor's name begins with {prefix!r}; there are {listed(modules or sorted(tensors))}")


def _found_prefix(tensors: Tensors, starts: Sequence[str]) -> str:
    for start in starts:
        places = {match[1] or "" for name in tensors if (match := re.fullmatch(rf"(.*\.)?(?:{start})", name))}
        if "" in places:
            return ""
        if len(places) == 1:
            return places.pop()
        if places:
            which = listed(f"--prefix {place.removesuffix('.')}" for place in sorted(places))
            raise CheckpointError(f"several parts of the file fit; choose one: {which}")
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
    """``in_proj_weight`` of torch.nn.MultiheadAttention as three projections, and its other names as ours."""
    packed = re.fullmatch(r"(.*?)in_proj_(weight|bias)", ours)
    if not packed:
        named.add(re.sub(r"([qkv]_proj)_weight$", r"\1.weight", ours), theirs, tensor)
        return
    if not tensor.ndim or tensor.shape[0] % 3:
        raise CheckpointError(
            f"{theirs} has shape {list(tensor.shape)}; {ours} has the rows of query, key and value, a third each"
        )
    for letter, part in zip("qkv", tensor.chunk(3), strict=True):
        named.add(f"{packed[1]}{letter}_proj.{packed[2]}", theirs, part)


def mapped(tensors: Tensors, file: Path, prefix: str | None = None) -> Named:
    """The tensors a mapping file names, by our names: ``{"q_proj.weight": "query/kernel"}``.

    ``{"q_proj.weight": {"from": "query/kernel", "transpose": true}}`` turns a kernel [in, out], or [in, heads, d], or
    for out_proj [heads, d, out], into torch's [out, in]; a bias [heads, d] is flattened. ``in_proj_weight`` and
    ``in_proj_bias`` stand for query, key and value, packed. The file's names are those after ``prefix``.

    Raises:
        CheckpointError: the file is no such mapping, or names a tensor that is not there.
    """
    named = Named(prefix="" if prefix is None else _said_prefix(tensors, prefix))
    try:
        mapping = json.loads(file.read_text())
        sources: dict[str, dict[str, Any]] = {
            ours: {"from": said} if isinstance(said, str) else dict(said) for ours, said in mapping.items()
        }
        theirs = {ours: f"{named.prefix}{said['from']}" for ours, said in sources.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise CheckpointError(f'{file} is no mapping {{"our name": "their name"}}') from None
    _hold_names(file, theirs.values(), tensors)
    for ours, said in sources.items():
        tensor = _shaped(ours, tensors[theirs[ours]], said.get("transpose") is True)
        _add_unpacked(named, ours, theirs[ours], tensor)
    named.ignored = [name for name in tensors if name not in theirs.values()]
    return named


def _hold_names(file: Path, names: Iterable[str], tensors: Tensors) -> None:
    missing = [name for name in names if name not in tensors]
    if missing:
        raise CheckpointError(f"{file} names {listed(missing)}; the checkpoint has {listed(sorted(tensors))}")


def _shaped(ours: str, tensor: Tensor, transpose: bool) -> Tensor:
    if ours.endswith("bias"):
        return tensor.reshape(-1)
    if not transpose:
        return tensor
    flat = tensor.reshape(-1, tensor.shape[-1]) if "out_proj" in ours else tensor.reshape(tensor.shape[0], -1)
    return flat.T.contiguous()
