"""Small configs for tests, of any model type of transformers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PretrainedConfig

VOCABULARY = 99
HEAD_DIM = 16
NARROW = 128
Limits = Sequence[tuple[str, int]]
# Upper limits of the settings whose names end with a pattern.
DEPTHS: Limits = (
    (r"((hidden|encoder|decoder|num|n)_layers?|^depth)", 2),
    (r"(num_local_experts|num_experts|n_routed_experts|moe_num_experts)", 4),
    (r"(num_experts_per_tok(en)?|moe_topk|moe_k)", 2),
    (r"(^n_group)", 2),
    (r"(topk_group)", 1),
    (r"vocab_size(_per_layer_input)?", VOCABULARY),
)
WIDTHS: Limits = (
    (r"(num_key_value_heads|num_kv_heads)", 2),
    (r"(num_attention_heads|attention_heads|num_heads|num_attn_heads|n_heads?)", 4),
    (r"(qk_head_dim)", 2 * HEAD_DIM),
    (r"(head_dim|d_kv|head_size|rotary_dim|sliding_window)", HEAD_DIM),
    (r"(hidden_size|d_model|n_embd|embed_dim|embedding_size|projection_dim|proj_dim|hidden_dim|emb_dim|^dim)", 64),
    (r"(intermediate_size|ffn_dim|d_ff|d_inner|ffn_size|n_inner|mlp_dim|dim_feedforward)", 96),
    (r"(max_position_embeddings|n_positions|max_target_positions)", 64),
)
# Limits to build with, the smallest model first; default widths agree with each other.
ALL_LIMITS: Sequence[Limits] = ((*DEPTHS, *WIDTHS), DEPTHS)
RESNET = {
    "backbone_config": {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16],
                        "depths": [1, 1, 1, 1], "out_features": ["stage4"]},
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_kwargs": None,
}  # fmt: skip
DINOV2 = {
    "backbone_config": {"model_type": "dinov2", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
                        "image_size": 56, "patch_size": 14, "reshape_hidden_states": False,
                        "out_features": ["stage1", "stage2", "stage3", "stage4"]},
    "reassemble_hidden_size": 64, "neck_hidden_sizes": [8, 16, 32, 32], "fusion_hidden_size": 16,
}  # fmt: skip
DECODER = {
    "model_type": "bert", "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "max_position_embeddings": 64, "is_decoder": True, "add_cross_attention": True,
}  # fmt: skip
# Settings that configs of these types need, or that must be changed to agree with the small ones.
BY_TYPE: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "autoformer informer time_series_transformer",
        {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "encoder_layers": 2},
    ),
    ("conditional_detr dab-detr deformable_detr detr omdet-turbo table-transformer", RESNET),
    ("encoder-decoder speech-encoder-decoder vision-encoder-decoder", {"decoder": DECODER}),
    ("hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text ministral", {"head_dim": HEAD_DIM}),
    ("deepseek_v2 deepseek_ocr2_text", {"num_experts_per_tok": 2}),
    ("depth_anything", DINOV2),
    ("dots1", {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}),
    (
        "gemma4_text gemma4_unified_text diffusion_gemma_text embedding_gemma2_text",
        {"per_layer_config": {"1": {"head_dim": 2 * HEAD_DIM}}},
    ),
    ("gemma3", {"mm_tokens_per_image": 4}),
    (
        "gemma4",
        {
            "vision_config": {
                "model_type": "gemma4_vision",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "head_dim": HEAD_DIM,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "intermediate_size": 96,
                "position_embedding_size": 32,
            },
        },
    ),
    ("lfm2_moe", {"layer_types": ["conv", "full_attention"]}),
    ("esm", {"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 2}),
    ("nemotron", {"num_key_value_heads": 2}),
    ("gpt_neo", {"attention_types": [[["global", "local"], 1]], "num_layers": 2}),
    ("step3p5 step3p7", {"sliding_window": HEAD_DIM}),
)
SETTINGS = {name: settings for names, settings in BY_TYPE for name in names.split()}
FLAGS = {  # of the export of a type
    "gemma4": ("--input", "pixel_values=3,96,96"),
    "idefics3": ("--input", "pixel_values=3,128,128"),
    "patchtst": ("--input", "past_values=32,1"),
    "smolvlm": ("--input", "pixel_values=3,128,128"),
}
NEEDED = ("prediction_length", "use_timm_backbone")  # settings without which there is no config
MROPE = r"glm.*v|glm_ocr|glm_image|glmga|paddleocr|qwen2.*vl|colqwen"  # types whose sections have a default in the code


def small_config(config_class: type[PretrainedConfig], limits: Limits) -> PretrainedConfig:
    """A config of the class with settings within ``limits``, and with such configs for the models in it.

    Raises:
        Exception: of many types; settings contradict each other.
    """
    return config_class(**_settings(config_class, limits))


def _settings(config_class: type[PretrainedConfig], limits: Limits) -> dict[str, Any]:
    """The settings that differ from the defaults of the class."""
    given = SETTINGS.get(config_class.model_type, {})
    default = config_class(**{name: value for name, value in given.items() if name in NEEDED})
    changed: dict[str, Any] = {}
    for name, value in default.to_dict().items():
        inner = getattr(default, name, None) if isinstance(value, dict) else None
        if isinstance(inner, PretrainedConfig):
            changed[name] = {**_settings(type(inner), limits), "model_type": inner.model_type}
        elif type(value) is int and (smaller := _smaller(name, value, limits)) != value:
            changed[name] = smaller
    types = getattr(default, "layer_types", None)
    is_given = not isinstance(getattr(config_class, "layer_types", None), property)
    if is_given and isinstance(types, (list, tuple)) and len(types) > 2 and changed.get("num_hidden_layers") == 2:
        changed["layer_types"] = [types[0], types[-1]]
    if "head_dim" in changed or "hidden_size" in changed:
        changed |= _rotary(default, changed)
    return {**changed, **given}


def _rotary(default: PretrainedConfig, changed: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of rotary positions for heads of ``HEAD_DIM``."""
    settings: dict[str, Any] = {}
    heads, is_partial = changed.get("num_attention_heads"), "qk_rope_head_dim" in changed  # a part has positions
    if is_partial or (heads and getattr(default, "num_key_value_heads", None) == default.num_attention_heads):
        settings["num_key_value_heads"] = heads
    if is_partial and "head_dim" in changed:
        settings["head_dim"] = default.head_dim * HEAD_DIM // default.qk_rope_head_dim
    rope = getattr(default, "rope_parameters", None)
    if not isinstance(rope, dict):
        return settings
    sections = rope.get("mrope_section") or ([8, 12, 12] if re.match(MROPE, default.model_type) else None)
    if sections:
        size = int(HEAD_DIM * rope.get("partial_rotary_factor", 1)) // 2
        first = [section * size // sum(sections) for section in sections[:-1]]
        settings["rope_parameters"] = {**rope, "mrope_section": [*first, size - sum(first)]}
    return settings


def _smaller(name: str, value: int, limits: Limits) -> int:
    if name.endswith(("token_id", "token_index")):
        return value % 7 if value >= VOCABULARY else value
    if name in ("embed_dim", "hidden_size") and value <= NARROW:
        return value  # of the first of several stages, whose numbers of heads it must match
    largest = next((size for end, size in limits if re.search(f"{end}$", name)), value)
    return min(value, largest)
