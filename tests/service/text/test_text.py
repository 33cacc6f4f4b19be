"""``/v1/text`` and ``/v1/tokenize``: tokens as transformers makes them, outputs as of the same token ids, bad texts."""

import json
import shutil

import httpx
import numpy as np
import pytest
from transformers import AutoTokenizer

from tests.support.server import serving, started
from tests.support.texts import TEXTS

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
SHORT, LONG = TEXTS


@pytest.fixture(scope="module")
def texts(texts_repository):
    """A client of a server with these models."""
    with serving(texts_repository, "--max-text-bytes", "5000") as client:
        yield client


def ask(client, path, **body):
    response = client.post(f"/v1/{path}", json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("text", [SHORT, [SHORT], TEXTS], ids=["one", "list of one", "two"])
@pytest.mark.parametrize("special", [True, False])
def test_tokens_are_those_of_transformers(text, special, texts, sentence_model):
    tokenizer = AutoTokenizer.from_pretrained(sentence_model)
    expected = tokenizer(
        text, padding=True, add_special_tokens=special, return_offsets_mapping=True, truncation=True, max_length=12
    )
    answer = ask(texts, "tokenize/bert", text=text, add_special_tokens=special)
    for name, theirs in {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "offsets": "offset_mapping",
    }.items():
        assert answer[name] == json.loads(json.dumps(expected[theirs])), name
    rows = [answer["tokens"]] if isinstance(text, str) else answer["tokens"]
    assert rows == [expected.tokens(index) for index in range(len(rows))]


def test_offsets_are_the_characters_of_the_tokens(texts):
    answer = ask(texts, "tokenize/bert", text="the  cat é𝄞 sat")
    text = "the  cat é𝄞 sat"
    assert [text[first:last] for first, last in answer["offsets"]] == ["", "the", "cat", "é𝄞", "sat", ""]
    assert answer["tokens"] == ["<s>", "the", "cat", "<unk>", "sat", "</s>"]


def test_pairs_have_two_sequences(texts, sentence_model):
    tokenizer = AutoTokenizer.from_pretrained(sentence_model)
    expected = tokenizer("a cat", "who ran")
    answer = ask(texts, "tokenize/bert", text="a cat", text_pair="who ran")
    assert answer["input_ids"] == expected["input_ids"]
    assert answer["sequence_ids"] == [None, 0, 0, None, 1, 1, None]
    assert answer["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


def test_what_is_truncated_is_reported(texts):
    assert ask(texts, "tokenize/bert", text=TEXTS)["truncated"] == [False, True]  # to 12 tokens, as the files say
    long = ask(texts, "tokenize/bert", text=LONG, truncation=False)
    assert (long["truncated"], len(long["tokens"])) == (False, 14)


@pytest.mark.parametrize("text", [SHORT, TEXTS], ids=["one", "two"])
def test_outputs_are_those_of_the_token_ids(text, texts):
    outputs = ["output", "embedding", "weights"]
    answer = ask(texts, "text/bert", text=text, outputs=outputs)
    tokens = ask(texts, "tokenize/bert", text=text)
    inputs = {name: tokens[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    expected = ask(texts, "attention/bert", **inputs, outputs=outputs)
    for name in outputs:
        np.testing.assert_allclose(answer[name], expected[name], rtol=0, atol=1e-6)
    assert {name: answer[name] for name in ("tokens", "offsets", "input_ids", "truncated")} == {
        name: tokens[name] for name in ("tokens", "offsets", "input_ids", "truncated")
    }
    assert list(answer)[:2] == ["block", "tokens"]


def test_options_of_the_block_are_taken(texts):
    answer = ask(texts, "text/bert", text=SHORT, outputs=["weights"], average_attn_weights=True)
    whole = ask(texts, "text/bert", text=SHORT, outputs=["weights"])
    np.testing.assert_allclose(answer["weights"], np.mean(whole["weights"], axis=-3), rtol=0, atol=1e-6)
    assert np.shape(ask(texts, "text/bert", text=SHORT, weights_top_k=2)["weights"]["indices"])[-1] == 2


@pytest.mark.parametrize("count", [1, 20], ids=["one run", "two runs"])
def test_embeddings_do_not_depend_on_the_other_texts(texts, count):
    alone = [ask(texts, "text/bert", text=text, outputs=["embedding"])["embedding"] for text in TEXTS]
    together = ask(texts, "text/bert", text=count * TEXTS, outputs=["embedding"])["embedding"]
    np.testing.assert_allclose(together, count * alone, rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(together, axis=-1), 1, rtol=0, atol=1e-6)


BAD = {
    "number": ({"text": 5}, 422, "text", "got 5"),
    "null": ({"text": None}, 422, "text", "required"),
    "none": ({}, 422, "text", "required"),
    "empty": ({"text": ""}, 422, "text", "or nothing"),
    "blank": ({"text": " \n"}, 422, "text", "or nothing"),
    "an empty one": ({"text": [SHORT, ""]}, 422, "text", "in text 1"),
    "no texts": ({"text": []}, 422, "text", "1 to 1024 texts"),
    "list in a list": ({"text": [[SHORT]]}, 422, "text", "a list at [0]"),
    "object": ({"text": {"a": 1}}, 422, "text", "an object"),
    "number in a list": ({"text": [SHORT, 3]}, 422, "text", "got 3 at [1]"),
    "many texts": ({"text": ["a"] * 1025}, 422, "text", "1 to 1024 texts"),
    "one pair": ({"text": TEXTS, "text_pair": SHORT}, 422, "text_pair", "a list of 2"),
    "pair alone": ({"text_pair": SHORT}, 422, "text", "required"),
    "no decoder": ({"text": SHORT, "text_target": SHORT}, 422, "text_target", "no decoder_input_ids"),
    "truncation": ({"text": SHORT, "truncation": "yes"}, 422, "truncation", "a boolean"),
    "too long": ({"text": " ".join(["cat"] * 20), "truncation": False}, 422, "text", "at most 16 tokens, got 22"),
    "too many bytes": ({"text": "a " * 3000}, 413, "text", "max_text_bytes"),
    "ids, too": ({"text": SHORT, "input_ids": [1, 2]}, 400, "input_ids", "made of text"),
    "mask, too": ({"text": TEXTS, "attention_mask": [[1]]}, 400, "attention_mask", "made of text"),
    "mask without padding, too": ({"text": SHORT, "attention_mask": [1] * 8}, 400, "attention_mask", "made of text"),
    "misspelt": ({"texts": SHORT}, 400, "texts", "did you mean 'text'?"),
}


@pytest.mark.parametrize("path", ["text", "tokenize"])
@pytest.mark.parametrize(("body", "status", "field", "detail"), BAD.values(), ids=BAD.keys())
def test_bad_texts(body, status, field, detail, path, texts):
    if path == "tokenize" and body.keys() & {"input_ids", "attention_mask"}:
        pytest.skip("tokenize takes texts only")
    response = texts.post(f"/v1/{path}/bert", json=body)
    problem = response.json()
    assert (response.status_code, problem["field"]) == (status, field), problem
    assert detail in problem["detail"]
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["text", "tokenize"])
@pytest.mark.parametrize(
    ("model", "status", "detail"), [("dot_product", 422, "no tokenizer"), ("nope", 404, "unknown block")]
)
def test_models_without_texts(model, status, detail, path, texts):
    response = texts.post(f"/v1/{path}/{model}", json={"text": SHORT})
    assert response.status_code == status
    assert detail in response.json()["detail"]


@pytest.mark.parametrize("path", ["text", "tokenize"])
@pytest.mark.parametrize("body", [b"", b"[]", b'{"text": "a"', b'{"text": "\\ud800"}', b'{"text": "\xff"}'])
def test_what_is_no_json_is_refused(body, path, texts):
    response = texts.post(f"/v1/{path}/bert", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    other = texts.post(f"/v1/{path}/bert", content=b"text", headers={"Content-Type": "text/plain"})
    assert other.status_code == 415


def test_long_texts_of_a_large_body_are_read(texts_repository):
    """A long string is cut out of a document of megabytes; its escapes are read all the same."""
    with serving(texts_repository) as client:
        text = 'the "cat"\n[sat] ' * 30_000
        body = json.dumps({"text": text, "truncation": True}) + " " * (1 << 20)
        response = client.post("/v1/tokenize/bert", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 200, response.text
    assert response.json()["truncated"]
    assert response.json()["tokens"][1:3] == ["the", "<unk>"]


def test_a_broken_tokenizer_fails_the_load_with_its_reason(texts_repository, tmp_path):
    merge = b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["b c"]}}'
    for name, content in {"empty": b"{}", "text": b"not json", "merge": merge}.items():
        shutil.copytree(texts_repository / "bert", tmp_path / "models" / name)
        (tmp_path / "models" / name / "1" / "tokenizer.json").write_bytes(content)
    log = tmp_path / "log"
    with started(tmp_path / "models", log, becomes_ready=False) as server, httpx.Client(base_url=server.url) as client:
        response = client.post("/v1/text/text", json={"text": SHORT})
        index = client.post("/v2/repository/index").json()
    assert response.status_code == 503
    assert len(index) == 3
    for model in index:
        assert "tokenizer.json cannot be loaded" in model["reason"]


def test_the_description_and_the_documentation_have_texts(texts):
    assert texts.get("/v1/attention/bert").json()["tokenizer"] == {
        "max_tokens": 16,
        "truncates_to": 12,
        "next_tokens": False,
    }
    assert texts.get("/v1/attention/dot_product").json()["tokenizer"] is None
    paths = texts.get("/openapi.json").json()["paths"]
    assert {path for path in paths if path.startswith(("/v1/text", "/v1/tokenize"))} == {
        "/v1/text/bert",
        "/v1/tokenize/bert",
    }
    for name in ("text", "tokenize"):
        example = paths[f"/v1/{name}/bert"]["post"]["requestBody"]["content"]["application/json"]["example"]
        ask(texts, f"{name}/bert", **example)
