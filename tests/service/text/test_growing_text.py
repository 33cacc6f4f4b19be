"""The text of tokens that come one after the other, beside the library's text of all of them."""

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from service.tokens.growing_text import MAX_PENDING, GrowingText

TEXTS = ["a café, two", "日本語 ✓ text", "👩🏽‍🚀 and 🇫🇷", "naïve  spaces ", "\u0301\u0301e"]


def byte_level():
    """The bytes of characters, as GPT-2 has them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback():
    """Words, and bytes for all else, as Llama has them."""
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), "<unk>", "▁", "a", "▁and", "t", "e", "x"]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    steps = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([*steps])
    return tokenizer


@pytest.fixture(params=[byte_level, byte_fallback])
def tokenizer(request):
    return request.param()


def text_of(tokenizer, ids, silent=()):
    growing = GrowingText(tokenizer, silent)
    return "".join(growing.add(index) for index in ids)


@pytest.mark.parametrize("text", TEXTS)
def test_it_is_that_of_all_tokens(tokenizer, text):
    ids = tokenizer.encode(text).ids
    assert text_of(tokenizer, ids) == tokenizer.decode(ids)


def test_bytes_that_are_no_character_are_no_error(tokenizer):
    for seed in range(50):
        draws = random.Random(seed)
        ids = [draws.randrange(tokenizer.get_vocab_size()) for _ in range(100)]
        assert text_of(tokenizer, [*ids, *tokenizer.encode(" and then").ids]).endswith("and then")


def test_tokens_that_make_no_character_are_decoded_only_a_few_times(tokenizer):
    decoded = []

    class Counted:
        def decode(self, ids):
            decoded.append(len(ids))
            return tokenizer.decode(ids)

        def __getattr__(self, name):
            return getattr(tokenizer, name)

    text_of(Counted(), [tokenizer.encode("é").ids[-1]] * 1000)
    assert max(decoded) <= 2 * MAX_PENDING


def test_special_and_unknown_tokens_add_nothing(tokenizer):
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    end = tokenizer.token_to_id("<end>")
    ids = tokenizer.encode("café and").ids
    mixed = [one for index in ids for one in (index, end, 10**6)]
    assert text_of(tokenizer, mixed, {end}) == tokenizer.decode(ids)
