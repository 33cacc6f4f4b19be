"""What torch, transformers and others call fields, outputs and blocks, and what they are called here."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from service.messages import did_you_mean

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

    ``harmless`` values are no-ops, and so is true where the flag ``true_if`` of the offer is set.
    """

    ours: tuple[str, ...] = ()
    note: str = ""
    harmless: tuple[object, ...] = ()
    true_if: str = ""


def _by_alias(names: Mapping[str, str]) -> dict[str, str]:
    """Each foreign name with ours, of a table of our names with theirs."""
    return {alias: ours for ours, aliases in names.items() for alias in aliases.split()}


QUERY = ("query", "x", "text", "input_ids")
TABLE = {  # names -> what each of them is
    "q query_states query_layer qs": Foreign(QUERY),
    "k key_states key_layer ks": Foreign(("key", "memory", "x")),
    "v value_states value_layer vs": Foreign(("value", "memory", "x")),
    "x hidden_states inputs_embeds src embeddings query": Foreign(("x", *QUERY)),
    "key value encoder_hidden_states tgt": Foreign(("memory", "x")),
    "mask attn_masks src_mask tgt_mask": Foreign(("attn_mask", "attention_mask")),
    "attention_mask": Foreign(("attn_mask",), TOKENS_MASK),
    "attn_mask": Foreign(("attention_mask",), "attention_mask has 1 for each real token and 0 for padding"),
    "key_padding_mask src_key_padding_mask tgt_key_padding_mask padding_mask": Foreign(
        ("attn_mask", "nonpad_kv_seqlen", "attention_mask"), PADDING
    ),
    "causal use_causal_mask causal_mask is_decoder": Foreign(("is_causal",)),
    "sm_scale softmax_scale scaling scale_factor": Foreign(("scale",)),
    "soft_cap logits_soft_cap logit_softcap attn_logit_softcapping": Foreign(("softcap",)),
    "window_size sliding_window window local_window_size": Foreign(
        ("left_window_size",),
        "left_window_size counts keys before a query's own, right_window_size those behind; -1 = all",
    ),
    "past_key_values past_key_value layer_past kv_cache cache past": Foreign(
        ("past_key",), "past_key and past_value go together; POST /v1/memories stores keys and values here"
    ),
    "use_cache": Foreign((), 'ask for "present_key" and "present_value", or POST /v1/memories', (False,)),
    "seqlens seq_lens lengths valid_lens cache_seqlens cu_seqlens seqused_k": Foreign(
        ("nonpad_kv_seqlen",), "nonpad_kv_seqlen is the number of real keys of each row, of shape [batch]"
    ),
    "bias attention_bias position_bias score_mod": Foreign(("attn_bias", "attn_mask")),
    "position_ids positions": Foreign(("query_positions",)),
    "rope_base rotary_base": Foreign(("rope_theta",)),
    "num_heads n_heads nhead num_attention_heads embed_dim": Foreign(
        (), "sizes follow from the shapes: tensors are [batch, heads, m, d_k]"
    ),
    "dropout_p dropout attention_dropout": Foreign((), ALWAYS_ZERO, (0, 0.0)),
    "training": Foreign((), ALWAYS_ZERO.replace("send 0", "send false"), (False,)),
    "enable_gqa": Foreign((), "this block takes as many heads of key and value as of query", (False,), "groups_heads"),
    "need_weights output_attentions return_weights return_attention return_attn_probs": Foreign(
        (), WEIGHTS, (), "answers_weights"
    ),
    "output_hidden_states": Foreign((), 'list "hidden_states" among the outputs where a block has them', (False,)),
    "batch_first": Foreign((), LAYOUT, (True,)),
    "return_dict": Foreign((), "answers are JSON objects: leave it out", (True,)),
    "block model model_name": Foreign((), "the path names the block: leave it out"),
    "return_tensors": Foreign((), "answers are JSON: leave it out"),
    "padding": Foreign(
        (), "texts of a request are padded to the longest: leave it out, or send true", (True, "longest")
    ),
    "max_length": Foreign(("truncation",), "truncation true cuts texts at the model's length"),
    "top_k topk k_top": Foreign(("weights_top_k", "next_tokens")),
    "temperature top_p max_new_tokens max_tokens": Foreign(("next_tokens",), GENERATION),
    "texts prompt input inputs sentence sentences content": Foreign(("text",)),
    "ttl expires expires_in": Foreign(("ttl_seconds",)),
    "memory_id memories": Foreign(("memory",)),
    "keys k_cache": Foreign(("key",)),
    "values v_cache": Foreign(("value",)),
    "parameters options params": Foreign((), "options are fields beside the tensors"),
}
FIELDS = {name: foreign for names, foreign in TABLE.items() for name in names.split()}
OUTPUTS = _by_alias(
    {
        "weights": "attn_weights attentions attention attention_weights probs",
        "output": "attn_output last_hidden_state logits out context",
        "lse": "logsumexp softmax_lse",
        "scores": "attn_scores attention_scores qk",
        "present_key": "past_key_values key_cache",
        "embedding": "embeddings sentence_embedding pooler_output",
    }
)
BLOCKS = _by_alias(
    {
        "scaled_dot_product": "sdpa attention scaled_dot_product_attention flash_attention",
        "multi_head": "mha multihead multiheadattention",
        "grouped_query": "gqa",
        "multi_query": "mqa",
        "additive": "bahdanau",
        "luong_general": "luong",
    }
)


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
    if value is None or (value is True and foreign.true_if and getattr(offer, foreign.true_if)):
        return True
    return any(type(value) is type(harmless) and value == harmless for harmless in foreign.harmless)


def output_hint(name: str, offered: Collection[str]) -> str:
    """What may be meant by an unknown output, to follow what is wrong with it."""
    ours = OUTPUTS.get(name.lower())
    return f"; did you mean '{ours}'?" if ours in offered else did_you_mean(name, offered)


def block_hint(name: str, offered: Collection[str]) -> str:
    """What may be meant by an unknown block or model, to follow what is wrong with it."""
    ours = BLOCKS.get(name.lower().replace("_", "").replace("-", "")) or BLOCKS.get(name.lower())
    return f"; did you mean '{ours}'?" if ours in offered else did_you_mean(name, offered)
