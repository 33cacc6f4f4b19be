"""Texts in the client and in ``heed run``, of a small model with a tokenizer."""

import asyncio
import json

import numpy as np
import pytest

from heed_client import AsyncClient, BadRequest, Client
from heed_client.__main__ import main
from tests.support.language_model import LOGITS, write_language_model
from tests.support.server import serving
from tests.support.texts import SPECIAL, TEXTS, WORDS

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def url(texts_repository):
    """A server with a small BERT, which truncates texts to 12 tokens."""
    with serving(texts_repository) as client:
        yield str(client.base_url)


@pytest.mark.parametrize("binary", [True, False])
def test_a_text_is_answered_with_its_tokens(binary, url):
    with Client(url) as heed:
        answer = heed.attend("bert", text=TEXTS[0], outputs=["weights"], binary=binary)
    assert answer.tokens == ["<s>", *TEXTS[0].split(), "</s>"]
    assert answer.weights.shape[-2:] == (len(answer.tokens), len(answer.tokens))
    assert list(answer) == ["weights"]


def test_a_list_of_texts_is_padded(url):
    async def attend():
        async with AsyncClient(url) as heed:
            return await heed.attend("bert", text=TEXTS, outputs="embedding"), await heed.tokenize("bert", TEXTS)

    answer, tokens = asyncio.run(attend())
    assert answer.tokens == tokens.tokens
    assert answer.truncated == [False, True]
    assert np.shape(tokens.attention_mask) == np.shape(tokens.input_ids) == (2, 12)
    assert answer.embedding.shape == (2, 8)


def test_what_is_wrong_with_a_text_names_its_field(url):
    with Client(url) as heed:
        with pytest.raises(BadRequest) as empty:
            heed.attend("bert", text="")
        assert empty.value.field == "text"
        with pytest.raises(BadRequest) as other:
            heed.attend("bert", text=TEXTS[0], text_target=TEXTS[0])
        assert other.value.field == "text_target"


def test_heed_run_labels_a_heat_map_with_tokens(url, capsys):
    flags = ["--text", TEXTS[0], "--url", url]
    assert main(["bert", *flags, "--at", "0,1", "--show"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {word} " in shown for word in TEXTS[0].split())
    assert main(["bert", *flags, "--at", "0,0", "--layers", "0", "--heads", "1", "--queries", "1:3", "--show"]) == 0
    assert " mat " not in capsys.readouterr().out
    assert main(["bert", *flags, "--weights-pool", "2", "--at", "0,0", "--show"]) == 0
    assert "…" in capsys.readouterr().out
    assert main(["bert", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"][:2] == ["<s>", "the"]


def test_heed_run_takes_several_texts(url, capsys):
    assert main(["bert", "--text", TEXTS[0], "--text", TEXTS[1], "--url", url, "--outputs", "output"]) == 0
    assert np.shape(json.loads(capsys.readouterr().out)["output"])[0] == 2


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """The URL of a server with a language model, ``lm``."""
    folder = tmp_path_factory.mktemp("language model")
    write_language_model(folder / "lm" / "1")
    with serving(folder) as client:
        yield str(client.base_url)


def test_next_tokens(language_model, connect):
    """Beside all outputs, some, or none, with options and masks, as the server answers them."""
    heed = connect(language_model)
    text = {"text": "a cat", "add_special_tokens": False}
    expected = np.argsort(-LOGITS[[*SPECIAL, *WORDS].index("cat")])[:3].tolist()
    for outputs in (None, ["weights"], []):
        answer = heed.attend("lm", **text, outputs=outputs, next_tokens=3)
        assert [one["id"] for one in answer.next_tokens] == expected
        assert answer.tokens == ["a", "cat"]
        assert list(answer) == (["output", "weights"] if outputs is None else outputs)
    masked = heed.attend("lm", text=TEXTS, outputs=["weights"], next_tokens=2, head_mask=np.zeros((1, 1)), queries="-1")
    assert [[one["id"] for one in of] for of in masked.next_tokens] == [[0, 1], [0, 1]]
    assert masked.weights.shape[-2] == 1
    with pytest.raises(BadRequest) as error:
        heed.attend("lm", **text, next_tokens=0)
    assert error.value.field == "next_tokens"
    with pytest.raises(BadRequest):  # not ignored
        heed.attend("lm", **text, next_tokens=1, memory="no memory of this server")


def test_heed_run_prints_next_tokens(language_model, capsys, tmp_path):
    flags = ["lm", "--text", "a cat", "--url", language_model, "--next-tokens", "2"]
    assert main(flags) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [set(one) for one in answer["next_tokens"]] == [{"id", "token", "probability"}] * 2
    for others in (["--show"], ["--out", str(tmp_path / "out.npz")]):
        assert main([*flags, *others]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1]) == answer["next_tokens"]
    assert main([*flags[:-1], "101"]) == 2
    assert "--next-tokens: expected a whole number from 1 to 100" in capsys.readouterr().err
