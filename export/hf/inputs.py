"""The inputs of a model of transformers as a block's: their shapes, ranges and defaults."""

from typing import Any

from transformers import PreTrainedModel

from export.hf.pretrained import ModelRefused
from export.hf.wrapper import MAIN, arguments_of, has_two_stacks
from models.block import Dim, Input

MASK = "1 = a real token, 0 = padding, as transformers' tokenizers return it; all 1 when not given."
CONV_STRIDES = 2  # of Whisper: frames for each position of the encoder


def inputs_of(model: PreTrainedModel) -> dict[str, Input]:
    """The inputs by name, the first of which is the model's main one.

    Raises:
        ModelRefused: it requires another input.
    """
    main, arguments = model.main_input_name, arguments_of(model)
    if main not in MAIN:
        raise ModelRefused(f"{type(model).__name__} takes {main}; export knows {', '.join(MAIN)}")
    inputs = {main: _main(model, main)}
    if main == "input_ids":
        if "attention_mask" in arguments:
            inputs["attention_mask"] = _mask("n")
        if (types := getattr(model.config, "type_vocab_size", None) or 0) > 1 and "token_type_ids" in arguments:
            inputs["token_type_ids"] = Input(
                ("1|batch", "1|n"), "Segment of each token; all 0 when not given.", dtype="int64", default=0, minimum=0,
                maximum=types - 1,
            )  # fmt: skip
    if has_two_stacks(model):
        vocabulary = getattr(model.config, "decoder_vocab_size", None) or _vocabulary(model)
        inputs["decoder_input_ids"] = _ids(
            "m", vocabulary, "Token ids of the decoder, which begin with its start token."
        )
        if "decoder_attention_mask" in arguments:
            inputs["decoder_attention_mask"] = _mask("m")
    return inputs


def _main(model: PreTrainedModel, name: str) -> Input:
    if name == "input_ids":
        return _ids("n", _vocabulary(model), "Token ids.")
    config = model.config
    if name == "pixel_values":
        size = _setting(model, "image_size")
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        shape: tuple[Dim, ...] = ("batch", _setting(model, "num_channels"), height, width)
        return Input(shape, "Images, as transformers' image processor returns them.")
    frames = CONV_STRIDES * _setting(model, "max_source_positions")
    shape = ("batch", _setting(model, "num_mel_bins"), frames)
    return Input(shape, f"Spectrogram, as transformers' feature extractor for {config.model_type} returns it.")


def _ids(length: str, vocabulary: int, description: str) -> Input:
    return Input(("batch", length), description, dtype="int64", minimum=0, maximum=vocabulary - 1)


def _mask(length: str) -> Input:
    return Input(("1|batch", f"1|{length}"), MASK, dtype="int64", default=1, minimum=0, maximum=1)


def _vocabulary(model: PreTrainedModel) -> int:
    embedding = model.get_input_embeddings()
    return int(getattr(embedding, "num_embeddings", None) or _setting(model, "vocab_size"))


def _setting(model: PreTrainedModel, name: str) -> Any:
    value = getattr(model.config, name, None)
    if value is None:
        raise ModelRefused(f"config.json has no {name}, from which the shape of {model.main_input_name} follows")
    return value
