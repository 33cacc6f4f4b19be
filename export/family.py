"""A block out of a checkpoint: sizes are read off the tensors, what cannot be read is asked for by name.

A family is the blocks of one module: its configuration, how to read that from tensors, and how to make the block.
Settings, config.json and tensors have to agree wherever two of them say the same thing.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor, nn

from export import hugging_face
from export.checkpoint import Checkpoint, CheckpointError
from export.naming import ATTENTION_STARTS, STACK_STARTS, Named, Tensors
from models import additive, encoder, luong, multi_head
from models.additive import Additive, AdditiveConfig
from models.block import Block
from models.luong import LuongGeneral, LuongGeneralConfig
from models.multi_head import MultiHead, MultiHeadConfig
from models.transformer import Transformer, TransformerConfig

Fields = dict[str, Any]

HINTS = {
    "norm": "post or pre",
    "activation": "relu or gelu",
    "layer_norm_eps": "1e-5 is torch's default, 1e-12 BERT's",
    "add_zero_attn": "false is torch's default",
    "model_type": "bert, or roberta, whose positions begin at pad_token_id + 1",
    "pad_token_id": "1 in published RoBERTas",
    "is_decoder": "true if it was trained to attend to earlier positions only",
}


@dataclass(frozen=True)
class Family:
    """``fields(named, said)`` reads what it can, given what was ``said``; ``unreadable`` is what must be said."""

    config: type
    module: Callable[[Any], nn.Module]
    make: Callable[..., Block]
    fields: Callable[[Named, Fields], Fields]
    unreadable: tuple[str, ...] = ()
    fixed: Fields = dataclasses.field(default_factory=dict)
    conventions: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # settings about the file, and their types
    starts: Sequence[str] = ATTENTION_STARTS
    key: str = "q_proj.weight"  # a tensor that every checkpoint of the family has


def _multi_head(named: Named, said: Fields) -> Fields:
    query, key, value = (_shape(named, f"{letter}_proj.weight") for letter in "qkv")
    num_heads = said["num_heads"]
    if num_heads < 1 or query[0] % num_heads:
        raise CheckpointError(
            f"{named.own('q_proj.weight')} gives queries {query[0]} numbers, which {num_heads} heads do not divide"
        )
    d_k = query[0] // num_heads
    num_kv_heads = max(1, key[0] // d_k)
    found = {
        "d_model": query[1], "kdim": key[1], "vdim": value[1], "d_k": d_k, "num_kv_heads": num_kv_heads,
        "d_v": value[0] // num_kv_heads, "bias": "q_proj.bias" in named.tensors,
        "out_proj": "out_proj.weight" in named.tensors,
    }  # fmt: skip
    if found["out_proj"]:
        found["d_out"] = _shape(named, "out_proj.weight")[0]
    return found


def _transformer(named: Named, _said: Fields) -> Fields:
    tensors = named.tensors
    feed_forward = _shape(named, "layers.0.linear1.weight")
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


def _additive(named: Named, _said: Fields) -> Fields:
    (d_a, d_q), d_k = _shape(named, "q_proj.weight"), _shape(named, "k_proj.weight")[1]
    return {"d_a": d_a, "d_q": d_q, "d_k": d_k, "bias": "k_proj.bias" in named.tensors}


def _luong_general(named: Named, _said: Fields) -> Fields:
    d_k, d_q = _shape(named, "q_proj.weight")
    return {"d_k": d_k, "d_q": d_q}


def _shape(named: Named, name: str) -> tuple[int, ...]:
    if name not in named.tensors:
        raise CheckpointError(f"there is no {name}; the checkpoint has {named.listed()}")
    shape = tuple(named.tensors[name].shape)
    if len(shape) != 2:
        raise CheckpointError(f"{named.own(name)} should be a matrix [out, in], and has shape {list(shape)}")
    return shape


def _heads(**fixed: Any) -> Family:
    unreadable = () if "num_heads" in fixed else ("num_heads",)
    conventions = {"add_zero_attn": bool}
    return Family(MultiHeadConfig, MultiHead, multi_head.block, _multi_head, unreadable, fixed, conventions)


def _stack(make: Callable[..., Block], is_causal: bool) -> Family:
    return Family(
        TransformerConfig,
        partial(Transformer, is_causal=is_causal),
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
    "encoder": _stack(encoder.encoder, is_causal=False),
    "decoder": _stack(encoder.decoder, is_causal=True),
}


def family_of(kind: str) -> Family:
    """The family of block ``kind``.

    Raises:
        CheckpointError: that block takes no weights.
    """
    if kind not in FAMILIES:
        raise CheckpointError(f"{kind} has no weights to import; these have: {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def from_checkpoint(kind: str, name: str, checkpoint: Checkpoint, named: Named, settings: Mapping[str, str]) -> Block:
    """The block of family ``kind`` called ``name`` with these tensors, by our names, and these settings, as said.

    Raises:
        CheckpointError: something cannot be read and was not said, a setting is wrong or contradicts the file, or
            tensors are unused, missing or of another shape.
    """
    family = family_of(kind)
    said = {"--set": parsed({**get_type_hints(family.config), **family.conventions}, settings)}
    if family.starts is STACK_STARTS:
        said |= _stack_facts(kind, checkpoint, named, said["--set"])
    elif family.config is MultiHeadConfig:
        said |= {"config.json": hugging_face.attention_fields(checkpoint.config), f"the block {kind}": family.fixed}
    fields = agreed(said)
    unsaid = [field for field in family.unreadable if field not in fields]
    if "add_zero_attn" in family.conventions and _is_torch_attention(named):
        unsaid += [] if "add_zero_attn" in fields else ["add_zero_attn"]
    if family.starts is STACK_STARTS:
        unsaid += hugging_face.questions(named, fields, kind == "decoder")
    _shape(named, family.key)  # before anything is asked about a file that is of something else
    if unsaid:
        raise CheckpointError(_question(kind, unsaid, named))
    if fields.get("add_zero_attn"):
        raise CheckpointError(
            f"{kind} has no add_zero_attn; say --set add_zero_attn=false, and send a past_key and a past_value of "
            "one row of zeros with each request: that is the same, with the added key first"
        )
    tensors = dict(named.tensors)
    if family.starts is STACK_STARTS:
        tensors = _stack_tensors(named, hugging_face.first_position(named, fields))
    read = family.fields(replace(named, tensors=tensors), fields)
    fields = agreed(said | {"the tensors": read})
    try:
        config = family.config(**{key: value for key, value in fields.items() if key not in family.conventions})
    except ValueError as error:
        raise CheckpointError(f"{kind}: {error}") from None
    with torch.device("meta"):
        expected = {key: tuple(tensor.shape) for key, tensor in family.module(config).state_dict().items()}
    _hold(name, expected, tensors, named)
    block = family.make(config, name=name, state=tensors)
    return replace(block, weights=f"{checkpoint.path.name} sha256:{checkpoint.digest()}")


def _is_torch_attention(named: Named) -> bool:
    """Whether torch.nn.MultiheadAttention saved these: nothing in its file tells whether it adds a zero key."""
    return any(re.search(r"(^|\.)(in_proj|q_proj)_weight$", theirs) for theirs in named.sources.values())


def _stack_facts(kind: str, checkpoint: Checkpoint, named: Named, settings: Fields) -> dict[str, Fields]:
    """What a BERT's configuration and its names say; of a decoder that it is causal, where somebody says so."""
    config = hugging_face.stack_fields(checkpoint.config)
    facts = {"config.json": config}
    if named.is_bert():
        facts["the names of the tensors"] = {"norm": "post"}
    if kind == "encoder" or "is_decoder" in {**config, **settings}:
        facts[f"the block {kind}"] = {"is_decoder": kind == "decoder"}
    return facts


def _stack_tensors(named: Named, first_position: int) -> dict[str, Tensor]:
    """Without the rows of the position table that no token takes; with zeros where norms have no bias."""
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
    """All fields of ``sources``, which are named by where they are from.

    Raises:
        CheckpointError: two say different things of one field.
    """
    fields: Fields = {}
    origins: dict[str, str] = {}
    for origin, said in sources.items():
        for field, value in said.items():
            if fields.setdefault(field, value) != value:
                raise CheckpointError(f"{field} is {fields[field]} by {origins[field]}, but {value} by {origin}")
            origins.setdefault(field, origin)
    return fields


def _question(kind: str, unsaid: Sequence[str], named: Named) -> str:
    wanted = " ".join(f"--set {field}=..." for field in unsaid)
    hints = "; ".join(f"{field}: {HINTS[field]}" for field in unsaid if field in HINTS)
    directory = ". Or give the model's directory, with its config.json" if named.is_bert() else ""
    explained = f" ({hints})" if hints else ""
    return f"{kind}: {', '.join(unsaid)} cannot be read off the tensors; say {wanted}{explained}{directory}"


def _hold(block: str, expected: Mapping[str, tuple[int, ...]], tensors: Tensors, named: Named) -> None:
    """Hold the tensors against what the module needs, before torch does, to list everything at once."""
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
    """``--set`` values in the types of the configuration's fields.

    Raises:
        CheckpointError: no such field, or no such value.
    """
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
