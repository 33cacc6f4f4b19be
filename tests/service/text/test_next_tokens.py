"""``next_tokens`` of ``/v1/text``: the softmax of the logits at the last token of each text."""

import numpy as np
import pytest

from tests.support.language_model import LOGITS, VOCABULARY
from tests.support.texts import SPECIAL, TEXTS, WORDS

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
TOKENS = [*SPECIAL, *WORDS]
LAST = {"cat": "the cat", "dog": "who sat on the mat when it was tired the dog", "the": "the"}


def expected(word, count, factor=1):
    """The most probable tokens after ``word``."""
    powers = np.exp(factor * LOGITS[TOKENS.index(word)].astype(np.float64))
    p = powers / powers.sum()
    tokens = [*TOKENS, *[None] * (VOCABULARY - len(TOKENS))]
    order = sorted(range(VOCABULARY), key=lambda index: (-p[index], index))[:count]
    return [{"id": i, "token": tokens[i], "probability": pytest.approx(p[i], rel=1e-12)} for i in order]


@pytest.fixture
def ask_words(ask):
    """``ask_words(model, **body)``: the answer for texts without special tokens."""
    return lambda model="right", **body: ask(f"text/{model}", add_special_tokens=False, **body)


@pytest.mark.parametrize("model", ["right", "left"])
def test_probabilities_are_those_after_the_last_token(ask_words, model):
    """Of texts of different lengths, and so with padding, at one of the sides."""
    answer = ask_words(model, text=[*LAST.values()], next_tokens=5, outputs=["weights"])
    assert answer["next_tokens"] == [expected(word, 5) for word in LAST]
    assert list(answer)[-2:] == ["next_tokens", "weights"]
    for word, text in LAST.items():
        assert ask_words(model, text=text, next_tokens=5, outputs=["weights"])["next_tokens"] == expected(word, 5)


def test_every_token(ask_words):
    found = ask_words(text="a cat", next_tokens=VOCABULARY)["next_tokens"]
    assert found == expected("cat", VOCABULARY)
    assert sum(one["probability"] for one in found) == pytest.approx(1, rel=1e-12)
    assert [one["token"] for one in found].count(None) == 3


def test_a_head_mask_changes_the_probabilities(ask_words):
    """This model's factor is that of its only head; with 0 all tokens are alike, and the lowest ids come first."""
    for factor in (0, 0.5):
        found = ask_words(text="a cat", next_tokens=3, head_mask=[[factor]], outputs=["weights"])["next_tokens"]
        assert found == expected("cat", 3, factor)
    found = ask_words(text="a cat", next_tokens=3, head_mask=[[0]])["next_tokens"]
    assert [one["id"] for one in found] == [0, 1, 2]


def test_the_other_outputs_are_those_of_a_request_without(texts, ask_words):
    for outputs in (["output", "weights"], ["output"], ["weights"], ["entropy", "head_statistics"], None):
        for options in ({}, {"heads": 0, "weights_top_k": 2}):
            if options and "weights" not in (outputs or ["weights"]):
                continue
            plain = ask_words(text=TEXTS, outputs=outputs, **options)
            found = ask_words(text=TEXTS, outputs=outputs, next_tokens=2, **options)
            assert len(found.pop("next_tokens")) == 2
            assert found == plain
    alone = ask_words(text=TEXTS, outputs=[], next_tokens=2)
    assert set(plain) - set(alone) == {"output", "weights"}
    assert texts.post("/v1/text/right", json={"text": "a", "outputs": []}).status_code == 422


@pytest.mark.parametrize(
    ("count", "detail"),
    [
        (0, "expected a whole number from 1 to 100, got 0"),
        (101, "expected a whole number from 1 to 100, got 101"),
        *((count, "expected a whole number") for count in (1.5, "5", True, [5])),
        (VOCABULARY + 1, f"expected at most {VOCABULARY}, the size of the vocab"),
    ],
)
def test_errors(texts, count, detail):
    response = texts.post("/v1/text/right", json={"text": "a cat", "next_tokens": count})
    assert (response.status_code, response.json()["field"]) == (422, "next_tokens")
    assert detail in response.json()["detail"]


def test_it_is_a_field_of_texts_alone(texts, ask_words):
    assert ask_words("masked", text="a cat", next_tokens=None)["tokens"] == ["a", "cat"]
    for path, body in (("tokenize", {"text": "a"}), ("attention", {"input_ids": [1]})):
        response = texts.post(f"/v1/{path}/right", json={**body, "next_tokens": 1})
        assert (response.status_code, response.json()["field"]) == (400, "next_tokens")


def test_logits_that_are_not_finite_are_refused(texts):
    response = texts.post("/v1/text/right", json={"text": "a", "next_tokens": 1, "head_mask": [[3e38]], "outputs": []})
    assert (response.status_code, response.json()["field"]) == (422, "next_tokens")
    assert "output is not finite" in response.json()["detail"]
