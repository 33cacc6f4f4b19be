"""How far a changed run differs from the unchanged one, as one number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.base.errors import Invalid, Malformed
from service.base.messages import shortened
from service.codec.json_parser import JsonArray, JsonObject
from service.codec.json_reader import JsonReader, describe
from service.interventions.intervenable import ANSWER, HIDDEN
from service.interventions.request import within
from service.model.model import Model
from service.tensors.dims import Sizes, dim_size
from service.tokens.tokenizer import Tokenizer

FIELD = "metric"
TEXT_EMBEDDING = "text_embedding"  # of a model that compares texts with images
EMBEDDINGS = ("embedding", TEXT_EMBEDDING)
MAX_TOKEN_CHARS = 1000  # of a text that is one token: a longer one need not be tokenized to be refused
Scores = np.ndarray


def _log_softmax(scores: Scores) -> np.ndarray:
    shifted = scores.astype(np.float64) - scores.max(-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def _logit_difference(scores: Scores, _: Scores, tokens: Sequence[int]) -> np.ndarray:
    first, second = (scores[..., token].astype(np.float64) for token in tokens)
    difference: np.ndarray = first - second
    return difference


def _probability(scores: Scores, _: Scores, tokens: Sequence[int]) -> np.ndarray:
    probability: np.ndarray = np.exp(_log_softmax(scores)[..., tokens[0]])
    return probability


def _kl(scores: Scores, unchanged: Scores, _: Sequence[int]) -> np.ndarray:
    before, after = _log_softmax(unchanged), _log_softmax(scores)
    divergence: np.ndarray = (np.exp(before) * (before - after)).sum(-1).clip(min=0)
    return divergence


def _total_variation(scores: Scores, unchanged: Scores, _: Sequence[int]) -> np.ndarray:
    distance: np.ndarray = np.abs(np.exp(_log_softmax(unchanged)) - np.exp(_log_softmax(scores))).sum(-1) / 2
    return distance


def _cosine_distance(vectors: np.ndarray, unchanged: np.ndarray, _: Sequence[int]) -> np.ndarray:
    first, second = vectors.astype(np.float64), unchanged.astype(np.float64)
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    cosine: np.ndarray = (first * second).sum(-1) / np.where(lengths == 0, 1, lengths)
    distance: np.ndarray = (1 - cosine).clip(min=0)  # of equal vectors it may round below
    return distance


@dataclass(frozen=True)
class _Kind:
    compute: Callable[[np.ndarray, np.ndarray, Sequence[int]], np.ndarray]
    tokens: int = 0
    is_of_scores: bool = True


KINDS = {
    "logit_difference": _Kind(_logit_difference, tokens=2),
    "probability": _Kind(_probability, tokens=1),
    "kl": _Kind(_kl),
    "total_variation": _Kind(_total_variation),
    "cosine_distance": _Kind(_cosine_distance, is_of_scores=False),
}


@dataclass(frozen=True)
class Metric:
    """A metric of the output ``of``, at one position of it."""

    name: str
    of: str
    tokens: tuple[int, ...] = ()
    field: str = FIELD  # in errors

    @property
    def json(self) -> Any:
        """It as answers have it: the name, or an object of the name and the tokens' ids."""
        return {self.name: [*self.tokens]} if self.tokens else self.name

    def check(self, model: Model, sizes: Sizes) -> None:
        """Check that the output of a run of these ``sizes`` has the scores of the tokens.

        Raises:
            Invalid: one is out of range.
        """
        size = dim_size(model.outputs[self.of].shape[-1], sizes)
        for token in self.tokens:
            if not 0 <= token < size:
                raise Invalid(f"expected indices from 0 to {size - 1}, got {token}", self.field)

    def __call__(self, changed: np.ndarray, unchanged: np.ndarray) -> np.ndarray:
        """A number for each row of ``changed`` [rows, width], beside ``unchanged`` [width], in float64."""
        return KINDS[self.name].compute(changed, unchanged, self.tokens)


def read_metric(element: Any, reader: JsonReader, model: Model, field: str = FIELD) -> Metric:
    """The metric in the JSON ``element`` of ``field``: a name, or an object of a name and tokens; None = the model's.

    Raises:
        Malformed: there is no such metric, or tokens are missing.
        Invalid: a token that the model does not have, or a metric that it cannot have.
    """
    element = reader.part(element)
    has_scores, has_towers = _has_scores(model), TEXT_EMBEDDING in model.outputs
    name, given = ("kl" if has_scores and not has_towers else "cosine_distance") if element is None else element, None
    if isinstance(element, JsonObject):
        if len(element) != 1:
            raise Malformed(f"expected an object with one field, got {len(element)}", field)
        name = next(iter(element))
        given = reader.part(element[name])
    if not isinstance(name, str) or name not in KINDS:
        raise Malformed(f"expected one of {', '.join(KINDS)}, got {describe(name)}", field)
    kind = KINDS[name]
    if kind.is_of_scores and not has_scores:
        raise Invalid(
            f"not accepted: {name} needs scores of tokens or classes, which the output of '{model.name}' is not; "
            "expected cosine_distance",
            field,
        )
    tokens = _tokens(name, given, kind.tokens, reader, model, field)
    embedding = next((output for output in EMBEDDINGS if output in model.outputs), ANSWER)
    return Metric(name, ANSWER if kind.is_of_scores else embedding, tokens, field)


def _tokens(name: str, given: Any, count: int, reader: JsonReader, model: Model, field: str) -> tuple[int, ...]:
    items: list[Any] = [] if given is None else [given]
    if isinstance(given, JsonArray):
        reader.brackets += 1
        items = [reader.part(item) for item in given] if len(given) == count else [None] * len(given)
    if len(items) != count:
        if not count:
            raise Malformed(f"{name} takes no tokens", field)
        example = '" Paris"' if count == 1 else '[" Paris", " Rome"]'
        plural = "s" * (count > 1)
        raise Malformed(f'expected {count} token{plural}, such as {{"{name}": {example}}}, got {len(items)}', field)
    return tuple(_token(item, model, field) for item in items)


def _token(item: Any, model: Model, field: str) -> int:
    if type(item) is int:
        return item
    if not isinstance(item, str):
        raise Invalid(f"expected a token, or its id, got {describe(item)}", field)
    tokenizer: Tokenizer | None = model.tokenizer
    if tokenizer is None or not model.signature.scores_tokens:
        raise Invalid(f"expected the index of a score, got {describe(item)}: the scores are not token logits", field)
    if len(item) > MAX_TOKEN_CHARS:
        raise Invalid(f"expected one token, got a text of {len(item):,} characters", field)
    with within(field):
        ids = tokenizer.encode([item], None, False, special_tokens=False).input_ids[0].tolist()
    if len(ids) != 1:
        parts = shortened(", ".join(repr(tokenizer.token(index)) for index in ids), 200)
        raise Invalid(f"expected one token, got {item!r}, which has {len(ids)}: {parts}", field)
    token = tokenizer.token(ids[0])
    if token is not None and token == tokenizer.unknown_token != item:
        raise Invalid(f"expected a token of the vocabulary, got {item!r}, which becomes {token!r}", field)
    return int(ids[0])


def _has_scores(model: Model) -> bool:
    """Whether the output is scores of tokens or classes, and not hidden states."""
    hidden, output = model.outputs.get(HIDDEN), model.outputs[ANSWER].shape
    is_hidden = hidden is not None and output == hidden.shape[1:]
    return model.signature.predicts_tokens or not is_hidden
