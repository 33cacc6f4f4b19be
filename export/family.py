"""A block out of a checkpoint: sizes are read off the tensors, what cannot be read is asked for by name.

A family is the blocks of one module: its configuration, how to read that from tensors, and how to make the block.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor, nn

from export.checkpoint import Checkpoint, CheckpointError
from models import additive, encoder, luong, multi_head
from models.additive import Additive, AdditiveConfig
from models.block import Block
from models.luong import LuongGeneral, LuongGeneralConfig
from models.multi_head import MultiHead, MultiHeadConfig
from models.transformer import Transformer, TransformerConfig

Tensors = Mapping[str, Tensor]
Fields = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """``fields(tensors, said)`` reads what it can, given what was ``said``; ``unreadable`` is what must be said."""

    config: type
    module: Callable[[Any], nn.Module]
    make: Callable[..., Block]
    fields: Callable[[Tensors, Fields], Fields]
    unreadable: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _multi_head(tensors: Tensors, said: Fields) -> Fields:
    query, key, value = (_shape(tensors, f"{letter}_proj.weight") for letter in "qkv")
    num_heads = said["num_heads"]
    if query[0] % num_heads:
        raise CheckpointError(f"q_proj.weight has {query[0]} rows, which {num_heads} heads do not divide")
    d_k = query[0] // num_heads
    num_kv_heads = max(1, key[0] // d_k)
    found = {
        "d_model": query[1], "kdim": key[1], "vdim": value[1], "d_k": d_k, "num_kv_heads": num_kv_heads,
        "d_v": value[0] // num_kv_heads, "bias": "q_proj.bias" in tensors, "out_proj": "out_proj.weight" in tensors,
    }  # fmt: skip
    if found["out_proj"]:
        found["d_out"] = _shape(tensors, "out_proj.weight")[0]
    return found


def _transformer(tensors: Tensors, _said: Fields) -> Fields:
    feed_forward = _shape(tensors, "layers.0.linear1.weight")
    rows = {
        field: tensors[f"embeddings.{name}.weight"].shape[0] if f"embeddings.{name}.weight" in tensors else 0
        for name, field in (("word", "vocab_size"), ("position", "max_positions"), ("token_type", "type_vocab_size"))
    }
    numbers = {int(found[1]) for name in tensors if (found := re.match(r"layers\.(\d+)\.", name))}
    return rows | {
        "d_model": feed_forward[1],
        "d_ff": feed_forward[0],
        "num_layers": max(numbers) + 1,
        "embedding_norm": "embedding_norm.weight" in tensors,
        "final_norm": "final_norm.weight" in tensors,
        "bias": "layers.0.linear1.bias" in tensors,
    }


def _additive(tensors: Tensors, _said: Fields) -> Fields:
    (d_a, d_q), d_k = _shape(tensors, "q_proj.weight"), _shape(tensors, "k_proj.weight")[1]
    return {"d_a": d_a, "d_q": d_q, "d_k": d_k, "bias": "k_proj.bias" in tensors}


def _luong_general(tensors: Tensors, _said: Fields) -> Fields:
    d_k, d_q = _shape(tensors, "q_proj.weight")
    return {"d_k": d_k, "d_q": d_q}


def _shape(tensors: Tensors, name: str) -> tuple[int, ...]:
    if name not in tensors:
        raise CheckpointError(f"there is no {name}; the checkpoint has {', '.join(sorted(tensors))}")
    if tensors[name].ndim != 2:
        raise CheckpointError(f"{name} should be a matrix [out, in], and has shape {list(tensors[name].shape)}")
    return tuple(tensors[name].shape)


def _heads(**fixed: Any) -> Family:
    unreadable = () if "num_heads" in fixed else ("num_heads",)
    return Family(MultiHeadConfig, MultiHead, multi_head.block, _multi_head, unreadable, fixed)


Encoder, Decoder = (partial(Transformer, is_causal=is_causal) for is_causal in (False, True))
UNREAD = ("num_heads", "norm", "activation")
FAMILIES: dict[str, Family] = {
    "projected": _heads(num_heads=1),
    "self_attention": _heads(num_heads=1, inputs="x"),
    "cross_attention": _heads(num_heads=1, inputs="x, memory"),
    "multi_head": _heads(),
    "multi_head_self_attention": _heads(inputs="x"),
    "grouped_query": _heads(inputs="x"),
    "multi_query": _heads(inputs="x"),
    "additive": Family(AdditiveConfig, Additive, additive.block, _additive, ("d_v",)),
    "luong_general": Family(LuongGeneralConfig, LuongGeneral, luong.block, _luong_general, ("d_v",)),
    "encoder": Family(TransformerConfig, Encoder, encoder.encoder, _transformer, UNREAD),
    "decoder": Family(TransformerConfig, Decoder, encoder.decoder, _transformer, UNREAD),
}


def from_checkpoint(
    kind: str, name: str, checkpoint: Checkpoint, tensors: Tensors, settings: Mapping[str, str]
) -> Block:
    """The block of family ``kind`` called ``name`` with these tensors, by our names, and these settings, as said.

    Raises:
        CheckpointError: something cannot be read and was not said, a setting is wrong, or tensors are unused, missing
            or of another shape.
    """
    if kind not in FAMILIES:
        raise CheckpointError(f"{kind} has no weights to import; these have: {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    said = dict(family.fixed) | _hugging_face(checkpoint.config) | parsed(family.config, settings)
    unsaid = [field for field in family.unreadable if field not in said]
    if unsaid:
        wanted = " ".join(f"--set {field}=..." for field in unsaid)
        raise CheckpointError(f"{kind}: {', '.join(unsaid)} cannot be read off the tensors; say {wanted}")
    try:
        config = family.config(**family.fields(tensors, said) | said)
    except ValueError as error:
        raise CheckpointError(f"{kind}: {error}") from None
    with torch.device("meta"):
        expected = {key: tuple(tensor.shape) for key, tensor in family.module(config).state_dict().items()}
    _hold(name, expected, tensors)
    digest = hashlib.sha256(checkpoint.path.read_bytes()).hexdigest()
    block = family.make(config, name=name, state=dict(tensors))
    return replace(block, weights=f"{checkpoint.path.name} sha256:{digest}")


def _hold(block: str, expected: Mapping[str, tuple[int, ...]], tensors: Tensors) -> None:
    """Hold the tensors against what the module needs, before torch does, to list everything at once."""
    wrong = [f"missing {name} {list(shape)}" for name, shape in expected.items() if name not in tensors]
    wrong += [f"unused {name} {list(x.shape)}" for name, x in tensors.items() if name not in expected]
    wrong += [
        f"{name} has shape {list(x.shape)}, expected {list(expected[name])}"
        for name, x in tensors.items()
        if name in expected and tuple(x.shape) != expected[name]
    ]
    if wrong:
        raise CheckpointError(f"{block}: the tensors do not fit:\n  " + "\n  ".join(wrong))


def _hugging_face(config: Mapping[str, Any]) -> Fields:
    """What a BERT's config.json says that its tensors do not."""
    if not config:
        return {}
    wanted = {"model_type": "bert", "position_embedding_type": "absolute", "is_decoder": False}
    for key, value in wanted.items():
        if config.get(key, value) != value:
            raise CheckpointError(f"config.json: {key} is {config[key]!r}; only {value!r} is known")
    return {
        "num_heads": config["num_attention_heads"],
        "activation": config["hidden_act"],
        "norm": "post",
        "layer_norm_eps": config["layer_norm_eps"],
    }


def parsed(config: type, settings: Mapping[str, str]) -> Fields:
    """``--set`` values in the types of the configuration's fields.

    Raises:
        CheckpointError: no such field, or no such value.
    """
    types = get_type_hints(config)
    found: Fields = {}
    for name, text in settings.items():
        if name not in types:
            raise CheckpointError(f"no setting {name!r}; there are {', '.join(types)}")
        of = types[name]
        try:
            if of is bool:
                found[name] = {"true": True, "false": False}[text.lower()]
            elif get_args(of):
                found[name] = {str(choice): choice for choice in get_args(of)}[text]
            else:
                found[name] = of(text)
        except (KeyError, ValueError):
            choices = ", ".join(map(str, get_args(of))) or of.__name__
            raise CheckpointError(f"{name} should be {choices}, got {text!r}") from None
    return found
