"""A server in this process over language models that are written by hand, and a block without texts."""

import shutil

import httpx
import pytest
from tokenizers import Tokenizer
from tokenizers.normalizers import NFKC

from tests.support.application import running
from tests.support.in_process import serving_in_process
from tests.support.language_model import write_language_model

MODELS = {  # class, side of the padding, most tokens
    "right": ("GPT2LMHeadModel", "right", 64),
    "left": ("LlamaForCausalLM", "left", 64),
    "masked": ("BertForMaskedLM", "right", 64),
    "long": ("GPT2LMHeadModel", "right", None),
    "bert": ("BertModel", "right", 16),  # truncates texts to 12 tokens, and normalizes them by NFKC
}


@pytest.fixture(scope="session")
def language_models(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("language models")
    for name, model in MODELS.items():
        write_language_model(folder / name / "1", *model)
    file = str(folder / "bert" / "1" / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.normalizer = NFKC()
    tokenizer.enable_truncation(12)
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>")
    tokenizer.save(file)
    shutil.copytree(repository / "dot_product", folder / "dot_product")
    return folder


@pytest.fixture(scope="session")
def texts(language_models):
    with (
        serving_in_process(language_models, max_text_bytes=50_000) as service,
        httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def application(language_models):
    """An application for all tests that count nothing."""
    with running(language_models) as client:
        yield client


@pytest.fixture
def fresh(language_models):
    """An application of which nothing was asked."""
    with running(language_models) as client:
        yield client


@pytest.fixture(scope="session")
def ask(texts):
    """``ask(path, **body)``: the answer to a request that must succeed."""

    def post(path, **body):
        response = texts.post(f"/v1/{path}", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    return post
