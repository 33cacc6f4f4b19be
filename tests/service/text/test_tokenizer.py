"""The tokenizer's padding and truncation, and what a decoder reads."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
import tokenizers

import service.tokens.tokenizer
from service.base.errors import Invalid
from service.model.spec import Placeholder
from service.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.support.texts import tokenizer

BLANKS = [(" ", "▁"), ("\t", "<|tab|>")]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer().backend_tokenizer.to_str())
    return tmp_path


def listed(rows):
    """The lists whose elements are JSON in pieces."""
    return [json.loads(b"[%b]" % b",".join(row)) for row in rows]


def with_options(folder, **options):
    """The tokenizer in the folder, once fields of its file have changed."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | options))
    return load_tokenizer(folder)


def with_padding(folder, direction):
    padding = {"strategy": {"Fixed": 128}, "direction": direction, "pad_to_multiple_of": None, "pad_id": 1}
    return with_options(folder, padding=padding | {"pad_type_id": 0, "pad_token": "<pad>"})


@pytest.mark.parametrize(
    ("direction", "ids", "mask"),
    [("Right", [0, 20, 2, 1], [1, 1, 1, 0]), ("Left", [1, 0, 20, 2], [0, 1, 1, 1])],
)
def test_texts_are_padded_to_the_longest_on_the_side_that_the_file_says(direction, ids, mask, folder):
    encoded = with_padding(folder, direction).encode(["who", "the cat"], None)
    assert encoded.input_ids[0].tolist() == ids
    assert encoded.attention_mask[0].tolist() == mask
    assert listed(encoded.tokens)[0][mask.index(0)] == "<pad>"
    assert listed(encoded.offsets)[0][mask.index(0)] == [0, 0]


def test_a_decoder_reads_its_start_once_and_all_but_the_last(folder):
    encoded = load_tokenizer(folder).encode(["a cat", "who"], None, decoder_start=2)
    assert listed(encoded.tokens) == [["</s>", "<s>", "a", "cat"], ["</s>", "<s>", "who", "[PAD]"]]
    assert encoded.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    encoded = load_tokenizer(folder).encode(["a cat"], None, decoder_start=0)  # which the tokenizer itself adds
    assert listed(encoded.tokens) == [["<s>", "a", "cat"]]


@pytest.fixture
def three_for_a_cat(folder):
    """The tokenizer of a model in which three tokens ``cat`` stand for a picture."""
    return load_tokenizer(
        folder, Placeholder(token=load_tokenizer(folder).encode(["cat"], None).input_ids[0, 1], count=3)
    )


def test_a_placeholder_becomes_as_many_tokens_of_the_same_place(three_for_a_cat):
    encoded = three_for_a_cat.encode(["the cat sat on cat cat", "who"], None)
    words = ["<s>", "the", *["cat"] * 3, "sat", "on", *["cat"] * 6, "</s>"]
    assert listed(encoded.tokens) == [words, ["<s>", "who", "</s>", *["[PAD]"] * 11]]
    assert listed(encoded.offsets)[0] == [
        [0, 0], [0, 3], *[[4, 7]] * 3, [8, 11], [12, 14], *[[15, 18]] * 3, *[[19, 22]] * 3, [0, 0]
    ]  # fmt: skip
    assert listed(encoded.sequence_ids)[0] == [None, *[0] * 12, None]
    assert encoded.attention_mask.tolist() == [[1] * 14, [1] * 3 + [0] * 11]
    ids = encoded.input_ids[0].tolist()
    assert ids[2:5] == ids[7:10] == ids[10:13] == [ids[2]] * 3


def test_the_tokens_of_placeholders_count(three_for_a_cat):
    assert three_for_a_cat.encode(["the cat"], 6).input_ids.shape == (1, 6)
    with pytest.raises(Invalid, match="expected at most 5 tokens, got 6"):
        three_for_a_cat.encode(["the cat"], 5)
    assert three_for_a_cat.added_tokens("the cat cat") == 4
    assert three_for_a_cat.added_tokens(("a cat", "the cat")) == 4


def test_truncation_is_to_what_the_model_takes(folder):
    words = " ".join(["cat"] * 30)
    assert load_tokenizer(folder).encode([words], 10, truncation=True).input_ids.shape == (1, 10)
    with pytest.raises(Invalid, match="at most 10 tokens, got 32"):
        load_tokenizer(folder).encode([words], 10)
    with pytest.raises(Invalid):  # too few for the special tokens
        load_tokenizer(folder).encode([("a cat", "who")], 3, truncation=True)


def test_without_a_tokenizer_or_the_package_there_is_none(folder, tmp_path, monkeypatch, caplog):
    assert load_tokenizer(tmp_path / "elsewhere") is None
    monkeypatch.setattr(Tokenizer, "__init__", Mock(side_effect=ModuleNotFoundError("tokenizers")))
    assert load_tokenizer(folder) is None
    assert "tokenizers is not installed" in caplog.text


ROWS = ["input_ids", "attention_mask", "token_type_ids", "tokens", "offsets", "sequence_ids"]
LONG = " ".join(["the cat sat", "é𝄞  on", "a mat", "zzz"] * 40)
CASES = {
    "one": ([LONG], {}),
    "two": ([LONG, "a cat"], {}),
    "pair": ([(LONG, "who ran"), ("a", LONG)], {}),
    "decoder": ([LONG, "a cat"], {"decoder_start": 2}),
    "decoder, start from the tokenizer": ([LONG, "a cat"], {"decoder_start": 0}),
    "without special tokens": ([LONG, "a cat"], {"special_tokens": False}),
    "truncated": ([LONG, "a cat"], {"limit": 30, "truncation": True}),
    "truncated pair": ([(LONG, "who ran"), ("a", "cat")], {"limit": 30, "truncation": True}),
    "truncated, nearly all": ([LONG], {"limit": 321, "truncation": True}),
    "truncated, without special tokens": ([LONG], {"limit": 30, "truncation": True, "special_tokens": False}),
    "as long as the limit": ([LONG], {"limit": 322, "truncation": True}),
}


def encoded_rows(tokenizer, texts, limit=None, **options):
    """All that a tokenizer says of texts, as lists."""
    encoded = tokenizer.encode(texts, limit, **options)
    rows = [getattr(encoded, name) for name in ROWS]
    return [x.tolist() if isinstance(x, np.ndarray) else listed(x) for x in rows] + [encoded.truncated]


@pytest.mark.parametrize("direction", ["Right", "Left"])
@pytest.mark.parametrize(("texts", "options"), CASES.values(), ids=CASES)
def test_long_texts_are_tokenized_as_short_ones_are(texts, options, direction, folder, monkeypatch):
    """320 tokens in pieces of 7, between which other threads run."""
    tokenizer, sizes, piece = with_padding(folder, direction), [], service.tokens.tokenizer._piece
    expected = encoded_rows(tokenizer, texts, **options)

    def noted(ids, *more):
        sizes.append(len(ids))
        return piece(ids, *more)

    monkeypatch.setattr(service.tokens.tokenizer, "_piece", noted)
    monkeypatch.setattr(service.tokens.tokenizer, "MAX_PIECE_TOKENS", 7)
    assert encoded_rows(tokenizer, texts, **options) == expected
    assert 1 <= max(sizes) <= 7
    assert expected[-1][0] == (options.get("limit", 322) < 322)


TRUNCATION = {"max_length": 20, "strategy": "LongestFirst", "stride": 0, "direction": "Left"}
LATER = {"type": "Replace", "pattern": {"Regex": "cat(?=.*zzz)"}, "content": "dog"}


@pytest.mark.parametrize(
    ("options", "text", "tokens"),
    [
        ({"truncation": TRUNCATION}, "the cat " + "a dog " * 40, ["<s>", *["a", "dog"] * 9, "</s>"]),
        ({"normalizer": LATER}, "cat " * 80 + "zzz", ["<s>", *["dog"] * 18, "</s>"]),
    ],
    ids=["of the left", "of which the first tokens depend on the last"],
)
def test_a_long_text_whose_start_does_not_say_its_tokens(options, text, tokens, folder):
    assert encoded_rows(with_options(folder, **options), [text], 20, truncation=True)[3] == [tokens]


@pytest.mark.parametrize("direction", ["Right", "Left"])
@pytest.mark.parametrize("strategy", ["LongestFirst", "OnlyFirst", "OnlySecond"])
def test_texts_are_truncated_as_by_the_library(strategy, direction, folder):
    """Which would keep the rest in pieces, of a pair each of the one with each of the other."""
    tokenizer = with_options(folder, truncation=TRUNCATION | {"strategy": strategy, "direction": direction})
    library, rng = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), np.random.default_rng(0)
    library.no_padding()
    words = ["the", "cat", "sat", "zzz", "é𝄞"]
    for _ in range(150):
        longest = int(rng.integers(5, 20))
        name = {"LongestFirst": "longest_first", "OnlyFirst": "only_first", "OnlySecond": "only_second"}[strategy]
        library.enable_truncation(longest, strategy=name, direction=direction.lower())
        texts = [" ".join(rng.choice(words, rng.integers(1, 30))) for _ in range(2)]
        text = tuple(texts) if rng.random() < 0.8 else texts[0]
        try:
            (expected,) = library.encode_batch([text])
        except Exception:
            with pytest.raises(Invalid, match="cannot truncate it"):
                tokenizer.encode([text], longest, truncation=True)
            continue
        found = tokenizer.encode([text], longest, truncation=True)
        assert found.input_ids[0].tolist() == expected.ids
        assert found.token_type_ids[0].tolist() == expected.type_ids
        assert listed(found.offsets)[0] == [list(span) for span in expected.offsets]
        assert listed(found.sequence_ids)[0] == expected.sequence_ids
        assert found.truncated == [bool(expected.overflowing)]


def test_long_pairs_take_memory_for_their_own_tokens_alone(folder):
    long = " ".join(["cat"] * 100_000)
    assert load_tokenizer(folder).encode([(long, long)], 12, truncation=True).input_ids.shape == (1, 12)


def test_the_size_of_a_text_is_that_of_the_normalized_one_if_it_is_larger(folder):
    assert load_tokenizer(folder).size("\ufdfa" * 5000) == 5000 * 3
    whole = with_options(folder, normalizer={"type": "NFKC"})
    assert whole.size("\ufdfa" * 5000) == 5000 * 33
    assert whole.size(("\ufdfa", "a cat")) == 33 + 5
    assert whole.size("\ufb01" * 10) == 10 * 3  # a ligature, of which it makes two bytes
    assert not whole.may_lengthen("a cat")


def test_what_stands_for_a_blank_counts_as_one_byte(folder):
    replaced = [{"type": "Replace", "pattern": {"String": before}, "content": after} for before, after in BLANKS]
    whole = with_options(folder, normalizer={"type": "Sequence", "normalizers": replaced})
    assert whole.may_lengthen("plain")
    assert whole.size("a cat\t" * 5000) == 5000 * 12


def test_a_text_on_which_the_normalizer_fails_is_refused(folder):
    """The library gives up on a regular expression that backtracks, with a panic."""
    pattern = {"Regex": "(x+x+)+y"}
    whole = with_options(folder, normalizer={"type": "Replace", "pattern": pattern, "content": "z"})
    assert whole.has_regex
    with pytest.raises(Invalid, match="the model's tokenizer cannot encode it"):
        whole.size("x" * 40)
