"""The memory that is reserved for tokenizing."""

import tracemalloc
from types import SimpleNamespace

import pytest

from service.text.request import TextFields, tokenize, tokens_json
from service.tokenizer import Tokenizer
from tests.support.texts import tokenizer


@pytest.fixture
def model(tmp_path):
    """What tokenizing needs of a model without a limit on its positions."""
    (tmp_path / "tokenizer.json").write_text(tokenizer().backend_tokenizer.to_str())
    return SimpleNamespace(
        tokenizer=Tokenizer(tmp_path / "tokenizer.json"),
        inputs={"input_ids": None, "attention_mask": None},
        spec=SimpleNamespace(config={}),
        max_tokens=lambda _name: None,
    )


def fields(texts, truncation=None):
    return TextFields(texts, [], is_single=False, truncation=truncation, special_tokens=True)


def test_short_texts_beside_a_long_one_reserve_their_padding(model):
    """255 texts are padded to 4,002 tokens each: 100 times the memory of their own tokens."""
    texts = fields(["a"] * 255 + ["a " * 4000])
    tracemalloc.start()
    try:
        tokens_json(tokenize(texts, model), is_single=False, whole=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert texts.size * 768 < peak <= texts.memory(model) < 4 * peak


def test_truncated_texts_reserve_what_is_left_of_them(model):
    model.max_tokens = lambda _name: 16
    texts = fields(["a"] * 255 + ["a " * 4000], truncation=True)
    assert texts.memory(model) == texts.size * 768 + 256 * 16 * 80
