"""How the next token is chosen, beside transformers' logits processors."""

import numpy as np
import pytest
import torch
from transformers import generation

from service.base.errors import Invalid
from service.generation.sampling import Sampler, Sampling, read_sampling, softmax

SEEN = np.array([3, 4, 4, 17])
PROCESSORS = {
    "temperature": (0.7, generation.TemperatureLogitsWarper),
    "top_k": (5, lambda k: generation.TopKLogitsWarper(top_k=k)),
    "top_p": (0.8, generation.TopPLogitsWarper),
    "min_p": (0.1, generation.MinPLogitsWarper),
    "repetition_penalty": (1.5, generation.RepetitionPenaltyLogitsProcessor),
}
ORDER = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")  # of transformers


@pytest.fixture
def logits():
    return 3 * np.random.default_rng(0).standard_normal(60)


@pytest.mark.parametrize("names", [*((name,) for name in ORDER), ORDER, ORDER[2:]], ids="+".join)
def test_the_probabilities_are_those_of_transformers(logits, names):
    values = {name: PROCESSORS[name][0] for name in names}
    expected = torch.tensor(logits)[None]
    for name in names:
        expected = PROCESSORS[name][1](values[name])(torch.tensor(SEEN)[None], expected)
    sampling = Sampling(**{"temperature": 1.0, **values})
    actual = softmax(Sampler(sampling).scores(logits, SEEN, 0))
    np.testing.assert_allclose(actual, torch.softmax(expected, -1)[0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-30, 1.0, 1e308])
@pytest.mark.parametrize("top_p", [5e-324, 1e-17, 0.5, 1])
@pytest.mark.parametrize("repetition_penalty", [5e-324, 1e-308, 1, 1e308])
def test_no_parameter_leaves_out_all_tokens(logits, temperature, top_p, repetition_penalty):
    """However small or large they are: the token is the most probable one, or as probable as it."""
    for others in ({}, {"top_k": 1}, {"min_p": 1.0}):
        sampling = Sampling(temperature, top_p=top_p, repetition_penalty=repetition_penalty, seed=0, **others)
        sampler = Sampler(sampling)
        with np.errstate(all="raise", under="ignore"):
            scores = sampler.scores(logits, SEEN, 0)
            token = sampler.choose(logits, SEEN, 0)
        assert scores[token] > -np.inf
        if temperature <= 1e-30 or top_p < 0.1:
            assert scores[token] == scores.max()


def test_tokens_come_as_often_as_they_are_probable(logits):
    sampler = Sampler(Sampling(temperature=1.0, seed=7))
    count = 20_000
    found = np.bincount([sampler.choose(logits, SEEN, 0) for _ in range(count)], minlength=60) / count
    p = softmax(logits)
    assert (np.abs(found - p) <= 5 * np.sqrt(p / count)).all()


def test_a_seed_gives_the_same_tokens(logits):
    first, second, other = (
        [sampler.choose(logits, SEEN, 0) for _ in range(20)]
        for sampler in (Sampler(Sampling(temperature=2.0, seed=seed)) for seed in (5, 5, 6))
    )
    assert first == second != other


def test_tokens_that_are_forced_or_suppressed(logits):
    best, next_best = np.argsort(logits)[::-1][:2]
    assert Sampler(Sampling()).choose(logits, SEEN, 0) == best
    assert Sampler(Sampling(), suppressed=[best]).choose(logits, SEEN, 9) == next_best
    only_first = Sampler(Sampling(), first_suppressed=[best])
    assert [only_first.choose(logits, SEEN, place) for place in (0, 1)] == [next_best, best]
    assert Sampler(Sampling(), forced={2: 55}).choose(logits, SEEN, 2) == 55


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "a number of at least 0, got -0.1"),
        ("temperature", "hot", 'a number of at least 0, got "hot"'),
        ("top_k", 2.5, "a whole number of at least 0, got 2.5"),
        ("top_p", 0, "a number greater than 0 and at most 1, got 0"),
        ("top_p", 1.5, "a number greater than 0 and at most 1, got 1.5"),
        ("min_p", True, "a number from 0 to 1, got a boolean"),
        ("repetition_penalty", 0, "a number greater than 0, got 0"),
        ("seed", -1, "a whole number from 0 to 9,223,372,036,854,775,807, got -1"),
    ],
)
def test_a_wrong_parameter_is_named(field, value, message):
    with pytest.raises(Invalid, match=f"^{field}: expected {message}".replace("+", r"\+")) as raised:
        read_sampling({field: value})
    assert raised.value.field == field
