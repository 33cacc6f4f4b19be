"""Read from a Hugging Face config.json what cannot be read from the tensors: BERT, RoBERTa, or one attention."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from export.weights.checkpoint import CheckpointError
from export.weights.naming import Named

Fields = dict[str, Any]
ModelType = Literal["bert", "roberta", "xlm-roberta", "camembert"]
CONVENTIONS: dict[str, Any] = {"model_type": ModelType, "pad_token_id": int, "is_decoder": bool}
SIZES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "intermediate_size": "d_ff",
    "vocab_size": "vocab_size",
    "type_vocab_size": "type_vocab_size",
}
ROTARY = ("rope_theta", "rope_parameters", "rope_scaling", "rotary_dim", "rotary_pct", "rotary_emb_base")


def attention_fields(config: Mapping[str, Any]) -> Fields:
    """The fields of ``MultiHeadConfig`` in the config.json of a model of any type.

    Raises:
        CheckpointError: the model has rotary positions, which no block has.
    """
    rotary = [key for key in ROTARY if config.get(key)]
    if rotary:
        raise CheckpointError(f"config.json has {rotary[0]}: no block that takes weights has rotary positions")
    return {"num_heads": config["num_attention_heads"]} if "num_attention_heads" in config else {}


def stack_fields(config: Mapping[str, Any]) -> Fields:
    """The fields of ``TransformerConfig`` and ``CONVENTIONS`` in the config.json of a BERT or RoBERTa.

    If it has a model_type, absent values are the defaults of transformers.

    Raises:
        CheckpointError: it is another model, or its position embeddings are not absolute.
    """
    config = {key: value for key, value in config.items() if value is not None}
    if not config:
        return {}
    model_type = config.get("model_type")
    if model_type is not None and model_type not in get_args(ModelType):
        known = ", ".join(get_args(ModelType))
        raise CheckpointError(
            f"config.json: model_type is {model_type!r}; known are {known}; heed export hf exports others"
        )
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise CheckpointError(f"config.json: position_embedding_type is {positions!r}; only 'absolute' is known")
    if model_type is not None:
        defaults = {"num_attention_heads": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "is_decoder": False}
        config = {**defaults, "pad_token_id": 0 if model_type == "bert" else 1, **config}
    names = {"num_attention_heads": "num_heads", "hidden_act": "activation", "layer_norm_eps": "layer_norm_eps"} | SIZES
    names |= {name: name for name in CONVENTIONS}
    return {ours: config[theirs] for theirs, ours in names.items() if theirs in config}


def missing_settings(named: Named, fields: Fields, is_causal: bool) -> list[str]:
    """The names of ``CONVENTIONS`` that these tensors need and ``fields`` lacks."""
    if not named.is_bert():
        return []
    needed = ["model_type"]
    needed += ["pad_token_id"] if fields.get("model_type", "bert") != "bert" else []
    needed += ["is_decoder"] if is_causal else []
    return [name for name in needed if name not in fields]


def first_position(named: Named, fields: Fields) -> int:
    """The row of the position table for the first token: 0, or in a RoBERTa pad_token_id + 1.

    Raises:
        CheckpointError: the names of the tensors contradict the model type.
    """
    if not named.is_bert():
        return 0
    if fields["model_type"] != "bert":
        return int(fields["pad_token_id"]) + 1
    if named.prefix.endswith("roberta.") or any(name.startswith("lm_head.") for name in named.ignored):
        raise CheckpointError("model_type is 'bert', but the names of the tensors are a RoBERTa's: roberta., lm_head.")
    return 0
