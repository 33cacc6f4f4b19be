"""The graphs of a step of generation, traced and verified: with attention in place if that is possible."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from export.graphs.graph import export_graph, part_of
from export.graphs.shared_weights import SharedWeights
from export.hf.generation.modules import Encoder, Step, names
from export.hf.generation.past import IN_PLACE, tensors_of
from export.hf.generation.quantized import BITS, BLOCK, quantized
from export.hf.generation.verification import Steps, failure, largest_errors, pads_left
from export.hf.packed.tower import packed_tower
from export.hf.parts import PICTURES_BEFORE, arguments_of, called, has_two_stacks
from export.hf.pretrained import ModelRefused, reason_of
from export.hf.verification.examples import draw, with_room
from export.hf.verification.float64 import Original
from export.hf.verification.verifier import Report
from export.hf.wrapper import MAIN
from export.verification.sessions import session
from models.block import Block, Dim, Input, Output, Sizes

DECODE, OUTPUT, ENCODER = "decode", "decode_output", "encoder"  # file names; OUTPUT is DECODE without the weights
Shapes = list[tuple[int, ...]]
TRACED: Sizes = {"batch": 2, "n": 5, "m": 3, "s": 7, "images": 4}
PROBED: Sizes = {"batch": 2, "n": 7, "m": 3, "images": 1}
TOKENS = (  # entries of generation_config.json that the service needs
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id",
    "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Generation:
    """The graphs by file name, and the entry of the description from which a server reads how to run them.

    ``exact`` are DECODE and ENCODER with the model's own weights.
    """

    graphs: dict[str, onnx.ModelProto]
    entry: dict[str, Any]
    exact: dict[str, onnx.ModelProto] = field(default_factory=dict)


def generation_graphs(
    block: Block,
    original: Original,
    weights: SharedWeights | None,
    folder: Path,
    quantize: bool,
    report: Report,
) -> Generation:
    """The graphs with which the model of ``original`` generates; ``weights`` are shared with those of ``block``.

    With ``quantize``, the graphs of steps get 8-bit weights after they are verified with float32 weights.

    Raises:
        ModelRefused: it does not generate, torch cannot trace a step, or its steps differ from a run of all tokens.
    """
    model = original.wrapper.model
    if not model.can_generate() or "logits" not in _names_of_result(model, block):
        raise ModelRefused(f"{type(model).__name__} does not generate")
    logits, ids = block.outputs["output"], block.inputs.get("decoder_input_ids") or block.inputs.get("input_ids")
    if ids is None:
        raise ModelRefused(f"{type(model).__name__} does not generate from tokens")
    if int(logits.shape[-1]) > 1 + int(ids.maximum or 0):
        raise ModelRefused(f"{type(model).__name__} generates tokens that are not those of its input")
    past, cross = _caches(model, block)
    graphs: dict[str, onnx.ModelProto] = {}
    with _attention(model, "eager"):
        if cross:
            report(f"tracing {ENCODER}.onnx")
            module = Encoder(model, len(past) // 2)
            described = _encoder_block(block, cross)
            graphs[ENCODER] = _exported(described, module, weights)
    reasons = []
    for in_place in (True, False):
        try:
            graphs |= _steps(block, model, past, cross, in_place, weights, report)
        except ModelRefused as error:
            reasons.append(str(error))
            continue
        steps = Steps(
            session(graphs[DECODE].SerializeToString(), folder),
            session(graphs[ENCODER].SerializeToString(), folder) if cross else None,
            [shape[1:] for shape in past],
        )
        report(f"verifying {DECODE}.onnx")
        failed = failure(steps, block, original)
        if failed is None:
            entry = _entry(model, past, steps, pads_left(steps, block, original), in_place)
            exact = {name: graphs[name] for name in (DECODE, ENCODER) if name in graphs}
            if quantize:
                report("rounding weights to 8 bits")
                graphs |= {name: quantized(graphs[name], weights, folder) for name in (DECODE, OUTPUT)}
                steps = replace(steps, decode=session(graphs[DECODE].SerializeToString(), folder))
                report(f"measuring the errors of {DECODE}.onnx")
                errors = largest_errors(steps, block, original)
                entry["quantized"] = {"bits": BITS, "block_size": BLOCK, "errors": errors}
            return Generation(graphs, entry, exact)
        reasons.append(f"its steps differ from its whole run: {failed}")
    raise ModelRefused(reasons[-1])


def _entry(model: PreTrainedModel, past: Shapes, steps: Steps, pads: bool, in_place: bool) -> dict[str, Any]:
    config = model.generation_config
    tokens = {name: getattr(config, name, None) for name in TOKENS}
    return {
        "two_stacks": steps.encoder is not None,
        "counts_pictures": steps.counts_pictures,  # a step takes the number of pictures before it
        "past": [list(shape[1:]) for shape in past],  # of keys and values in turn: heads, width
        "pads_left": pads,  # rows of different lengths may share a run, padded at the left
        "in_place": in_place,  # no step copies the past
        "tokens": {name: value for name, value in tokens.items() if value is not None},
    }


def _names_of_result(model: PreTrainedModel, block: Block) -> set[str]:
    with torch.inference_mode():
        return {*called(model, _drawn(block), {"return_dict": True, "use_cache": False})}


def _drawn(block: Block) -> dict[str, Tensor]:
    drawn = draw(block.inputs, with_room(PROBED, block.inputs))
    return {name: torch.from_numpy(array) for name, array in drawn.items()}


def _caches(model: PreTrainedModel, block: Block) -> tuple[Shapes, Shapes]:
    """The shapes [length, heads, width] of the keys and values of all layers: of the past, and of the encoder's.

    Raises:
        ModelRefused: it keeps no keys and values, or does not keep them for exactly the layers of the weights.
    """
    own, cross = DynamicCache(), DynamicCache()
    cache = EncoderDecoderCache(own, cross) if has_two_stacks(model) else own
    try:
        with torch.inference_mode():
            called(model, {**_drawn(block), "past_key_values": cache}, {"use_cache": True, "return_dict": True})
        shapes = [[tuple(tensor.shape) for tensor in tensors_of(each)] for each in (own, cross)]
    except Exception as error:  # of many types: other caches, other states than keys and values
        raise ModelRefused(f"it keeps no keys and values: {error}") from None
    layers = block.outputs["weights"].shape[0]
    if len(shapes[0]) != 2 * int(layers) or any(len(shape) != 4 for several in shapes for shape in several):
        raise ModelRefused(f"it keeps the keys and values of {len(own.layers)} layers, and has weights of {layers}")
    past, crossed = ([(length, heads, width) for _, heads, length, width in several] for several in shapes)
    return [*past], [*crossed]


def _steps(
    block: Block,
    model: PreTrainedModel,
    past: Shapes,
    cross: Shapes,
    in_place: bool,
    weights: SharedWeights | None,
    report: Report,
) -> dict[str, onnx.ModelProto]:
    described = _step_block(block, model, past, cross)
    with _attention(model, IN_PLACE if in_place else "eager"):
        report(f"tracing {DECODE}.onnx")
        whole = _exported(described, Step(model, len(past) // 2, in_place), weights)
    kept = [name for name in described.outputs if name == "logits" or name in names("", len(past) // 2)]
    return {DECODE: whole, OUTPUT: part_of(whole, list(described.inputs), kept)}


def _exported(block: Block, module: torch.nn.Module, weights: SharedWeights | None) -> onnx.ModelProto:
    try:
        return export_graph(block, module, list(block.inputs), list(block.outputs), None, TRACED, weights)
    except ModelRefused:
        raise
    except Exception as error:  # torch's exporter raises errors of many types
        raise ModelRefused(f"torch cannot export a step: {reason_of(error)}") from None


def _step_block(block: Block, model: PreTrainedModel, past: Shapes, cross: Shapes) -> Block:
    """The step as a block, for its names and dimensions: n earlier tokens, m new ones, s positions of the encoder."""
    layers = len(past) // 2
    length: Dim = _source_length(block, cross)
    ids = block.inputs["decoder_input_ids" if cross else "input_ids"]
    inputs: dict[str, Input] = {}
    if not cross:
        inputs |= {"input_ids": replace(ids, shape=("batch", "m")), "attention_mask": _mask("n + m")}
        pictures = {name: spec for name, spec in block.inputs.items() if spec.placeholder}
        inputs |= pictures
        if pictures and packed_tower(model):
            inputs[PICTURES_BEFORE] = Input(("batch",), "Pictures before the new tokens.", dtype="int64", minimum=0)
    else:
        inputs["decoder_input_ids"] = ids
        if "attention_mask" in block.inputs and "attention_mask" in arguments_of(model):
            inputs["attention_mask"] = _mask(length)
        for name, shape in zip(names("cross_", layers), cross, strict=True):
            inputs[name] = Input((length, "batch", *shape[1:]), "Of the encoder.")
    for name, shape in zip(names("past_", layers), past, strict=True):
        inputs[name] = Input(("1 + n", "batch", *shape[1:]), "Of earlier tokens, behind a row of zeros.")
    weights, hidden = block.outputs["weights"].shape, block.outputs.get("hidden_states")
    logits = block.outputs["output"].shape
    outputs = {"logits": Output((logits[0], logits[-1]), "Of the token after the last one.")}
    for name, shape in zip(names("", layers), past, strict=True):
        outputs[name] = Output(("m", "batch", *shape[1:]), "Of the new tokens.")
    outputs["weights"] = Output((*weights[:3], "m", "n + m"), "Of the new tokens.")
    if cross:
        outputs["cross_weights"] = Output(
            (*block.outputs["cross_weights"].shape[:3], "m", length), "Of the new tokens."
        )
    if hidden:
        outputs["hidden_states"] = Output((hidden.shape[0], "batch", "m", hidden.shape[3]), "Of the new tokens.")
    return replace(block, inputs=inputs, outputs=outputs)


def _encoder_block(block: Block, cross: Shapes) -> Block:
    inputs = {name: spec for name, spec in block.inputs.items() if name in (*MAIN, "attention_mask")}
    length = block.outputs["cross_weights"].shape[-1]
    outputs = {
        name: Output((length, "batch", *shape[1:]), "Of the encoder.")
        for name, shape in zip(names("cross_", len(cross) // 2), cross, strict=True)
    }
    beginnings = ("encoder_weights", "encoder_hidden_states")
    recorded = {name: spec for name, spec in block.outputs.items() if name.startswith(beginnings)}
    return replace(block, inputs=inputs, outputs=outputs | recorded)


def _source_length(block: Block, cross: Shapes) -> Dim:
    """The symbol of the encoder's positions, or their number if it is fixed, as for spectrograms."""
    length = block.outputs["cross_weights"].shape[-1] if cross else "s"
    return length if isinstance(length, int) else "s"


def _mask(length: Dim) -> Input:
    return Input(("batch", length), "1 = a token, 0 = padding.", dtype="int64", minimum=0, maximum=1)


@contextmanager
def _attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(name)
        yield
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ModelRefused(str(error)) from None
    finally:
        model.set_attn_implementation(before)
