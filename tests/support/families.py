"""Small models of transformers' families with random weights, and families that export refuses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

LAYERS = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
SPECIAL = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
TEXT = {"vocab_size": 60, "max_position_embeddings": 48, **LAYERS, **SPECIAL}
GROUPED = {**TEXT, "num_key_value_heads": 2}
IMAGE = {**LAYERS, "image_size": 16, "patch_size": 4}
BOTH = {
    **SPECIAL,
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 48,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0}
GPT = {"vocab_size": 60, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 48}
CONVOLUTIONS = {"conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 3], "num_feat_extract_layers": 2}
PREPROCESSOR = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.5, 0.25]}  # of pictures
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}


@dataclass(frozen=True)
class Family:
    """A class of transformers, the settings of its config, and flags of ``heed export hf``."""

    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


def without(settings: Mapping[str, Any], *names: str, **others: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names} | others


FAMILIES = {
    "bert": Family("BertForQuestionAnswering", TEXT),
    "vit": Family("ViTForImageClassification", {**IMAGE, "num_labels": 3}),
    "llama": Family("LlamaForCausalLM", GROUPED),
    "bart": Family("BartForConditionalGeneration", BOTH),
    "roberta": Family("RobertaForQuestionAnswering", TEXT),
    "bert classifier": Family("BertForSequenceClassification", {**TEXT, "num_labels": 3}),
    "ast": Family(
        "ASTForAudioClassification",
        {**LAYERS, "max_length": 32, "num_mel_bins": 16, "patch_size": 8, "frequency_stride": 8, "time_stride": 8},
    ),
    "albert": Family("AlbertForMaskedLM", {**TEXT, "embedding_size": 16}),
    "bert hidden states": Family("BertModel", TEXT),
    "bert tokens": Family("BertForTokenClassification", TEXT),
    "bloom": Family("BloomForCausalLM", {"vocab_size": 60, "hidden_size": 32, "n_head": 4, "n_layer": 2}),
    "camembert": Family("CamembertForMaskedLM", TEXT),
    "clip text": Family("CLIPTextModel", TEXT),
    "clip vision": Family("CLIPVisionModel", IMAGE),
    "cohere": Family("CohereForCausalLM", GROUPED),
    "deberta v2": Family("DebertaV2ForSequenceClassification", {**TEXT, "type_vocab_size": 0}),
    "deberta v2, relative": Family("DebertaV2Model", {**TEXT, "type_vocab_size": 0, **RELATIVE}),
    "deepseek v2": Family(
        "DeepseekV2ForCausalLM",
        {
            **GROUPED,
            "num_key_value_heads": 4,
            **{"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
            **{"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
            **{"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
        },
    ),
    "deit": Family("DeiTModel", IMAGE),
    "dinov2": Family("Dinov2Model", without(IMAGE, "intermediate_size")),
    "distilbert": Family(
        "DistilBertForSequenceClassification",
        {"vocab_size": 60, "dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 48, "max_position_embeddings": 48},
    ),
    "electra": Family("ElectraForSequenceClassification", {**TEXT, "embedding_size": 16}),
    "falcon": Family("FalconForCausalLM", without(TEXT, "intermediate_size", new_decoder_architecture=False)),
    "gemma": Family("GemmaForCausalLM", {**GROUPED, "head_dim": 8}),
    "gemma 2": Family("Gemma2ForCausalLM", {**GROUPED, "head_dim": 8, "sliding_window": 4}),
    "gemma 3": Family("Gemma3ForCausalLM", {**GROUPED, "head_dim": 8, "sliding_window": 4}),
    "gemma 4": Family(  # whose last layer has wider heads
        "Gemma4ForCausalLM",
        {
            **GROUPED,
            "head_dim": 8,
            "per_layer_config": {"1": {"head_dim": 16}},
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 4,
            "vocab_size_per_layer_input": 60,
            "hidden_size_per_layer_input": 8,
        },
    ),
    "depth anything": Family(
        "DepthAnythingForDepthEstimation",
        {
            "backbone_config": {
                **{"model_type": "dinov2", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4},
                **{"image_size": 32, "patch_size": 8, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
                **{"reshape_hidden_states": False, "mlp_ratio": 1},
            },
            **{"reassemble_hidden_size": 32, "neck_hidden_sizes": [4, 4, 8, 8], "fusion_hidden_size": 4},
            "head_hidden_size": 4,
            "patch_size": 8,
        },
    ),
    "lfm 2": Family("Lfm2Model", {**GROUPED, "layer_types": ["conv", "full_attention"]}),
    "gpt 2": Family("GPT2LMHeadModel", GPT),
    "gpt j": Family("GPTJForCausalLM", {**GPT, "rotary_dim": 4}),
    "gpt neo": Family(
        "GPTNeoForCausalLM",
        {
            "vocab_size": 60,
            "hidden_size": 32,
            "num_heads": 4,
            "num_layers": 2,
            "window_size": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 48,
        },
    ),
    "gpt neox": Family("GPTNeoXForCausalLM", TEXT),
    "gpt oss": Family("GptOssForCausalLM", {**GROUPED, "head_dim": 8, "num_local_experts": 4, "sliding_window": 4}),
    "granite": Family("GraniteForCausalLM", GROUPED),
    "llama 4": Family(
        "Llama4ForCausalLM",
        {
            **GROUPED,
            **{"intermediate_size_mlp": 48, "head_dim": 8, "attention_chunk_size": 4},
            **{"num_local_experts": 4, "interleave_moe_layer_step": 2},
        },
    ),
    "m2m 100": Family("M2M100ForConditionalGeneration", BOTH),
    "marian": Family("MarianMTModel", BOTH),
    "mbart": Family("MBartForConditionalGeneration", BOTH),
    "mistral": Family("MistralForCausalLM", {**GROUPED, "sliding_window": 4}),
    "mixtral": Family("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "modernbert": Family("ModernBertForMaskedLM", {**TEXT, "global_attn_every_n_layers": 2, "local_attention": 6}),
    "mpnet": Family("MPNetForMaskedLM", TEXT),
    "mt5": Family("MT5ForConditionalGeneration", T5),
    "olmo 2": Family("Olmo2ForCausalLM", GROUPED),
    "opt": Family("OPTForCausalLM", without(TEXT, "intermediate_size", ffn_dim=48, word_embed_proj_dim=32)),
    "pegasus": Family("PegasusForConditionalGeneration", BOTH),
    "phi": Family("PhiForCausalLM", TEXT),
    "phi 3": Family("Phi3ForCausalLM", GROUPED),
    "qwen 2": Family("Qwen2ForCausalLM", GROUPED),
    "qwen 2, classifier": Family("Qwen2ForSequenceClassification", {**GROUPED, "num_labels": 3}),
    "qwen 3": Family("Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}),
    "siglip vision": Family("SiglipVisionModel", IMAGE),
    "smollm 3": Family("SmolLM3ForCausalLM", GROUPED),
    "stablelm": Family("StableLmForCausalLM", GROUPED),
    "starcoder 2": Family("Starcoder2ForCausalLM", GROUPED),
    "t5": Family("T5ForConditionalGeneration", T5),
    "t5, encoder": Family("T5EncoderModel", T5),
    "wav2vec 2": Family(
        "Wav2Vec2ForCTC",
        {**LAYERS, **CONVOLUTIONS, "vocab_size": 60, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
        ("--input", "input_values=400"),
    ),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        without(
            BOTH,
            "max_position_embeddings",
            max_source_positions=20,
            max_target_positions=30,
            num_mel_bins=8,
            decoder_start_token_id=0,  # begin_suppress_tokens are those of the large models, beyond the vocabulary
        ),
    ),
    "vit mae": Family("ViTMAEModel", IMAGE),
    "xlm roberta": Family("XLMRobertaForTokenClassification", TEXT),
}
MAMBA = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2}
REFUSED = {  # a family, and a pattern of the reason
    "longformer": (Family("LongformerModel", {**TEXT, "attention_window": 4}), "data-dependent expression"),
    "mamba": (Family("MambaForCausalLM", MAMBA), "returns no attentions"),
    "wav2vec 2 without --input": (Family("Wav2Vec2Model", LAYERS), "--input input_values=16000 gives the shape"),
}


def takes_text(name: str) -> bool:
    """Whether a tokenizer is saved with the family."""
    return "vocab_size" in FAMILIES[name].config and name not in ("wav2vec 2", "whisper")


def build(family: Family) -> transformers.PreTrainedModel:
    """The model with random weights, large enough for its attention not to be uniform."""
    model_class = getattr(transformers, family.model)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**family.config))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def save(family: Family, folder: Path) -> None:
    """Write the model's directory."""
    build(family).save_pretrained(folder)
