"""Make a block from a checkpoint: sizes are read from the tensors, the user sets what cannot be read from them.

A family consists of the blocks of one torch module: it has their configuration, and functions that read it from tensors
and make a block. If several of settings, config.json and tensors give a field, their values must agree.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor, nn

from export.weights import hugging_face
from export.weights.checkpoint import Checkpoint, CheckpointError
from export.weights.hugging_face import Fields
from export.weights.naming import ATTENTION_STARTS, STACK_STARTS, Named, Tensors
from heed_options import nearest
from models import additive, cross_decoder, encoder, luong, multi_head
from models.additive import Additive, AdditiveConfig
from models.block import Block
from models.cross_decoder import CrossDecoder
from models.luong import LuongGeneral, LuongGeneralConfig
from models.multi_head import MultiHead, MultiHeadConfig
from models.transformer import Transformer, TransformerConfig

HINTS = {
    "norm": "post or pre",
    "activation": "relu or gelu",
    "layer_norm_eps": "1e-5 is torch's default, 1e-12 BERT's",
    "model_type": "bert, or roberta, whose positions begin at pad_token_id + 1",
    "pad_token_id": "1 in published RoBERTas",
    "is_decoder": "true if it was trained to attend to earlier positions only",
}


@dataclass(frozen=True)
class Family:
    """How to make a block of one kind from tensors.

    ``fields(named, known)`` reads fields of ``config`` from the tensors, given the ``known`` ones. The fields
    ``unreadable`` cannot be read and must be set.
    """

    config: type
    module: Callable[[Any], nn.Module]
    make: Callable[..., Block]
    fields: Callable[[Named, Fields], Fields]
    unreadable: tuple[str, ...] = ()
    fixed: Fields = dataclasses.field(default_factory=dict)
    conventions: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # other settings: name -> type
    starts: Sequence[str] = ATTENTION_STARTS
    key: str = "q_proj.weight"  # a tensor that every checkpoint of the family has


def _multi_head(named: Named, known: Fields) -> Fields:
    query, key, value = (_shape(named, f"{letter}_proj.weight") for letter in "qkv")
    num_heads = known["num_heads"]
    if num_heads < 1 or query[0] % num_heads:
        raise CheckpointError(
            f"{named.own('q_proj.weight')} has {query[0]} rows, which is not a multiple of num_heads {num_heads}"
        )
    d_k = query[0] // num_heads
    num_kv_heads = max(1, key[0] // d_k)
    fields = {
        "d_model": query[1], "kdim": key[1], "vdim": value[1], "d_k": d_k, "num_kv_heads": num_kv_heads,
        "d_v": value[0] // num_kv_heads, "bias": "q_proj.bias" in named.tensors,
        "out_proj": "out_proj.weight" in named.tensors,
    }  # fmt: skip
    if fields["out_proj"]:
        fields["d_out"] = _shape(named, "out_proj.weight")[0]
    return fields


def _transformer(named: Named, _known: Fields) -> Fields:
    tensors = named.tensors
    feed_forward = _shape(named, "layers.0.linear1.weight")
    rows = {
        field: tensors[f"embeddings.{name}.weight"].shape[0] if f"embeddings.{name}.weight" in tensors else 0
        for name, field in (("word", "vocab_size"), ("position", "max_positions"), ("token_type", "type_vocab_size"))
    }
    layers = {int(match[1]) for name in tensors if (match := re.match(r"layers\.(\d+)\.", name))}
    return rows | {
        "d_model": feed_forward[1],
        "d_ff": feed_forward[0],
        "num_layers": max(layers) + 1,
        "embedding_norm": "embedding_norm.weight" in tensors,
        "final_norm": "final_norm.weight" in tensors,
        "bias": "layers.0.linear1.bias" in tensors,
    }


def _additive(named: Named, _known: Fields) -> Fields:
    (d_a, d_q), d_k = _shape(named, "q_proj.weight"), _shape(named, "k_proj.weight")[1]
    return {"d_a": d_a, "d_q": d_q, "d_k": d_k, "bias": "k_proj.bias" in named.tensors}


def _luong_general(named: Named, _known: Fields) -> Fields:
    d_k, d_q = _shape(named, "q_proj.weight")
    return {"d_k": d_k, "d_q": d_q}


def _shape(named: Named, name: str) -> tuple[int, ...]:
    if name not in named.tensors:
        raise CheckpointError(f"there is no {name}; the checkpoint has {named.listed()}")
    shape = tuple(named.tensors[name].shape)
    if len(shape) != 2:
        raise CheckpointError(f"{named.own(name)} has shape {list(shape)}, expected a matrix [out, in]")
    return shape


def _heads(**fixed: Any) -> Family:
    unreadable = () if "num_heads" in fixed else ("num_heads",)
    conventions = {"add_zero_attn": bool}
    return Family(MultiHeadConfig, MultiHead, multi_head.block, _multi_head, unreadable, fixed, conventions)


def _stack(make: Callable[..., Block], module: Callable[[Any], nn.Module]) -> Family:
    return Family(
        TransformerConfig,
        module,
        make,
        _transformer,
        unreadable=("num_heads", "norm", "activation", "layer_norm_eps"),
        conventions=hugging_face.CONVENTIONS,
        starts=STACK_STARTS,
        key="layers.0.linear1.weight",
    )


FAMILIES: dict[str, Family] = {
    "projected": _heads(num_heads=1),
    "self_attention": _heads(num_heads=1, inputs="x"),
    "cross_attention": _heads(num_heads=1, inputs="x, memory"),
    "multi_head": _heads(),
    "multi_head_self_attention": _heads(inputs="x"),
    "grouped_query": _heads(inputs="x"),
    "multi_query": _heads(inputs="x", num_kv_heads=1),
    "additive": Family(AdditiveConfig, Additive, additive.block, _additive, ("d_v",)),
    "luong_general": Family(LuongGeneralConfig, LuongGeneral, luong.block, _luong_general, ("d_v",)),
    "encoder": _stack(encoder.encoder, partial(Transformer, is_causal=False)),
    "decoder": _stack(encoder.decoder, partial(Transformer, is_causal=True)),
    "cross_decoder": _stack(cross_decoder.cross_decoder, CrossDecoder),
}


def family_of(kind: str) -> Family:
    """The family of block ``kind``.

    Raises:
        CheckpointError: the block is unknown, or has no weights.
    """
    if kind not in FAMILIES:
        raise CheckpointError(f"{kind} has no weights to import; these have: {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def from_checkpoint(kind: str, name: str, checkpoint: Checkpoint, named: Named, settings: Mapping[str, str]) -> Block:
    """A block ``name`` of the kind ``kind``, with the tensors ``named`` of ``checkpoint`` and the user's ``settings``.

    Raises:
        CheckpointError: a setting is missing, wrong or contradicts the file, or tensors are unused, missing or of
            another shape.
    """
    family = family_of(kind)
    sources = {"--set": parsed({**get_type_hints(family.config), **family.conventions}, settings)}
    if family.config is TransformerConfig:
        sources |= _stack_sources(kind, checkpoint, named, sources["--set"])
    elif family.config is MultiHeadConfig:
        config_json = hugging_face.attention_fields(checkpoint.config)
        sources |= {"config.json": config_json, f"the block {kind}": family.fixed}
    fields = agreed(sources)
    missing = [field for field in family.unreadable if field not in fields]
    if family.config is TransformerConfig:
        missing += hugging_face.missing_settings(named, fields, kind == "decoder")
    try:
        _shape(named, family.key)  # first, so that a file of another module is reported as such
    except CheckpointError as error:
        whole = f"; to export the whole model: heed export hf {checkpoint.path.parent}" if checkpoint.config else ""
        raise CheckpointError(f"{error}{whole}") from None
    if missing:
        raise CheckpointError(_missing_message(kind, missing, named))
    if fields.get("add_zero_attn"):
        raise CheckpointError(
            f"{kind} does not support add_zero_attn; use --set add_zero_attn=false, and send a past_key and a "
            "past_value of one row of zeros with each request: that is the same, with the added key first"
        )
    tensors = dict(named.tensors)
    if family.config is TransformerConfig:
        tensors = _stack_tensors(named, hugging_face.first_position(named, fields))
    read = family.fields(replace(named, tensors=tensors), fields)
    fields = agreed(sources | {"the tensors": read})
    try:
        config = family.config(**{key: value for key, value in fields.items() if key not in family.conventions})
    except ValueError as error:
        raise CheckpointError(f"{kind}: {error}") from None
    with torch.device("meta"):
        expected = {key: tuple(tensor.shape) for key, tensor in family.module(config).state_dict().items()}
    _check_shapes(name, expected, tensors, named)
    block = family.make(config, name=name, state=tensors)
    return replace(block, weights=f"{checkpoint.path.name} sha256:{checkpoint.digest()}")


def _stack_sources(kind: str, checkpoint: Checkpoint, named: Named, settings: Fields) -> dict[str, Fields]:
    """Fields from config.json, from the tensors' names, and from the kind of block, by their source.

    A decoder block sets ``is_decoder`` only if another source does, too: else the user is asked to confirm it.
    """
    config = hugging_face.stack_fields(checkpoint.config)
    sources = {"config.json": config}
    if named.is_bert():
        sources["the names of the tensors"] = {"norm": "post"}
    if kind == "encoder" or "is_decoder" in {**config, **settings}:
        sources[f"the block {kind}"] = {"is_decoder": kind == "decoder"}
    return sources


def _stack_tensors(named: Named, first_position: int) -> dict[str, Tensor]:
    """The tensors without the rows of the position table before ``first_position``, and with zeros for absent biases.

    A module without biases has none in its norms either, but our norms always have them.
    """
    tensors = dict(named.tensors)
    if first_position:
        table = tensors["embeddings.position.weight"]
        if len(table) <= first_position:
            raise CheckpointError(
                f"{named.own('embeddings.position.weight')} has {len(table)} rows; positions begin at {first_position}"
            )
        tensors["embeddings.position.weight"] = table[first_position:].clone()
    if "layers.0.linear1.bias" not in tensors:
        norms = [name for name in tensors if re.search(r"norm\d?\.weight$", name)]
        zeros = {re.sub("weight$", "bias", name): torch.zeros_like(tensors[name]) for name in norms}
        tensors = zeros | tensors
    return tensors


def agreed(sources: Mapping[str, Fields]) -> Fields:
    """The fields of all ``sources``, which are keyed by a name for messages.

    Raises:
        CheckpointError: two sources have different values of one field.
    """
    fields: Fields = {}
    origins: dict[str, str] = {}
    for origin, given in sources.items():
        for field, value in given.items():
            if fields.setdefault(field, value) != value:
                raise CheckpointError(f"{field} is {fields[field]} by {origins[field]}, but {value} by {origin}")
            origins.setdefault(field, origin)
    return fields


def _missing_message(kind: str, missing: Sequence[str], named: Named) -> str:
    settings = " ".join(f"--set {field}=..." for field in missing)
    hints = "; ".join(f"{field}: {HINTS[field]}" for field in missing if field in HINTS)
    directory = ". Or give the model's folder, with its config.json" if named.is_bert() else ""
    explained = f" ({hints})" if hints else ""
    return f"{kind}: {', '.join(missing)} cannot be inferred from the tensors; pass {settings}{explained}{directory}"


def _check_shapes(block: str, expected: Mapping[str, tuple[int, ...]], tensors: Tensors, named: Named) -> None:
    """Compare the tensors with those of the module, and report all differences at once."""
    wrong = [f"missing {name} {list(shape)}" for name, shape in expected.items() if name not in tensors]
    wrong += [f"unused {named.own(name)} {list(x.shape)}" for name, x in tensors.items() if name not in expected]
    wrong += [
        f"{named.own(name)} has shape {list(x.shape)}, expected {list(expected[name])}"
        for name, x in tensors.items()
        if name in expected and tuple(x.shape) != expected[name]
    ]
    if wrong:
        raise CheckpointError(f"{block}: the tensors do not fit:\n  " + "\n  ".join(wrong))


def parsed(types: Mapping[str, Any], settings: Mapping[str, str]) -> Fields:
    """The values of ``--set``, converted to ``types``.

    Raises:
        CheckpointError: the setting is unknown, or the value is not of its type.
    """
    fields: Fields = {}
    for name, text in settings.items():
        if name not in types:
            others = f"; there are {', '.join(types)}"
            raise CheckpointError(f"--set {name}: unknown setting{nearest(name, types) or others}")
        kind = types[name]
        try:
            if kind is bool:
                fields[name] = {"true": True, "false": False}[text.lower()]
            elif get_args(kind):
                fields[name] = {str(choice): choice for choice in get_args(kind)}[text]
            else:
                fields[name] = kind(text)
        except (KeyError, ValueError):
            choices = ", ".join(map(str, get_args(kind))) or kind.__name__
            raise CheckpointError(f"{name} should be {choices}, got {text!r}") from None
    return fields
