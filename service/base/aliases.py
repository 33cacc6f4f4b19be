"""Aliases: the names of fields, outputs and blocks in torch, transformers and other libraries."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from service.base.messages import did_you_mean


@dataclass(frozen=True, slots=True)
class Alias:
    """A name that other libraries have for a field.

    ``fields`` are the fields that it may mean: the first one that a request accepts counts. The ``note`` is said where
    that is the field ``note_for``, always if this is empty. ``no_ops`` are values that change nothing, and so does true
    under the condition ``true_if``.
    """

    fields: tuple[str, ...] = ()
    note: str = ""
    no_ops: tuple[object, ...] = ()
    true_if: str = ""
    note_for: str = ""


QUERY = ("query", "x", "text", "input_ids")
ALWAYS_ZERO = "there is no dropout in inference: leave it out, or send "
GENERATES = "POST /v1/generate continues a text; next_tokens: 5 returns the 5 most probable next tokens of each text"
TABLE = {  # aliases -> their meaning
    "q query_states query_layer qs": Alias(QUERY),
    "k key_states key_layer ks": Alias(("key", "memory", "x")),
    "v value_states value_layer vs": Alias(("value", "memory", "x")),
    "x hidden_states inputs_embeds src embeddings query": Alias(("x", *QUERY)),
    "key value encoder_hidden_states tgt": Alias(("memory", "x")),
    "mask attn_masks src_mask tgt_mask": Alias(("attn_mask", "attention_mask")),
    "attention_mask": Alias(
        ("attn_mask",),
        "attention_mask is for models that take tokens; attn_mask is true where a query may attend, or is added to the "
        "scores, and broadcasts to [batch, heads, m, n]",
    ),
    "attn_mask": Alias(("attention_mask",), "attention_mask has 1 for each real token and 0 for padding"),
    "key_padding_mask src_key_padding_mask tgt_key_padding_mask padding_mask": Alias(
        ("attn_mask", "nonpad_kv_seqlen", "attention_mask"),
        "attn_mask is true where a query may attend, the inverse of torch's mask, of shape [batch, 1, 1, n]; "
        "nonpad_kv_seqlen is the number of real keys of each row",
    ),
    "causal use_causal_mask causal_mask is_decoder": Alias(("is_causal",)),
    "sm_scale softmax_scale scaling scale_factor": Alias(("scale",)),
    "soft_cap logits_soft_cap logit_softcap attn_logit_softcapping": Alias(("softcap",)),
    "window_size sliding_window window local_window_size": Alias(
        ("left_window_size",),
        "left_window_size counts keys before a query's own, right_window_size those after it; -1 = all",
    ),
    "past_key_values past_key_value layer_past kv_cache cache past": Alias(
        ("past_key",), "past_key and past_value go together; POST /v1/memories stores keys and values"
    ),
    "use_cache": Alias((), 'ask for "present_key" and "present_value", or POST /v1/memories', (False,)),
    "seqlens seq_lens lengths valid_lens cache_seqlens cu_seqlens seqused_k": Alias(
        ("nonpad_kv_seqlen",), "nonpad_kv_seqlen is the number of real keys of each row, of shape [batch]"
    ),
    "bias attention_bias position_bias score_mod": Alias(("attn_bias", "attn_mask")),
    "position_ids positions": Alias(("query_positions",)),
    "rope_base rotary_base": Alias(("rope_theta",)),
    "num_heads n_heads nhead num_attention_heads embed_dim": Alias(
        (), "sizes follow from the shapes: tensors are [batch, heads, m, d_k]"
    ),
    "dropout_p dropout attention_dropout": Alias((), ALWAYS_ZERO + "0", (0, 0.0)),
    "training": Alias((), ALWAYS_ZERO + "false", (False,)),
    "enable_gqa": Alias((), "in this block key and value have as many heads as query", (False,), "groups_heads"),
    "need_weights output_attentions return_weights return_attention return_attn_probs": Alias(
        (),
        '"outputs": ["output", "weights"] returns the weights, ["output"] does not',
        true_if="answers_weights",
    ),
    "output_hidden_states": Alias((), 'list "hidden_states" among the outputs where a block has them', (False,)),
    "batch_first": Alias((), "axes are [batch, heads, m, d_k], the batch first: leave it out, or send true", (True,)),
    "return_dict": Alias((), "answers are JSON objects: leave it out", (True,)),
    "block model model_name": Alias((), "the path names the block: leave it out"),
    "return_tensors": Alias((), "answers are JSON: leave it out"),
    "padding": Alias((), "texts of a request are padded to the longest: leave it out, or send true", (True, "longest")),
    "max_length": Alias(
        ("max_new_tokens", "truncation"), "truncation true cuts texts at the model's length", note_for="truncation"
    ),
    "top_k topk k_top": Alias(("weights_top_k", "next_tokens")),
    "max_tokens max_completion_tokens n_predict num_predict": Alias(
        ("max_new_tokens", "next_tokens"), GENERATES, note_for="next_tokens"
    ),
    "temperature top_p min_p max_new_tokens": Alias(("next_tokens",), GENERATES),
    "do_sample": Alias(("temperature",), "above 0 samples tokens, 0 takes the most probable one"),
    "num_beams beam_width": Alias((), "beam search is not supported"),
    "stop_words stop_sequences stop_strings": Alias(("stop",)),
    "random_seed": Alias(("seed",)),
    "texts prompt input inputs sentence sentences content messages": Alias(("text",)),
    "ttl expires expires_in": Alias(("ttl_seconds",)),
    "memory_id memories": Alias(("memory",)),
    "keys k_cache": Alias(("key",)),
    "values v_cache": Alias(("value",)),
    "parameters options params": Alias((), "options are fields of the request, like the tensors"),
}
ALIASES = {name: alias for names, alias in TABLE.items() for name in names.split()}
OUTPUTS_AND_BLOCKS = {  # names -> their aliases, in lower case, without separators
    "weights": "attnweights attentions attention attentionweights probs",
    "output": "attnoutput lasthiddenstate logits out context",
    "lse": "logsumexp softmaxlse",
    "scores": "attnscores attentionscores qk",
    "present_key": "pastkeyvalues keycache",
    "embedding": "embeddings sentenceembedding pooleroutput",
    "scaled_dot_product": "sdpa attention scaleddotproductattention flashattention",
    "multi_head": "mha multihead multiheadattention",
    "grouped_query": "gqa",
    "multi_query": "mqa",
    "additive": "bahdanau",
    "luong_general": "luong",
}


def field_hint(name: str, accepted: Collection[str]) -> str:
    """The meaning of the unknown field ``name`` where a request has the ``accepted`` ones, to follow an error's text.

    It is empty where no field is like it.
    """
    alias = ALIASES.get(name.lower(), Alias())
    meant = next((field for field in alias.fields if field in accepted), None)
    if meant is None and (alias.fields or not alias.note):
        return did_you_mean(name, accepted)
    note = alias.note if alias.note_for in ("", meant) else ""
    return " ".join(filter(None, (f"; did you mean '{meant}'?" if meant else ";", note)))


def canonical_names(name: str) -> tuple[str, ...]:
    """The fields that an alias may mean; none where ``name`` is no alias."""
    return ALIASES[name].fields if name in ALIASES else ()


def is_no_op(name: str, value: Any, conditions: Mapping[str, bool]) -> bool:
    """Whether this ``value`` of the alias ``name`` changes nothing: null always, true if its condition holds."""
    alias = ALIASES[name]
    if value is None or (value is True and conditions.get(alias.true_if)):
        return True
    return any(type(value) is type(no_op) and value == no_op for no_op in alias.no_ops)


def name_hint(name: str, known: Collection[str]) -> str:
    """The one of the ``known`` outputs, blocks or models that ``name`` may mean, to follow an error's text."""
    plain = re.sub(r"[-_]", "", name.lower())
    meant = (ours for ours in known if plain in OUTPUTS_AND_BLOCKS.get(ours, "").split())
    return next((f"; did you mean '{ours}'?" for ours in meant), "") or did_you_mean(name, known)
