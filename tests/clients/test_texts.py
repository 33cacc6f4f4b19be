"""Texts in the client and in ``heed run``, of a small model with a tokenizer."""

import asyncio
import json

import numpy as np
import pytest

from heed_client import AsyncClient, BadRequest, Client
from heed_client.__main__ import main
from tests.support.server import serving
from tests.support.texts import TEXTS

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
