"""Small models of an encoder and a decoder of two types."""

from pathlib import Path

import torch
import transformers

from tests.support.families import BOTH, CONVOLUTIONS, GROUPED, IMAGE, LAYERS, TEXT

START = {"decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 3}
DECODER = {**TEXT, "model_type": "bert", "is_decoder": True, "add_cross_attention": True}
DONUT = {
    "model_type": "donut-swin", "image_size": [32, 48], "patch_size": 4, "embed_dim": 16, "depths": [2, 2],
    "num_heads": [2, 4], "window_size": 4,
}  # fmt: skip
MBART = {**BOTH, "model_type": "mbart", "add_cross_attention": True, "encoder_layers": 3}  # its caches have so many
SOUND = {
    **LAYERS, **CONVOLUTIONS, "model_type": "wav2vec2", "vocab_size": 60, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
GEMMA = {**GROUPED, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}
PAIRS = {  # a class, and the settings of the encoder and of the decoder
    "trocr": ("VisionEncoderDecoderModel", {**IMAGE, "model_type": "vit"}, {**BOTH, "model_type": "trocr"}),
    "donut": ("VisionEncoderDecoderModel", DONUT, MBART),
    "speech": ("SpeechEncoderDecoderModel", SOUND, DECODER),
    "bert2bert": ("EncoderDecoderModel", {**TEXT, "model_type": "bert"}, DECODER),
    "t5gemma": ("T5GemmaForConditionalGeneration", GEMMA, GEMMA),
}


def save(name: str, folder: Path) -> None:
    """A small model whose attention is not uniform; its convolutions stay as they are."""
    kind, encoder, decoder = PAIRS[name]
    model_class = getattr(transformers, kind)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(encoder=encoder, decoder=decoder, **START))
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    model.generation_config.update(**START)
    model.save_pretrained(folder)
