"""Configs as small as those of a test, of any model type of transformers."""

import re
from typing import Any

from transformers import PretrainedConfig

VOCABULARY = 99
# What a setting becomes if its name ends so, where its default is a larger number.
LARGEST = (
    (r"((hidden|encoder|decoder|num|n)_layers?|^depth)", 2),
    (r"(num_key_value_heads|num_kv_heads)", 2),
    (r"(num_attention_heads|attention_heads|num_heads|num_attn_heads|n_heads?)", 4),
    (r"(num_local_experts|num_experts|n_routed_experts)", 4),
    (r"(num_experts_per_tok(en)?|moe_topk)", 2),
    (r"(head_dim|d_kv|head_size|sliding_window)", 8),
    (r"(hidden_size|d_model|n_embd|embed_dim|embedding_size|projection_dim|proj_dim|hidden_dim|emb_dim|^dim)", 32),
    (r"(intermediate_size|ffn_dim|d_ff|d_inner|ffn_size|n_inner|mlp_dim|dim_feedforward)", 48),
    (r"(max_position_embeddings|n_positions|max_target_positions)", 64),
    (r"vocab_size", VOCABULARY),
)


def small_config(config_class: type[PretrainedConfig]) -> PretrainedConfig:
    """A config of the class with small settings, and with small configs of the models in it.

    Raises:
        Exception: of many types; small settings contradict each other.
    """
    return config_class(**_settings(config_class))


def _settings(config_class: type[PretrainedConfig]) -> dict[str, Any]:
    """The settings that differ from the defaults of the class."""
    default = config_class()
    changed: dict[str, Any] = {}
    for name, value in default.to_dict().items():
        inner = getattr(default, name, None)
        if isinstance(inner, PretrainedConfig):
            changed[name] = {**_settings(type(inner)), "model_type": inner.model_type}
        elif type(value) is int and (smaller := _smaller(name, value)) != value:
            changed[name] = smaller
    return changed


def _smaller(name: str, value: int) -> int:
    if name.endswith(("token_id", "token_index")):
        return value % 7 if value >= VOCABULARY else value
    largest = next((size for end, size in LARGEST if re.search(f"{end}$", name)), value)
    return min(value, largest)
