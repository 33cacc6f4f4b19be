"""The most probable next tokens of texts, from the logits of a language model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from service.base.errors import Invalid
from service.codec.json_reader import describe
from service.model.model import Model
from service.selection.reductions import largest
from service.tensors.bfloat16 import to_float32
from service.tensors.cast import is_finite
from service.tokens.tokenizer import Tokenizer

FIELD = "next_tokens"
LOGITS = "output"
MAX_COUNT = 100
TOKEN_BYTES = 512  # memory for one of the tokens, as an object and as JSON
LOGIT_BYTES = 48  # memory for each logit of the text that is worked on


def read_count(value: Any, model: Model) -> int:
    """The requested number of next tokens; 0 = none.

    Raises:
        Invalid: no number from 1 to MAX_COUNT, or more than there are tokens, or the model predicts no next token.
    """
    if value is None:
        return 0
    if type(value) is not int or not 0 < value <= MAX_COUNT:
        raise Invalid(f"expected a whole number from 1 to {MAX_COUNT}, got {describe(value)}", FIELD)
    if not model.signature.predicts_tokens:
        raise Invalid(
            f"'{model.name}' ({model.spec.title if model.spec else ''}) does not predict the next token: its output "
            "must be the logits of a causal or conditional language model",
            FIELD,
        )
    if value > (vocabulary := vocabulary_size(model)):
        raise Invalid(f"expected at most {vocabulary}, the size of the vocabulary, got {value}", FIELD)
    return value


def vocabulary_size(model: Model) -> int:
    """The number of logits of each position."""
    return int(model.outputs[LOGITS].shape[-1])


def next_tokens(
    logits: np.ndarray, inputs: Mapping[str, np.ndarray], count: int, tokenizer: Tokenizer
) -> list[list[dict[str, Any]]]:
    """For each text the ``count`` most probable next tokens, largest first; of equal ones the lower id.

    They are those of the softmax, in float64, of the ``logits`` [batch, n, vocabulary] at the last position that the
    mask among the run's ``inputs`` counts as a token, of the decoder where there are two stacks.

    Raises:
        Invalid: a logit is not finite.
    """
    rows = []
    for row, place in zip(logits, last_places(inputs, *logits.shape[:2]), strict=True):
        scores = to_float32(row[place])
        if not is_finite(scores):
            raise Invalid(f"{LOGITS} is not finite: the inputs overflow {logits.dtype}", FIELD)
        ids, _ = largest(scores[None], count)
        powers = np.exp(scores.astype(np.float64) - scores.max())
        total = powers.sum()
        rows.append(
            [
                {"id": index, "token": tokenizer.token(index), "probability": float(powers[index] / total)}
                for index in ids[0].tolist()
            ]
        )
    return rows


def last_places(inputs: Mapping[str, np.ndarray], rows: int, length: int) -> np.ndarray:
    """The last position of each row that is no padding."""
    mask = inputs.get("decoder_attention_mask" if "decoder_input_ids" in inputs else "attention_mask")
    if mask is None:
        return np.full(rows, length - 1)
    last_first = np.broadcast_to(mask, (rows, length))[:, ::-1]
    places: np.ndarray = length - 1 - last_first.argmax(axis=1)
    return places
