"""How the next token is chosen from logits: the parameters of transformers' ``generate``, with the same meanings.

``temperature`` (Ackley et al. 1985) divides the logits; 0 takes the most probable token. ``top_k`` (Fan et al.,
arXiv:1805.04833), ``top_p`` (Holtzman et al., arXiv:1904.09751) and ``min_p`` (Nguyen et al., arXiv:2407.01082) leave
improbable tokens out, one after the other. ``repetition_penalty`` (Keskar et al., arXiv:1909.05858) makes tokens that
were there less probable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from service.base.errors import Invalid
from service.codec.json_reader import describe

MAX_SEED = 2**63 - 1
LARGEST = np.finfo(np.float64).max


@dataclass(frozen=True, slots=True)
class Number:
    """The numbers that a parameter accepts: from ``least`` (or above it) to ``most``."""

    least: float
    most: float | None = None
    above: bool = False
    whole: bool = False

    def read(self, name: str, value: Any) -> Any:
        """``value``.

        Raises:
            Invalid: it is no such number.
        """
        kinds = (int,) if self.whole else (int, float)
        is_number = type(value) in kinds and (self.least < value if self.above else self.least <= value)
        if not is_number or (self.most is not None and value > self.most) or value == float("inf"):
            raise Invalid(f"expected {self.words}, got {describe(value)}", name)
        return value

    @property
    def words(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.most is None:
            return f"{kind} {'greater than' if self.above else 'of at least'} {self.least:g}"
        if self.above:
            return f"{kind} greater than {self.least:g} and at most {self.most:,}"
        return f"{kind} from {self.least:g} to {self.most:,}"


NUMBERS = {
    "temperature": Number(0),
    "top_k": Number(0, whole=True),
    "top_p": Number(0, 1, above=True),
    "min_p": Number(0, 1),
    "repetition_penalty": Number(0, above=True),
    "seed": Number(0, MAX_SEED, whole=True),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """The parameters of a request; ``top_k`` 0 and ``seed`` None are not given."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None


def read_sampling(fields: Mapping[str, Any]) -> Sampling:
    """The parameters among ``fields``; null is not given.

    Raises:
        Invalid: one that is out of range; ``field`` names it.
    """
    given = {name: fields[name] for name in NUMBERS if fields.get(name) is not None}
    return Sampling(**{name: NUMBERS[name].read(name, value) for name, value in given.items()})


@dataclass(slots=True)
class Sampler:
    """Chooses the tokens of one sequence. Its random numbers are of the seed, whatever else the process does.

    ``suppressed`` tokens are never chosen, ``first_suppressed`` ones not as the first; ``forced`` are the tokens that
    must stand at a place, counted from the first that is generated.
    """

    sampling: Sampling
    suppressed: Sequence[int] = ()
    first_suppressed: Sequence[int] = ()
    forced: Mapping[int, int] = field(default_factory=dict)
    _rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.sampling.seed)

    def choose(self, logits: np.ndarray, seen: np.ndarray, place: int) -> int:
        """The token that follows ``seen``, from float32 ``logits`` [vocabulary]."""
        if place in self.forced:
            return self.forced[place]
        if self._is_plain:
            return int(logits.argmax())
        scores = self.scores(logits.astype(np.float64), seen, place)
        if self.sampling.temperature == 0:
            return int(scores.argmax())
        cumulative = np.cumsum(softmax(scores))
        return int(np.searchsorted(cumulative, self._rng.random() * cumulative[-1], side="right"))

    @property
    def _is_plain(self) -> bool:
        """Whether no parameter changes which token is the most probable one, which is taken."""
        is_greedy = self.sampling.temperature == 0 and self.sampling.repetition_penalty == 1
        return is_greedy and not self.suppressed and not self.first_suppressed

    def scores(self, logits: np.ndarray, seen: np.ndarray, place: int) -> np.ndarray:
        """``logits`` after all parameters, whose softmax has the probabilities of the tokens; -inf = left out.

        No parameter leaves out the most probable token, or makes a score infinite or NaN.
        """
        scores, sampling = logits.copy(), self.sampling
        if sampling.repetition_penalty != 1:
            before = scores[seen]
            penalty = sampling.repetition_penalty
            with np.errstate(over="ignore"):
                scores[seen] = np.clip(np.where(before < 0, before * penalty, before / penalty), -LARGEST, LARGEST)
        scores[[*self.suppressed, *(self.first_suppressed if place == 0 else ())]] = -np.inf
        if sampling.temperature == 0:
            return scores
        with np.errstate(over="ignore"):
            scores -= scores.max()
            scores /= sampling.temperature
        if 0 < sampling.top_k < scores.size:
            scores[scores < np.partition(scores, -sampling.top_k)[-sampling.top_k]] = -np.inf
        if sampling.top_p < 1:
            order = scores.argsort(kind="stable")
            scores[order[:-1][np.cumsum(softmax(scores[order]))[:-1] <= 1 - sampling.top_p]] = -np.inf
        if sampling.min_p > 0:
            p = softmax(scores)
            scores[p < sampling.min_p * p.max()] = -np.inf
        return scores


def softmax(scores: np.ndarray) -> np.ndarray:
    """The probabilities of float64 ``scores``; -inf is 0."""
    powers = np.exp(scores - scores.max())
    probabilities: np.ndarray = powers / powers.sum()
    return probabilities
