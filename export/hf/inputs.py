"""The inputs of a model of transformers as a block's: their shapes, ranges and defaults."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from export.hf.packed.tower import packed_tower, unit_of
from export.hf.parts import (
    DECODER_IDS,
    arguments_of,
    config_of,
    has_two_stacks,
    has_two_towers,
    parts_of,
    reads_pictures,
    required_of,
    tokens_of_picture,
)
from export.hf.pretrained import ModelRefused, Pretrained, reason_of
from export.hf.wrapper import MAIN, MASKS, PIXEL_MASK
from export.weights.checkpoint import listed
from models.block import Input, Placeholder

MASK = "1 = a real token, 0 = padding, as transformers' tokenizers return it; all 1 when not given."
SAMPLES_MASK = "1 = a sample, 0 = padding, as transformers' feature extractor returns it; all 1 when not given."
NOISE = "noise"
NOISES = "A random number for each patch: the model reads the patches with the smallest ones."
PIXELS_MASK = "1 = a pixel, 0 = padding, as transformers' image processor returns it; all 1 when not given."
RANKS = {  # of an input without the batch
    "pixel_values": (3, 4), "pixel_values_videos": (4,), "input_features": (2, 3), "input_values": (1, 2),
}  # fmt: skip
FRAMES = 1000  # of 10 seconds of sound, as most feature extractors make them
# Shapes for the flag --input, the likeliest first; a refusal names the first that the model accepts.
EXAMPLES: Mapping[str, Sequence[tuple[int, ...]]] = {
    "pixel_values": ((3, 224, 224), (3, 336, 336), (2, 3, 224, 224)),
    "pixel_values_videos": ((16, 3, 224, 224),),
    "input_features": [
        shape for width in (80, 128, 160, 100, 64) for shape in ((width, FRAMES), (FRAMES, width), (1, FRAMES, width))
    ],
    "input_values": ((16000,), (1, 16000)),
}
CONV_STRIDES = 2  # of Whisper: frames for each position of the encoder


def inputs_of(pretrained: Pretrained) -> dict[str, Input]:
    """The inputs by name, the first of which is the model's main one.

    Raises:
        ModelRefused: it requires another input, or one whose shape is unknown.
    """
    model = pretrained.model
    arguments = arguments_of(model)
    has_towers, has_pictures = has_two_towers(model), reads_pictures(model)
    takes_both = has_towers or has_pictures
    main = "input_ids" if takes_both else _main_name(model, pretrained.shapes)
    required = required_of(model.forward)
    required |= required_of(model.get_submodule("vision_model").forward) if has_towers else set()
    if more := required - {*MAIN, *MASKS, "decoder_input_ids", main}:
        raise ModelRefused(f"{pretrained.kind} also requires {listed(sorted(more))}, which export does not know")
    taken = [main, *(["pixel_values"] if takes_both else [])]
    if others := pretrained.shapes.keys() - {*taken}:
        raise ModelRefused(f"--input: {pretrained.kind} takes {' and '.join(taken)}, not {min(others)}")
    inputs = {main: _main(pretrained, main)}
    if main == "input_ids":
        if "attention_mask" in arguments:
            inputs["attention_mask"] = _mask("n")
        types = getattr(config_of(model, main), "type_vocab_size", None) or 0
        if types > 1 and "token_type_ids" in arguments:
            inputs["token_type_ids"] = Input(
                ("1|batch", "1|n"), "Segment of each token; all 0 when not given.", dtype="int64", default=0, minimum=0,
                maximum=types - 1,
            )  # fmt: skip
    elif main == "input_values" and "attention_mask" in arguments and _returns_mask(pretrained.folder):
        length = inputs[main].shape[-1]
        inputs["attention_mask"] = Input(
            ("1|batch", length), SAMPLES_MASK, dtype="int64", default=1, minimum=0, maximum=1
        )
    elif main == "pixel_values" and PIXEL_MASK in arguments:
        sides = inputs[main].shape[-2:]
        inputs[PIXEL_MASK] = Input(("1|batch", *sides), PIXELS_MASK, dtype="int64", default=1, minimum=0, maximum=1)
    elif main == "pixel_values" and NOISE in arguments:
        height, width = (int(side) for side in inputs[main].shape[-2:])
        side = int(_setting(model, "patch_size", NOISE))
        inputs[NOISE] = Input(("batch", (height // side) * (width // side)), NOISES)
    if has_two_stacks(model):
        config = config_of(model, DECODER_IDS)
        own = [config.vocab_size] if config is not model.config else []
        sizes = (getattr(model.config, name, None) for name in ("decoder_vocab_size", "tgt_vocab_size"))
        vocabulary = next(filter(None, [*own, *sizes]), None) or _vocabulary(model)
        inputs[DECODER_IDS] = _ids("m", vocabulary, "Token ids of the decoder, which begin with its start token.")
        if "decoder_attention_mask" in arguments:
            inputs["decoder_attention_mask"] = _mask("m")
    if takes_both:
        inputs["pixel_values"] = _main(pretrained, "pixel_values", "images")
    if has_pictures:
        _, *shape = inputs["pixel_values"].shape
        token, count = _picture_token(model), _tokens_of_picture(model, [int(dim) for dim in shape])
        inputs["pixel_values"] = replace(
            inputs["pixel_values"],
            description=f"Images, as transformers' image processor returns them: {count} tokens {token} in input_ids "
            "for each, in the order of the rows; none when not given.",
            default=0.0,
            placeholder=Placeholder(token, count, _text_of(token, pretrained.tokenizer)),
        )
    return inputs


def _tokens_of_picture(model: PreTrainedModel, shape: Sequence[int]) -> int:
    """The number of tokens that stand for a picture of ``shape``.

    Raises:
        ModelRefused: the model's tower does not take such pictures.
    """
    try:
        return tokens_of_picture(model, shape)
    except Exception as error:  # of many types: other axes, a size that is not the tower's
        raise ModelRefused(
            f"{type(model).__name__} takes no pixel_values of shape {shape}: {reason_of(error)}{_parts(model)}"
        ) from None


def _main_name(model: PreTrainedModel, shapes: Mapping[str, Any]) -> str:
    """The input that the model names as its main one or, if its call has no such argument, the first that it takes.

    One that is not in ``MAIN`` needs a shape among ``shapes``.
    """
    own = model.get_encoder() if config_of(model, "input_ids") is not model.config else model
    name, arguments = own.main_input_name, arguments_of(model)
    if name not in arguments:
        name = next((known for known in MAIN if known in arguments), next(iter(signature(model.forward).parameters)))
    if name not in MAIN and (others := required_of(model.forward) - {*MASKS, name}):
        raise ModelRefused(
            f"{type(model).__name__} requires {listed(sorted({name, *others}))}, of which export can take one"
        )
    if name not in MAIN and name not in shapes:
        raise ModelRefused(
            f"{type(model).__name__} takes {name}; export knows {', '.join(MAIN)}, and others that have floating-point "
            f"numbers by their shape without the batch, as --input {name}=SHAPE"
        )
    return name


def _main(pretrained: Pretrained, name: str, batch: str = "batch") -> Input:
    model, given = pretrained.model, pretrained.shapes.get(name)
    if name == "input_ids":
        if given:
            raise ModelRefused("--input: input_ids are of any length")
        vocabulary, token = _vocabulary(model), _picture_token(model)
        if token > vocabulary:
            raise ModelRefused(f"its image_token_id {token} is beyond its vocabulary of {vocabulary} tokens")
        return _ids("n", max(vocabulary, 1 + token), "Token ids.")
    if name not in MAIN:
        return Input((batch, *(given or ())), f"The input {name} of transformers' {type(model).__name__}.")
    if given and len(given) not in RANKS[name]:
        ranks = " or ".join(map(str, RANKS[name]))
        raise ModelRefused(f"--input: {name} have {ranks} dimensions, without the batch; got {len(given)}")
    if name == "pixel_values":
        shape = given or _image_shape(pretrained)
        return Input((batch, *shape), "Images, as transformers' image processor returns them.")
    if name == "pixel_values_videos":
        shape = given or (_setting(model, "num_frames", name), _channels(model), *_image_size(pretrained))
        return Input((batch, *shape), "Videos, as transformers' video processor returns them.")
    if given is None and name == "input_values":
        given = _setting(model, "max_length", name), _setting(model, "num_mel_bins", name)
    elif given is None:
        frames = CONV_STRIDES * _setting(model, "max_source_positions", name)
        given = _setting(model, "num_mel_bins", name), frames
    kind = "Sound" if len(given) == 1 else "Spectrogram"
    extractor = f"transformers' feature extractor for {model.config.model_type}"
    return Input(("batch", *given), f"{kind}, as {extractor} returns it.")


def _image_shape(pretrained: Pretrained) -> tuple[int, ...]:
    """Channels, height and width, after the number of frames if the model reads several as one input."""
    model = pretrained.model
    shape = (_channels(model), *_image_size(pretrained))
    frames = getattr(config_of(model, "pixel_values"), "num_frames", None)
    return (frames, *shape) if frames and _fault(model, "pixel_values", shape) else shape


def _channels(model: PreTrainedModel) -> int:
    """The channels of a picture, from the config or the first convolution."""
    first = next((part.in_channels for part in model.modules() if isinstance(part, nn.Conv2d | nn.Conv3d)), None)
    channels = getattr(config_of(model, "pixel_values"), "num_channels", None)
    return int(channels or first or _setting(model, "num_channels", "pixel_values"))


def _image_size(pretrained: Pretrained) -> Sequence[int]:
    """Height and width from the config or its backbone's, else from the image processor's files."""
    config = config_of(pretrained.model, "pixel_values")
    configs = config, getattr(config, "backbone_config", None)
    size = next((size for one in configs if (size := getattr(one, "image_size", None)) is not None), None)
    tower = packed_tower(pretrained.model)
    sides = size if isinstance(size, (list, tuple)) else (size,)
    if tower and not all(isinstance(side, int) and side % unit_of(tower) == 0 for side in sides):
        raise _unknown(pretrained.model, f"image_size that is a multiple of {unit_of(tower)}", "pixel_values")
    if size is None:
        settings = _processor(pretrained.folder, "image_processor")
        size = settings.get("crop_size") if settings.get("do_center_crop") else settings.get("size")
        if isinstance(size, dict):
            edge = "longest_edge" if PIXEL_MASK in arguments_of(pretrained.model) else "shortest_edge"  # with padding
            size = [size[side] for side in ("height", "width")] if "height" in size else size.get(edge)
    if size is None:
        size = _setting(pretrained.model, "image_size", "pixel_values")
    return size if isinstance(size, (list, tuple)) else (size, size)


def _processor(folder: Path, inner: str) -> dict[str, Any]:
    """The settings of the processor of pictures or sound; the file of a joint processor has them under ``inner``."""
    if (file := folder / "preprocessor_config.json").is_file():
        content = json.loads(file.read_text())
    elif (file := folder / "processor_config.json").is_file():
        content = json.loads(file.read_text()).get(inner)
    else:
        content = None
    return content if isinstance(content, dict) else {}


def _returns_mask(folder: Path) -> bool:
    """Whether the feature extractor marks padding samples, which means that the model was trained with a mask."""
    return _processor(folder, "feature_extractor").get("return_attention_mask") is True


def _text_of(token: int, tokenizer: str | None) -> str | None:
    """The text of a special token in the content of a tokenizer.json; None if the file has no such token."""
    added = json.loads(tokenizer or "{}").get("added_tokens", ())
    return next((str(one["content"]) for one in added if one["id"] == token), None)


def _picture_token(model: PreTrainedModel) -> int:
    """The token that stands for a picture, which may be the first beyond the vocabulary; -1 if there is none."""
    return int(model.config.image_token_id) if reads_pictures(model) else -1


def _ids(length: str, vocabulary: int, description: str) -> Input:
    return Input(("batch", length), description, dtype="int64", minimum=0, maximum=vocabulary - 1)


def _mask(length: str) -> Input:
    return Input(("1|batch", f"1|{length}"), MASK, dtype="int64", default=1, minimum=0, maximum=1)


def _vocabulary(model: PreTrainedModel) -> int:
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:  # it looks tokens up in a way of its own
        embedding = None
    return int(getattr(embedding, "num_embeddings", None) or _setting(model, "vocab_size", "input_ids"))


def _setting(model: PreTrainedModel, setting: str, name: str) -> Any:
    """A setting of the config from which the shape of the input ``name`` follows."""
    value = getattr(config_of(model, name), setting, None)
    if value is None:
        raise _unknown(model, setting, name)
    return value


def _unknown(model: PreTrainedModel, setting: str, name: str) -> ModelRefused:
    """The refusal of a model whose config has no ``setting``, with a shape of the input ``name`` that it accepts."""
    text = f"config.json has no {setting}, from which the shape of {name} follows"
    faults = []
    for shape in EXAMPLES.get(name, ()):
        numbers, fault = ",".join(map(str, shape)), _fault(model, name, shape)
        if fault is None:
            return ModelRefused(f"{text}; --input {name}={numbers} gives the shape")
        faults.append(f", and {numbers} is refused: {fault}{_parts(model) if reads_pictures(model) else ''}")
    return ModelRefused("".join([text, *faults[:1]]))


def _parts(model: PreTrainedModel) -> str:
    """The advice to export one of the models inside ``model``, for the end of a refusal."""
    return f"; --part exports one of its models: {', '.join(parts_of(model))}"


def _fault(model: PreTrainedModel, name: str, shape: Sequence[int]) -> str | None:
    """Why the model, or its tower for pictures, cannot be called with an input of ``shape``, without the batch."""
    if has_two_towers(model):
        model = model.get_submodule("vision_model")  # type: ignore[assignment]
    given = {name: torch.zeros(1, *shape)}
    if has_two_stacks(model):
        given["decoder_input_ids"] = torch.zeros(1, 1, dtype=torch.int64)
    try:
        with torch.inference_mode():
            if reads_pictures(model):
                tokens_of_picture(model, [*shape])
            else:
                model(**given)
    except Exception as error:  # of many types: other axes, a size that is not the model's
        return reason_of(error)
    return None
