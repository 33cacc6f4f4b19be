"""One step of generation, and the encoder before the first one, as modules with Heed's names."""

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from export.hf.generation.past import PastCache, fixed_cache, tensors_of
from export.hf.parts import PICTURES_BEFORE, arguments_of, called, config_of, has_two_stacks
from export.hf.wrapper import by_stage, have_one_shape

PAST = ("key", "value")
RECORDED = {"output_attentions": True, "output_hidden_states": True, "return_dict": True, "use_cache": True}


def names(prefix: str, layers: int) -> list[str]:
    """The names of the keys and values of all layers, in order: ``key_0``, ``value_0``, ``key_1``, ..."""
    return [f"{prefix}{kind}_{layer}" for layer in range(layers) for kind in PAST]


class Step(nn.Module):
    """New tokens after a past: the logits of the token after the last one, and the tokens' keys and values.

    Inputs: ``input_ids`` [batch, m] and ``attention_mask`` [batch, n + m], with padding at the left. A model that reads
    pictures has ``pixel_values`` [images, channels, height, width], the pictures among the new tokens, and, if the
    positions depend on earlier pictures, ``pictures_before`` [batch]. A model with two stacks has instead
    ``decoder_input_ids`` [batch, m], ``attention_mask`` [batch, s] of the source if it is text, ``cross_key_0``, ...
    [s, batch, heads, width]. ``past_key_0``, ... are [1 + n, batch, heads, width] (``past``).

    Outputs: ``logits`` [batch, vocabulary], ``key_0``, ... [m, batch, heads, width], ``weights`` and ``cross_weights``
    [layers, batch, heads, m, keys], ``hidden_states`` [layers + 1, batch, m, width].
    """

    def __init__(self, model: PreTrainedModel, layers: int, in_place: bool) -> None:
        super().__init__()
        self.model = model
        self.layers = layers
        self.in_place = in_place
        self.has_two_stacks = has_two_stacks(model)
        self.known = arguments_of(model)

    def forward(self, **inputs: Tensor) -> SimpleNamespace:
        cache = PastCache([inputs[name] for name in names("past_", self.layers)], self.in_place)
        arguments: dict[str, Any] = {}
        if "logits_to_keep" in self.known:
            arguments["logits_to_keep"] = 1
        if self.has_two_stacks:
            cross = [inputs[name] for name in names("cross_", self.layers)]
            arguments |= self._after_encoder(cross) | {
                "past_key_values": EncoderDecoderCache(cache, fixed_cache(cross))
            }
            arguments |= {name: inputs[name] for name in ("decoder_input_ids", "attention_mask") if name in inputs}
        else:
            mask = inputs["attention_mask"]
            arguments |= {"input_ids": inputs["input_ids"], "attention_mask": mask, "past_key_values": cache}
            arguments |= {name: inputs[name] for name in ("pixel_values", PICTURES_BEFORE) if name in inputs}
            if "position_ids" in self.known:
                positions = (mask.cumsum(-1) - 1).clamp(min=0)
                arguments["position_ids"] = positions[:, -inputs["input_ids"].shape[1] :]
        with cache.attended() if self.in_place else nullcontext():
            result = called(self.model, arguments, RECORDED)
        outputs = {"logits": result["logits"][:, -1], **dict(zip(names("", self.layers), cache.new(), strict=True))}
        return SimpleNamespace(**outputs, **_recorded(result, self.has_two_stacks))

    def _after_encoder(self, cross: Sequence[Tensor]) -> dict[str, Any]:
        """Zeros in place of the encoder's hidden states; only their shape is used, since the keys are given."""
        length, batch, *_ = cross[0].shape
        width = config_of(self.model, "input_ids").hidden_size
        return {"encoder_outputs": BaseModelOutput(last_hidden_state=cross[0].new_zeros(batch, length, width))}


class Encoder(nn.Module):
    """The keys and values of the cross-attentions, ``cross_key_0``, ... [s, batch, heads, width], of a source."""

    def __init__(self, model: PreTrainedModel, layers: int) -> None:
        super().__init__()
        self.model = model
        self.layers = layers

    def forward(self, **inputs: Tensor) -> SimpleNamespace:
        cross = DynamicCache()
        main = next(iter(inputs.values()))
        start = torch.zeros((main.shape[0], 1), dtype=torch.int64)
        mask = inputs.get("attention_mask")
        given = inputs if mask is None else {**inputs, "attention_mask": mask.expand(main.shape)}
        cache = EncoderDecoderCache(DynamicCache(), cross)
        result = self.model(**given, decoder_input_ids=start, past_key_values=cache, **RECORDED)
        tensors = [tensor.permute(2, 0, 1, 3) for tensor in tensors_of(cross)]
        outputs = dict(zip(names("cross_", self.layers), tensors, strict=True))
        outputs |= by_stage("encoder_weights", "encoder_attentions", result.encoder_attentions, main.shape[0])
        if have_one_shape(result.encoder_hidden_states):
            outputs["encoder_hidden_states"] = torch.stack(result.encoder_hidden_states)
        return SimpleNamespace(**outputs)


def _recorded(result: Any, two_stacks: bool) -> dict[str, Tensor]:
    prefix = "decoder_" if two_stacks else ""
    outputs = {"weights": torch.stack(result[f"{prefix}attentions"])}
    if two_stacks:
        outputs["cross_weights"] = torch.stack(result["cross_attentions"])
    hidden = result[f"{prefix}hidden_states"]
    if have_one_shape(hidden):
        outputs["hidden_states"] = torch.stack(hidden)
    return outputs
