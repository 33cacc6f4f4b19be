"""The tokenizer's padding and truncation, and what a decoder reads."""

import json
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import service.tokenizer
from service.errors import Invalid
from service.tokenizer import Tokenizer, load_tokenizer
from tests.support.texts import tokenizer


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer().backend_tokenizer.to_str())
    return tmp_path


def listed(rows):
    """The lists whose elements are JSON in pieces."""
    return [json.loads(b"[%b]" % b",".join(row)) for row in rows]


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
    assert listed(encoded.tokens)[0][mask.index(0)] == "<pad>"
    assert listed(encoded.offsets)[0][mask.index(0)] == [0, 0]


def test_a_decoder_reads_its_start_and_all_but_the_last(folder):
    encoded = load_tokenizer(folder).encode(["a cat", "who"], None, decoder_start=2)
    assert listed(encoded.tokens) == [["</s>", "<s>", "a", "cat"], ["</s>", "<s>", "who", "[PAD]"]]
    assert encoded.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_a_start_that_the_tokenizer_adds_is_not_repeated(folder):
    encoded = load_tokenizer(folder).encode(["a cat"], None, decoder_start=0)
    assert listed(encoded.tokens) == [["<s>", "a", "cat"]]


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
    """320 tokens in pieces of 7; and where a text is truncated, only its start. Padding is at both sides."""
    tokenizer = with_padding(folder, direction)
    expected = encoded_rows(tokenizer, texts, **options)
    monkeypatch.setattr(service.tokenizer, "MAX_PIECE_TOKENS", 7)
    monkeypatch.setattr(service.tokenizer, "LONG_TEXT", 50)
    assert encoded_rows(tokenizer, texts, **options) == expected
    assert expected[-1][0] == (options.get("limit", 322) < 322)


def truncating(folder, **options):
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | options))
    return load_tokenizer(folder)


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
def test_a_long_text_whose_start_does_not_say_its_tokens(options, text, tokens, folder, monkeypatch):
    tokenizer = truncating(folder, **options)
    expected = encoded_rows(tokenizer, [text], 20, truncation=True)
    assert expected[3] == [tokens]
    monkeypatch.setattr(service.tokenizer, "LONG_TEXT", 50)
    assert encoded_rows(tokenizer, [text], 20, truncation=True) == expected


@contextmanager
def delays():
    """A list of the seconds for which a thread that only sleeps had to wait, from turn to turn."""
    found, stop = [], threading.Event()

    def turns():
        last = time.perf_counter()
        while not stop.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            found.append(now - last)
            last = now

    thread = threading.Thread(target=turns)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def test_another_thread_does_not_wait_for_lists_of_all_tokens(folder):
    """The longest wait is compared with the time that two such lists take; of several tries, as a machine is busy."""
    tokenizer, text = load_tokenizer(folder), "a " * 300_000
    tries = []
    for _ in range(5):
        encoding = tokenizer._encode(None, [text], True)[0]
        start = time.perf_counter()
        lists = [encoding.tokens, encoding.offsets]
        of_lists = time.perf_counter() - start
        del encoding, lists
        with delays() as found:
            tokenizer.encode([text], None)
        tries.append(max(found) / of_lists)
        if tries[-1] < 0.5:
            return
    pytest.fail(f"the longest wait was {min(tries):.2f} of the time of the lists")
