"""Small language models that read pictures, as ``save_pretrained`` writes them."""

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from tests.support.families import FAMILIES, GROUPED, IMAGE, Family, save
from tests.support.texts import tokenizer
from tests.support.towers import CROPPED, SIZE, Towers

IMAGE_TOKEN = "<image>"
TOKEN = len(tokenizer())  # its id
GEMMA = {**GROUPED, "head_dim": 8}
SIGLIP = {**IMAGE, "model_type": "siglip_vision_model", "vision_use_head": False}
CONFIG = {"image_token_id": TOKEN, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}

# The patches of all pictures are one sequence; three of four dimensions of a head's positions are rows and columns.
PATCHES = {
    "depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "image_size": 16, "patch_size": 2
}  # fmt: skip
PIXELS = {"patch_size": 2, "size": {"shortest_edge": 256, "longest_edge": 256}}
PACKED = {
    **CONFIG,
    "text_config": {
        **GROUPED, "head_dim": 8, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]}
    },
    "video_token_id": 58,
    "vision_start_token_id": 56,
    "vision_end_token_id": 57,
}  # fmt: skip

READERS = {
    "llava": Towers(
        Family(
            "LlavaForConditionalGeneration",
            {
                **CONFIG,
                "text_config": {**GROUPED, "model_type": "llama"},
                "vision_config": {**IMAGE, "num_hidden_layers": 3, "model_type": "clip_vision_model"},
            },
        ),
        "CLIP",
        CROPPED,
    ),
    "paligemma": Towers(
        Family(
            "PaliGemmaForConditionalGeneration",
            {
                **CONFIG,
                "text_config": {**GEMMA, "model_type": "gemma"},
                "vision_config": {**SIGLIP, "projection_dim": 32},
                "projection_dim": 32,
            },
        ),
        "Siglip",
        {"size": SIZE},
    ),
    "gemma 3": Towers(
        Family(
            "Gemma3ForConditionalGeneration",
            {
                **CONFIG,
                "text_config": {**GEMMA, "model_type": "gemma3_text", "sliding_window": 8},
                "vision_config": SIGLIP,
                "mm_tokens_per_image": 16,
            },
        ),
        "Siglip",
        {"size": SIZE},
    ),
    "gemma 4": Towers(
        Family(
            "Gemma4ForConditionalGeneration",
            {
                **CONFIG,
                **{"audio_config": None, "audio_token_id": 57, "video_token_id": 56},
                "text_config": {
                    **{**FAMILIES["gemma 4"].config, "sliding_window": 8},
                    "use_bidirectional_attention": "vision",
                },
                "vision_config": {
                    **{**PATCHES, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4},
                    **{"num_channels": 3, "head_dim": 8, "pooling_kernel_size": 2, "position_embedding_size": 16},
                },
            },
        ),
        "Gemma4",
        {"patch_size": 2, "pooling_kernel_size": 2, "max_soft_tokens": 70, "do_resize": False},
    ),
    "qwen 2.5 vl": Towers(
        Family(
            "Qwen2_5_VLForConditionalGeneration",
            {
                **PACKED,
                "vision_config": {**PATCHES, "fullatt_block_indexes": [1], "out_hidden_size": 32, "window_size": 8},
            },
        ),
        "Qwen2VL",
        PIXELS,
    ),
    "qwen 3 vl": Towers(
        Family(
            "Qwen3VLForConditionalGeneration",
            {
                **PACKED,
                "vision_config": {
                    **PATCHES,
                    "deepstack_visual_indexes": [0],
                    "out_hidden_size": 32,
                    "num_position_embeddings": 16,
                },
            },
        ),
        "Qwen2VL",
        PIXELS,
    ),
    "smolvlm": Towers(
        Family(
            "SmolVLMForConditionalGeneration",
            {
                **CONFIG,
                "scale_factor": 2,
                "text_config": {**GROUPED, "model_type": "llama"},
                "vision_config": {**IMAGE, "patch_size": 2},
            },
        ),
        "Siglip",
        {"size": SIZE},
    ),
    "internvl": Towers(
        Family(
            "InternVLForConditionalGeneration",
            {
                **CONFIG,
                "text_config": {**GROUPED, "model_type": "qwen2"},
                "vision_config": {**IMAGE, "image_size": [16, 16], "patch_size": [2, 2]},
            },
        ),
        "Siglip",
        {"size": SIZE},
    ),
}


def tokenizer_with_pictures() -> PreTrainedTokenizerFast:
    """The tokenizer of words, which knows the token for a picture."""
    words = tokenizer()
    words.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    return words


def save_model(name: str, folder: Path) -> None:
    """Write the model's directory, with its tokenizer and its image processor."""
    save(READERS[name].family, folder)
    tokenizer_with_pictures().save_pretrained(folder)
    READERS[name].image_processor().save_pretrained(folder)
