"""A model of transformers as a ``Block``: its inputs, outputs and limits."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from export.hf.head_masks import take_head_masks
from export.hf.inputs import inputs_of
from export.hf.parts import DECODER_IDS, config_of
from export.hf.positions import position_limits
from export.hf.pretrained import ModelRefused, Pretrained, reason_of, without_head
from export.hf.verification.examples import draw, with_room
from export.hf.verification.float64 import Original
from export.hf.wrapper import (
    HEAD_MASKS,
    HIDDEN,
    OF_STAGE,
    OTHER_ANSWERS,
    TWO_TOWERS,
    VECTORS,
    WITH_PICTURES,
    Stacks,
    Wrapper,
)
from export.weights.checkpoint import listed
from models.block import Block, Dim, Input, Output, Sizes
from models.options import head_mask

# Two sets of sizes. Every symbol grows by a different number, so the growth of a dimension identifies its symbol.
SMALL: Sizes = {"batch": 2, "n": 4, "m": 3, "images": 1}
LARGER: Sizes = {"batch": 3, "n": 7, "m": 5, "images": 5}
MIN_POSITIONS = 8
# The first token of a decoder, the size of a picture's patches, and the number of tokens that are not patches.
STATED = ("decoder_start_token_id", "patch_size", "num_register_tokens")
EQUAL = 1e-9  # largest difference in float64 between two calls, or between an omitted input and its default
DESCRIPTIONS = {
    "weights": "Every layer's attention weights, as transformers' eager attention returns them.",
    "encoder_weights": "The same of the encoder's layers.",
    "cross_weights": "Every decoder layer's weights over the positions of the encoder.",
    "hidden_states": "The embeddings and every layer's hidden states, as transformers' output_hidden_states.",
    "encoder_hidden_states": "The same of the encoder.",
    "query": "Every head's queries, times the scale: the products with key are the scores before biases and masks.",
    "key": "Every head's keys, repeated where heads share them.",
    "encoder_query": "The queries of the encoder's heads.",
    "encoder_key": "The keys of the encoder's heads.",
    "cross_query": "The queries of the cross-attention's heads.",
    "cross_key": "The keys of the cross-attention's heads.",
    "pred_boxes": "A box for each query: its centre, width and height, as shares of the picture's.",
}
ROWS_OF = {"input_ids": "batch", "pixel_values": "images"}  # of two towers: an input, and its first dimension
OF_EARLIER = "The weights of an earlier stage's layers, as transformers returns them; windows are an axis before heads."
OF_LAST = "The weights of the last stage's layers, as transformers returns them."
OF_TOWERS = {
    "weights": "Every layer's attention weights of the texts, as transformers' eager attention returns them.",
    "vision_weights": "The same of the images.",
    "hidden_states": "The embeddings of the texts, and every layer's hidden states.",
    "vision_hidden_states": "The same of the images.",
    "output": "Logits of each text for each image (logits_per_text): their similarity.",
    "logits_per_image": "The same by image; their softmax are the texts' probabilities (of SigLIP, their sigmoid).",
    "text_embedding": "The vector of each text that is compared, of length 1.",
    "image_embedding": "The vector of each image that is compared, of length 1.",
}
OF_IMAGES = {
    "vision_weights": "The weights of the layers that read the images.",
    "vision_hidden_states": "The hidden states of these layers.",
    "vision_query": "The queries of the heads for images.",
    "vision_key": "The keys of the heads for images.",
}


def block_of(pretrained: Pretrained, name: str) -> tuple[Block, Original]:
    """The description of the model, and the model itself, which is the reference of the export.

    Raises:
        ModelRefused: an input or output cannot be described, or depends on weights that the directory lacks.
    """
    wrapper = Wrapper(pretrained.model, pooling=pretrained.pooling).eval()
    inputs = inputs_of(pretrained)
    pictures = {name: spec.shape[1:] for name, spec in inputs.items() if spec.placeholder}
    wrapper.defaults = {name: torch.zeros(0, *map(int, shape)) for name, shape in pictures.items()}
    _refuse_random(pretrained, wrapper, inputs)
    drawn = {name: torch.from_numpy(array) for name, array in draw(inputs, _sizes(inputs)[0]).items()}
    for mask, shape in take_head_masks(wrapper, drawn).items():
        inputs[mask] = head_mask(shape, wrapper.stacks.head_masks[mask])
    original = Original(wrapper)
    _refuse_draws_and_scores(pretrained, original, inputs)
    inputs = _with_true_defaults(original, inputs)
    limits = position_limits(wrapper, inputs)
    if short := [f"{symbol} is at most {limit}" for symbol, limit in limits.items() if limit < MIN_POSITIONS]:
        raise ModelRefused(f"{pretrained.kind} has too few positions to be verified: {', '.join(short)}")
    shapes = _shapes(wrapper, inputs)
    if wrapper.stacks == TWO_TOWERS:
        inputs = {name: replace(spec, only_for=_needing(name, shapes)) for name, spec in inputs.items()}
    config, heads = pretrained.config, int(shapes["weights"][2])
    field = "" if wrapper.stacks.answers else wrapper.answer_field(drawn)
    answer = OTHER_ANSWERS.get(field) or _answer(shapes["output"], config_of(pretrained.model, DECODER_IDS))
    descriptions = {"output": f"{answer}.", "embedding": f"{pretrained.pooling}."} | DESCRIPTIONS | OF_IMAGES
    if stages := [name for name in shapes if OF_STAGE in name]:
        descriptions |= dict.fromkeys(stages, OF_EARLIER) | {"weights": OF_LAST}
    if wrapper.stacks == TWO_TOWERS:
        descriptions |= OF_TOWERS
        answer = "the similarity of texts and images"
    width = shapes["query"][-1] if "query" in shapes else getattr(config, "hidden_size", heads) // heads
    block = Block(
        name=name,
        title=f"{pretrained.kind} ({config.model_type})",
        formula=rf"\mathrm{{{pretrained.kind}}}(\mathrm{{{next(iter(inputs)).replace('_', chr(92) + '_')}}})",
        source=f"transformers {transformers.__version__}, "
        f"https://huggingface.co/docs/transformers/model_doc/{config.model_type}",
        description=f"{_layers(shapes)}; returns {answer.lower()} and every layer's weights.",
        build=lambda: wrapper,
        reference=lambda _module, arrays, dtype: original(arrays, dtype),
        inputs=inputs,
        outputs={output: Output(shape, descriptions[output]) for output, shape in shapes.items()},
        weights=pretrained.origin(),
        depth=2 * width,
        config=json.loads(config.to_json_string(use_diff=True)) | _stated(config),
        limits=limits,
        left_out={"images": 0} if wrapper.stacks == WITH_PICTURES else {},
        rare=tuple(name for name in [*_rare(wrapper.stacks), *stages] if name in {**inputs, **shapes}),
    )
    return block, original


def _rare(stacks: Stacks) -> list[str]:
    """Inputs and outputs that few requests have, including the weights of the tower that reads pictures in a text."""
    pictures = ["vision_weights"] if stacks == WITH_PICTURES else []
    return [*HEAD_MASKS, *HIDDEN, *chain(*VECTORS.values()), *pictures]


def _needing(name: str, shapes: Mapping[str, Sequence[Dim]]) -> tuple[str, ...]:
    """The outputs that need an input of a model with two towers; empty if all do."""
    if name not in ROWS_OF:
        return ()
    return tuple(output for output, shape in shapes.items() if ROWS_OF[name] in shape)


def _layers(shapes: Mapping[str, Sequence[Dim]]) -> str:
    """The numbers of layers and heads: those of the decoder beside an encoder, or those of both towers."""
    earlier = [shape for name, shape in shapes.items() if OF_STAGE in name]
    words = ", ".join(f"{_layers_of(shape[0])} of {shape[-3]} heads" for shape in [*earlier, shapes["weights"]])
    if "vision_weights" in shapes:
        words += " for texts, {0} of {2} for images".format(*shapes["vision_weights"])
    return words


def _layers_of(count: Dim) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


def _stated(config: Any) -> dict[str, Any]:
    """The settings that the service needs: the config's JSON omits those with their default value."""
    configs = getattr(config, "vision_config", None), config
    values = ((name, getattr(one, name, None)) for one in configs for name in STATED)
    return {name: value for name, value in values if value is not None}


def rows_of(block: Block) -> dict[str, list[Dim]]:
    """Dimensions whose product is about the number of rows that the learned matrices are multiplied with.

    For texts and images together it is the sum of two products.
    """
    keys = [block.outputs[name].shape[-1] for name in ("weights", "encoder_weights") if name in block.outputs]
    rows = {"rows": ["batch", " + ".join(map(str, keys)) if len(keys) > 1 else keys[0]]}
    if vision := block.outputs.get("vision_weights"):
        rows["image_rows"] = ["images", vision.shape[-1]]
    return rows


def learned_numbers(module: nn.Module) -> int:
    """The number of elements of the matrices, without embeddings, unless the output layer shares their tensor."""
    tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    tables -= {id(part.weight) for part in module.modules() if isinstance(part, nn.Linear)}
    return sum(matrix.numel() for matrix in module.parameters() if matrix.ndim > 1 and id(matrix) not in tables)


def _run(wrapper: Wrapper, inputs: Mapping[str, Input], sizes: Sizes) -> dict[str, torch.Tensor]:
    drawn = {name: torch.from_numpy(array) for name, array in draw(inputs, sizes).items()}
    try:
        outputs: dict[str, torch.Tensor] = vars(wrapper(**drawn))
    except ModelRefused:
        raise
    except Exception as error:  # transformers raises errors of many types
        kind = type(wrapper.model).__name__
        raise ModelRefused(f"{kind} cannot be called with {', '.join(drawn)} alone: {reason_of(error)}") from None
    return outputs


def _refuse_random(pretrained: Pretrained, wrapper: Wrapper, inputs: Mapping[str, Input]) -> None:
    """Refuse a model whose outputs depend on parameters that the directory lacks."""
    parameters = dict(pretrained.model.named_parameters())
    random = {name: parameters[name] for name in pretrained.random if name in parameters}
    for parameter in random.values():
        parameter.requires_grad_(True)
    outputs = _run(wrapper, inputs, _sizes(inputs)[0])
    total = torch.stack([output.sum() for output in outputs.values()]).sum()
    if random and total.requires_grad:
        gradients = torch.autograd.grad(total, list(random.values()), allow_unused=True)
        used = [name for name, gradient in zip(random, gradients, strict=True) if gradient is not None]
        if used:
            raise ModelRefused(
                f"the directory lacks {listed(used)}, which {pretrained.kind} needs{without_head(pretrained.model)}"
            )
    pretrained.model.requires_grad_(False)


def _refuse_draws_and_scores(pretrained: Pretrained, original: Original, inputs: Mapping[str, Input]) -> None:
    """Refuse a model whose outputs differ between two calls with the same inputs, or whose weights are negative."""
    given = draw(inputs, _sizes(inputs)[0])
    first, second = original(given, np.float64), original(given, np.float64)
    if drawn := [name for name in first if not _equal(first[name], second[name])]:
        raise ModelRefused(
            f"{pretrained.kind} draws random numbers: {listed(drawn)} of the same inputs differ from call to call"
        )
    if negative := [name for name in VECTORS if name in first and (first[name] < 0).any()]:
        raise ModelRefused(f"{pretrained.kind} returns scores as {listed(negative)}, from before the softmax")


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=0, atol=EQUAL, equal_nan=True)


def _with_true_defaults(original: Original, inputs: Mapping[str, Input]) -> dict[str, Input]:
    """``inputs`` without the optional ones whose default changes an output, compared with a call without them.

    A model that makes its own mask when it gets none, such as one that excludes padding tokens, is called with a mask
    of 1.
    """
    kept = dict(inputs)
    given = _with_padding(original, inputs, draw(inputs, _sizes(inputs)[0]))
    alone = original(given, np.float64)
    for name, spec in inputs.items():
        if spec.required or spec.placeholder:
            continue
        default = np.full([dim if isinstance(dim, int) else 1 for dim in spec.shape], spec.default, spec.dtype)
        outputs = original({**given, name: default}, np.float64)
        if all(_equal(outputs[key], alone[key]) for key in alone):
            continue
        if name.endswith("mask"):
            original.default(name, default)
            alone = original(given, np.float64)
        else:
            del kept[name]
    return kept


def _with_padding(
    original: Original, inputs: Mapping[str, Input], drawn: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """``drawn`` with the padding token at the end of the first row, if the model has such a token.

    The tokens of pictures are kept.
    """
    pictures = [spec.placeholder.token for spec in inputs.values() if spec.placeholder]
    given = dict(drawn)
    for name in ("input_ids", DECODER_IDS):
        token = getattr(config_of(original.wrapper.model, name), "pad_token_id", None)
        if name in drawn and isinstance(token, int) and 0 <= token <= int(inputs[name].maximum or 0):
            given[name] = drawn[name].copy()
            given[name][0, np.flatnonzero(~np.isin(drawn[name][0], pictures))[-1]] = token
    return given


def _shapes(wrapper: Wrapper, inputs: Mapping[str, Input]) -> dict[str, tuple[Dim, ...]]:
    both = _sizes(inputs)
    with torch.inference_mode():
        small, larger = (_run(wrapper, inputs, sizes) for sizes in both)
    shapes = {}
    for name, tensor in small.items():
        if tensor.ndim != larger[name].ndim:
            raise ModelRefused(f"{name} has another number of dimensions for other lengths")
        pairs = zip(tensor.shape, larger[name].shape, strict=True)
        shapes[name] = tuple(_dim(name, both, *pair) for pair in pairs)
    if shapes["weights"][1] != "batch":
        raise ModelRefused(f"its weights, {list(shapes['weights'])}, are not those of each row of the batch")
    if "batch" not in shapes["output"][:1]:
        raise ModelRefused(f"its answer, {list(shapes['output'])}, has no row for each row of the batch")
    return shapes


def _sizes(inputs: Mapping[str, Input]) -> tuple[Sizes, Sizes]:
    """SMALL and LARGER, with room in the texts for all images."""
    more = with_room(LARGER, inputs)["n"] - LARGER["n"]
    small, larger = ({**sizes, "n": sizes["n"] + more} for sizes in (SMALL, LARGER))
    return small, larger


def _dim(name: str, both: tuple[Sizes, Sizes], small: int, larger: int) -> Dim:
    """The dimension that has these sizes for ``both``: a number, a symbol, or a symbol plus a number."""
    if small == larger:
        return small
    for symbol, size in both[0].items():
        more = small - size
        if larger - small == both[1][symbol] - size and more >= 0:
            return f"{symbol} + {more}" if more else symbol
    raise ModelRefused(f"{name} has a dimension of {small} and then {larger}, which depends on no length of the inputs")


def _answer(shape: tuple[Dim, ...], config: Any) -> str:
    """A description of ``output``, derived from its last dimension."""
    if shape[-1] == getattr(config, "vocab_size", None):
        return "Logits over the vocabulary"
    if shape[-1] == getattr(config, "hidden_size", None):
        return "Hidden states"
    return "Logits of the head"
