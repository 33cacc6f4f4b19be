"""Texts in the client and in ``heed run``, of a small model with a tokenizer."""

import asyncio
import json

import numpy as np
import pytest

from export.__main__ import main as export
from heed_client import AsyncClient, BadRequest, Client
from heed_client.__main__ import main
from tests.support.families import FAMILIES, save
from tests.support.server import serving
from tests.support.texts import TARGETS, TEXTS, save_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def url(once, tmp_path_factory):
    """A server with a small BART as ``bart``."""

    def fill(folder):
        directory = tmp_path_factory.mktemp("bart")
        save(FAMILIES["bart"], directory)
        save_tokenizer(directory)
        assert export(["hf", str(directory), "--name", "bart", "--repository", str(folder)]) == 0

    with serving(once("bart with a tokenizer", fill)) as client:
        yield str(client.base_url)


@pytest.mark.parametrize("binary", [True, False])
def test_a_text_is_answered_with_its_tokens(binary, url):
    with Client(url) as heed:
        answer = heed.attend("bart", text=TEXTS[0], text_target=TARGETS[0], outputs=["cross_weights"], binary=binary)
    assert answer.tokens == ["<s>", *TEXTS[0].split(), "</s>"]
    assert answer.target_tokens == ["</s>", "<s>", *TARGETS[0].split()]  # what the decoder reads
    assert answer.cross_weights.shape[-2:] == (len(answer.target_tokens), len(answer.tokens))
    assert list(answer) == ["cross_weights"]


def test_a_list_of_texts_is_padded(url):
    async def attend():
        async with AsyncClient(url) as heed:
            return await heed.attend("bart", text=TEXTS, text_target=TARGETS), await heed.tokenize("bart", TEXTS)

    answer, tokens = asyncio.run(attend())
    assert answer.tokens == tokens.tokens
    assert np.shape(tokens.attention_mask) == np.shape(tokens.input_ids) == (2, 14)
    assert answer.output.shape[:2] == np.shape(answer.decoder_input_ids)


def test_what_is_wrong_with_a_text_names_its_field(url):
    with Client(url) as heed:
        with pytest.raises(BadRequest) as empty:
            heed.attend("bart", text="", text_target="a")
        assert empty.value.field == "text"
        with pytest.raises(BadRequest) as missing:
            heed.attend("bart", text=TEXTS[0])
        assert missing.value.field == "decoder_input_ids"


def test_heed_run_labels_a_heat_map_with_tokens(url, capsys):
    flags = ["--text", TEXTS[0], "--text-target", TARGETS[0], "--url", url]
    assert main(["bart", *flags, "--at", "0,1", "--show"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {word} " in shown for word in TARGETS[0].split())
    assert main(["bart", *flags, "--at", "0,0", "--layers", "0", "--heads", "1", "--queries", "1:3", "--show"]) == 0
    assert "dog" not in capsys.readouterr().out
    assert main(["bart", *flags, "--weights-pool", "2", "--at", "0,0", "--show"]) == 0
    assert "…" in capsys.readouterr().out
    assert main(["bart", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"][:2] == ["</s>", "<s>"]


def test_heed_run_takes_several_texts(url, capsys):
    texts = [
        part for text, target in zip(TEXTS, TARGETS, strict=True) for part in ("--text", text, "--text-target", target)
    ]
    assert main(["bart", *texts, "--url", url, "--outputs", "output"]) == 0
    assert np.shape(json.loads(capsys.readouterr().out)["output"])[0] == 2
