"""The tokenizer's padding and truncation, and what a decoder reads."""

import json

import pytest

from service.errors import Invalid
from service.tokenizer import Tokenizer, load_tokenizer
from tests.support.texts import tokenizer


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer().backend_tokenizer.to_str())
    return tmp_path


def with_padding(folder, direction):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["padding"] = {
        "strategy": {"Fixed": 128}, "direction": direction, "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0,
        "pad_token": "<pad>",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return load_tokenizer(folder)


@pytest.mark.parametrize(
    ("direction", "ids", "mask"),
    [("Right", [0, 20, 2, 1], [1, 1, 1, 0]), ("Left", [1, 0, 20, 2], [0, 1, 1, 1])],
)
def test_texts_are_padded_to_the_longest_on_the_side_that_the_file_says(direction, ids, mask, folder):
    encoded = with_padding(folder, direction).encode(["who", "the cat"], None)
    assert encoded.input_ids[0].tolist() == ids
    assert encoded.attention_mask[0].tolist() == mask
    assert encoded.tokens[0][mask.index(0)] == "<pad>"
    assert encoded.offsets[0][mask.index(0)] == (0, 0)


def test_a_decoder_reads_its_start_and_all_but_the_last(folder):
    encoded = load_tokenizer(folder).encode(["a cat", "who"], None, decoder_start=2)
    assert encoded.tokens == [["</s>", "<s>", "a", "cat"], ["</s>", "<s>", "who", "[PAD]"]]
    assert encoded.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_a_start_that_the_tokenizer_adds_is_not_repeated(folder):
    encoded = load_tokenizer(folder).encode(["a cat"], None, decoder_start=0)
    assert encoded.tokens == [["<s>", "a", "cat"]]


def test_truncation_is_to_what_the_model_takes(folder):
    words = " ".join(["cat"] * 30)
    assert load_tokenizer(folder).encode([words], 10, truncation=True).input_ids.shape == (1, 10)
    with pytest.raises(Invalid, match="at most 10 tokens, got 32"):
        load_tokenizer(folder).encode([words], 10)


def test_too_few_tokens_for_the_special_ones_are_refused(folder):
    with pytest.raises(Invalid):
        load_tokenizer(folder).encode([("a cat", "who")], 3, truncation=True)


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert load_tokenizer(tmp_path) is None


def test_a_tokenizer_without_the_package_is_none_and_logged(folder, monkeypatch, caplog):
    def missing(_self, _file):
        raise ModuleNotFoundError("tokenizers")

    monkeypatch.setattr(Tokenizer, "__init__", missing)
    assert load_tokenizer(folder) is None
    assert "tokenizers is not installed" in caplog.text
