"""What torch, transformers and others call fields, outputs and blocks, and what they are called here."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from service.wording import did_you_mean

ALWAYS_ZERO = "nothing is dropped in inference: leave it out, or send 0"
LAYOUT = "axes are [batch, heads, m, d_k], the batch first: leave it out, or send true"
WEIGHTS = 'the weights are among the outputs: "outputs": ["output", "weights"] has them, ["output"] has not'
PADDING = (
    "attn_mask is true where a query may attend, the inverse of torch's mask, of shape [batch, 1, 1, n]; "
    "nonpad_kv_seqlen is the number of real keys of each row"
)
TOKENS_MASK = (
    "attention_mask is of models that take tokens; attn_mask is true where a query may attend, or is added to the "
    "scores, and broadcasts to [batch, heads, m, n]"
)
GENERATION = "no text is generated here; next_tokens: 5 answers the 5 most probable next tokens of each text"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a request may have, and what its block does."""

    fields: Collection[str]
    groups_heads: bool = False  # several heads of the query may share one of the keys
    answers_weights: bool = True  # the request asks for the weights, or for the default outputs


@dataclass(frozen=True, slots=True)
class Foreign:
    """A foreign name: what may be meant, the first of which that is offered counts; and what else there is to know.

    ``is_harmless`` tells values that ask for what is done anyway.
    """

    ours: tuple[str, ...] = ()
    note: str = ""
    is_harmless: Callable[[Any, Offer], bool] | None = None


def _zero(value: Any, _: Offer) -> bool:
    return type(value) in (int, float) and value == 0


def _true(value: Any, _: Offer) -> bool:
    return value is True


def _false(value: Any, _: Offer) -> bool:
    return value is False


def _grouping(value: Any, offer: Offer) -> bool:
    return value is False or (value is True and offer.groups_heads)


def _weights(value: Any, offer: Offer) -> bool:
    return value is True and offer.answers_weights


def _pads(value: Any, _: Offer) -> bool:
    return value is True or value == "longest"


QUERY = ("query", "x", "text", "input_ids")
FIELDS: dict[str, Foreign] = {
    **dict.fromkeys(("q", "query_states", "query_layer", "qs"), Foreign(QUERY)),
    **dict.fromkeys(("k", "key_states", "key_layer", "ks"), Foreign(("key", "memory", "x"))),
    **dict.fromkeys(("v", "value_states", "value_layer", "vs"), Foreign(("value", "memory", "x"))),
    **dict.fromkeys(("x", "hidden_states", "inputs_embeds", "src", "embeddings", "query"), Foreign(("x", *QUERY))),
    **dict.fromkeys(("key", "value", "encoder_hidden_states", "tgt"), Foreign(("memory", "x"))),
    **dict.fromkeys(("mask", "attn_masks", "src_mask", "tgt_mask"), Foreign(("attn_mask", "attention_mask"))),
    "attention_mask": Foreign(("attn_mask",), TOKENS_MASK),
    "attn_mask": Foreign(("attention_mask",), "attention_mask has 1 for each real token and 0 for padding"),
    **dict.fromkeys(
        ("key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask", "padding_mask"),
        Foreign(("attn_mask", "nonpad_kv_seqlen", "attention_mask"), PADDING),
    ),
    **dict.fromkeys(("causal", "use_causal_mask", "causal_mask", "is_decoder"), Foreign(("is_causal",))),
    **dict.fromkeys(("sm_scale", "softmax_scale", "scaling", "scale_factor"), Foreign(("scale",))),
    **dict.fromkeys(("soft_cap", "logits_soft_cap", "logit_softcap", "attn_logit_softcapping"), Foreign(("softcap",))),
    **dict.fromkeys(
        ("window_size", "sliding_window", "window", "local_window_size"),
        Foreign(
            ("left_window_size",),
            "left_window_size counts keys before a query's own, right_window_size those behind; -1 = all",
        ),
    ),
    **dict.fromkeys(
        ("past_key_values", "past_key_value", "layer_past", "kv_cache", "cache", "past"),
        Foreign(("past_key",), "past_key and past_value go together; POST /v1/memories stores keys and values here"),
    ),
    "use_cache": Foreign((), 'ask for "present_key" and "present_value", or POST /v1/memories', _false),
    **dict.fromkeys(
        ("seqlens", "seq_lens", "lengths", "valid_lens", "cache_seqlens", "cu_seqlens", "seqused_k"),
        Foreign(("nonpad_kv_seqlen",), "nonpad_kv_seqlen is the number of real keys of each row, of shape [batch]"),
    ),
    **dict.fromkeys(("bias", "attention_bias", "position_bias", "score_mod"), Foreign(("attn_bias", "attn_mask"))),
    **dict.fromkeys(("position_ids", "positions"), Foreign(("query_positions",))),
    **dict.fromkeys(("rope_base", "rotary_base"), Foreign(("rope_theta",))),
    **dict.fromkeys(
        ("num_heads", "n_heads", "nhead", "num_attention_heads", "embed_dim"),
        Foreign((), "sizes follow from the shapes: tensors are [batch, heads, m, d_k]"),
    ),
    **dict.fromkeys(("dropout_p", "dropout", "attention_dropout"), Foreign((), ALWAYS_ZERO, _zero)),
    "training": Foreign((), ALWAYS_ZERO.replace("send 0", "send false"), _false),
    "enable_gqa": Foreign((), "this block takes as many heads of key and value as of query", _grouping),
    **dict.fromkeys(
        ("need_weights", "output_attentions", "return_weights", "return_attention", "return_attn_probs"),
        Foreign((), WEIGHTS, _weights),
    ),
    "output_hidden_states": Foreign((), 'list "hidden_states" among the outputs where a block has them', _false),
    "batch_first": Foreign((), LAYOUT, _true),
    "return_dict": Foreign((), "answers are JSON objects: leave it out", _true),
    **dict.fromkeys(("block", "model", "model_name"), Foreign((), "the path names the block: leave it out")),
    "return_tensors": Foreign((), "answers are JSON: leave it out"),
    "padding": Foreign((), "texts of a request are padded to the longest: leave it out, or send true", _pads),
    "max_length": Foreign(("truncation",), "truncation true cuts texts at the model's length"),
    **dict.fromkeys(("top_k", "topk", "k_top"), Foreign(("weights_top_k", "next_tokens"))),
    **dict.fromkeys(("temperature", "top_p", "max_new_tokens", "max_tokens"), Foreign(("next_tokens",), GENERATION)),
    **dict.fromkeys(("texts", "prompt", "input", "inputs", "sentence", "sentences", "content"), Foreign(("text",))),
    **dict.fromkeys(("ttl", "expires", "expires_in"), Foreign(("ttl_seconds",))),
    **dict.fromkeys(("memory_id", "memories"), Foreign(("memory",))),
    **dict.fromkeys(("keys", "k_cache"), Foreign(("key",))),
    **dict.fromkeys(("values", "v_cache"), Foreign(("value",))),
    **dict.fromkeys(("parameters", "options", "params"), Foreign((), "options are fields beside the tensors")),
}
OUTPUTS = {
    **dict.fromkeys(("attn_weights", "attentions", "attention", "attention_weights", "probs"), "weights"),
    **dict.fromkeys(("attn_output", "last_hidden_state", "logits", "out", "context"), "output"),
    **dict.fromkeys(("logsumexp", "softmax_lse"), "lse"),
    **dict.fromkeys(("attn_scores", "attention_scores", "qk"), "scores"),
    **dict.fromkeys(("past_key_values", "key_cache"), "present_key"),
    **dict.fromkeys(("embeddings", "sentence_embedding", "pooler_output"), "embedding"),
}
BLOCKS = {
    **dict.fromkeys(("sdpa", "attention", "scaled_dot_product_attention", "flash_attention"), "scaled_dot_product"),
    **dict.fromkeys(("mha", "multihead", "multiheadattention"), "multi_head"),
    "gqa": "grouped_query",
    "mqa": "multi_query",
    "bahdanau": "additive",
    "luong": "luong_general",
}


def field_hint(name: str, offer: Offer) -> str:
    """What a client may have meant by the unknown field ``name``, to follow ``unknown field``; empty if unknown."""
    foreign = FIELDS.get(name) or FIELDS.get(name.lower())
    if foreign is None:
        return did_you_mean(name, offer.fields)
    ours = next((field for field in foreign.ours if field in offer.fields), None)
    if ours is None and foreign.ours:
        return did_you_mean(name, offer.fields)
    meant = f"; did you mean '{ours}'?" if ours else ";"
    return f"{meant} {foreign.note}" if foreign.note else meant


def foreign_ours(name: str) -> tuple[str, ...]:
    """What may be meant by a foreign name, offered or not."""
    foreign = FIELDS.get(name)
    return foreign.ours if foreign else ()


def is_harmless(name: str, value: Any, offer: Offer) -> bool:
    """Whether one of ``FIELDS`` asks for what is done anyway: nothing, by null, or what is done to every request."""
    foreign = FIELDS[name]
    return value is None or (foreign.is_harmless is not None and foreign.is_harmless(value, offer))


def output_hint(name: str, offered: Collection[str]) -> str:
    """What may be meant by an unknown output, to follow what is wrong with it."""
    ours = OUTPUTS.get(name.lower())
    return f"; did you mean '{ours}'?" if ours in offered else did_you_mean(name, offered)


def block_hint(name: str, offered: Collection[str]) -> str:
    """What may be meant by an unknown block or model, to follow what is wrong with it."""
    ours = BLOCKS.get(name.lower().replace("_", "").replace("-", "")) or BLOCKS.get(name.lower())
    return f"; did you mean '{ours}'?" if ours in offered else did_you_mean(name, offered)
