"""Texts in the client and in ``heed run``, of a small language model with a tokenizer."""

import json

import numpy as np
import pytest

from heed_client import BadRequest, Client
from heed_client.command.show import SHADES
from tests.support.language_model import LOGITS, write_language_model
from tests.support.texts import SPECIAL, TEXTS, WORDS

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="session")
def url(tmp_path_factory, shared_server):
    """A server with the language model ``lm``, which takes 12 tokens."""
    folder = tmp_path_factory.mktemp("language model")
    write_language_model(folder / "lm" / "1", limit=12)
    return shared_server(folder, "--workers", "1").url


@pytest.fixture
def heed(url, connect):
    return connect(url)


@pytest.fixture
def attend_texts(url, attend, monkeypatch):
    """Runs ``heed run lm``; returns what it printed."""
    monkeypatch.setenv("HEED_URL", url)
    return lambda *flags: attend("lm", *flags)


@pytest.mark.parametrize("binary", [True, False])
def test_a_text_is_answered_with_its_tokens(heed, binary):
    answer = heed.attend("lm", text=TEXTS[0], outputs=["weights"], binary=binary)
    assert answer.tokens == ["<s>", *TEXTS[0].split(), "</s>"]
    assert answer.weights.shape[-2:] == (len(answer.tokens), len(answer.tokens))
    assert list(answer) == ["weights"]


@pytest.mark.extended
@pytest.mark.parametrize("binary", [True, False])
def test_the_embedding_of_each_text(texts_repository, shared_server, binary):
    with Client(shared_server(texts_repository, "--workers", "1").url) as heed:
        answer = heed.attend("bert", text=TEXTS, outputs="embedding", binary=binary)
    assert list(answer) == ["embedding"]
    np.testing.assert_allclose(np.linalg.norm(answer.embedding, axis=-1), [1, 1], atol=1e-6)


def test_a_list_of_texts_is_padded(heed):
    texts = {"text": TEXTS, "truncation": True}
    answer, tokens = heed.attend("lm", **texts, outputs="output"), heed.tokenize("lm", **texts)
    assert answer.tokens == tokens.tokens
    assert answer.truncated == [False, True]
    assert np.shape(tokens.attention_mask) == np.shape(tokens.input_ids) == answer.output.shape[:2] == (2, 12)


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        ({"text": ""}, "text"),
        ({"text": TEXTS[0], "text_target": TEXTS[0]}, "text_target"),
        ({"text": TEXTS[0], "next_tokens": 0}, "next_tokens"),
        ({"text": TEXTS[0], "next_tokens": 1, "memory": "no memory of this server"}, "memory"),  # not ignored
    ],
    ids=["text", "text_target", "next_tokens", "memory"],
)
def test_what_is_wrong_with_a_text_names_its_field(heed, texts, field):
    with pytest.raises(BadRequest) as error:
        heed.attend("lm", **texts)
    assert error.value.field == field


def test_next_tokens(heed):
    """Beside all outputs, some, or none, with options and masks, as the server answers them."""
    text = {"text": "a cat", "add_special_tokens": False}
    expected = np.argsort(-LOGITS[[*SPECIAL, *WORDS].index("cat")])[:3].tolist()
    for outputs in (None, ["weights"], []):
        answer = heed.attend("lm", **text, outputs=outputs, next_tokens=3)
        assert [one["id"] for one in answer.next_tokens] == expected
        assert answer.tokens == ["a", "cat"]
        assert list(answer) == (["output", "weights"] if outputs is None else outputs)
    masked = heed.attend(
        "lm", text=TEXTS, truncation=True, outputs=["weights"], next_tokens=2, head_mask=np.zeros((1, 1)), queries="-1"
    )
    assert [[one["id"] for one in of] for of in masked.next_tokens] == [[0, 1], [0, 1]]
    assert masked.weights.shape[-2] == 1


def test_heed_run_labels_a_heat_map_with_tokens(attend_texts):
    flags = ["--text", TEXTS[0], "--at", "0", "--show"]
    shown = attend_texts(*flags)
    assert all(f" {word} " in shown for word in TEXTS[0].split())
    assert " mat " not in attend_texts(*flags, "--layers", "0", "--heads", "0", "--queries", "1:3")
    assert "…" in attend_texts(*flags, "--weights-pool", "2")


def test_heed_run_takes_several_texts(attend_texts):
    assert json.loads(attend_texts("--text", TEXTS[0]))["tokens"][:2] == ["<s>", "the"]
    several = attend_texts("--text", TEXTS[0], "--text", TEXTS[1], "--truncation", "--outputs", "output")
    assert len(json.loads(several)["output"]) == 2
    assert [of[1] for of in json.loads(several)["tokens"]] == [text.split()[0] for text in TEXTS]


def test_heed_run_labels_each_of_several_texts(attend_texts):
    flags = ["--text", "the cat sat", "--text", "a cat"]
    for more in ([], ["--outputs", "rollout"]):
        lines = attend_texts(*flags, *more, "--show").splitlines()
        rows = [line.split()[0] for line in lines if set(line) & set(SHADES)]
        assert rows == ["<s>", "the", "cat", "sat", "</s>", "<s>", "a", "cat", "</s>"]
    assert attend_texts(*flags, "--weights-pool", "2", "--show").count("[PAD]") == 1


def test_heed_run_draws_a_difference(attend_texts, command, tmp_path):
    stored = tmp_path / "stored.npz"
    attend_texts("--text", "the cat sat", "--out", stored)
    assert "difference[0]: -1.00 to 1.00\n" in attend_texts("--text", "the cat sat", "--compare", stored, "--show")
    for flags, message in (
        (["--compare", stored], "--compare: needs --plot or --show"),
        (["--compare", stored, "--html", "page.html"], "--html: does not draw differences"),
        (["--compare", stored, "--show"], "--compare: [1, 5, 5] is not the shape of the answer, [1, 4, 4]"),
        (["--compare", tmp_path / "none.npz", "--show"], "--compare "),
        (["--title", "weights"], "--title: needs --plot"),
        (["--plot", "never.png", "--size", "6"], "--size: expected two numbers such as 6,4"),
    ):
        status, _, said = command("run", "lm", "--text", "a cat", *flags)
        assert (status, message in said) == (2, True), said


def test_heed_run_prints_next_tokens(attend_texts, command, tmp_path):
    flags = ["--text", "a cat", "--next-tokens", "2"]
    tokens = json.loads(attend_texts(*flags))["next_tokens"]
    assert [set(one) for one in tokens] == [{"id", "token", "probability"}] * 2
    for others in (["--show"], ["--out", tmp_path / "out.npz"]):
        assert json.loads(attend_texts(*flags, *others).splitlines()[-1]) == tokens
    status, _, wrong = command("run", "lm", *flags[:-1], "101")
    assert (status, "--next-tokens: expected a whole number from 1 to 100" in wrong) == (2, True)
