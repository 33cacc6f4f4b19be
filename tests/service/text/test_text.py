"""``/v1/text`` and ``/v1/tokenize``: tokens as transformers makes them, outputs as of the same token ids, bad texts."""

import json
import shutil

import numpy as np
import pytest

from tests.support.application import running
from tests.support.texts import TEXTS, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
SHORT, LONG = TEXTS
PATHS = ("text", "tokenize")
NAMES = {"input_ids": "input_ids", "attention_mask": "attention_mask", "offsets": "offset_mapping"}  # theirs


@pytest.mark.parametrize("text", [SHORT, [SHORT], TEXTS], ids=["one", "list of one", "two"])
@pytest.mark.parametrize("special", [True, False])
def test_tokens_are_those_of_transformers(text, special, ask):
    options = {"add_special_tokens": special, "truncation": True, "max_length": 12, "return_offsets_mapping": True}
    expected = tokenizer()(text, padding=True, **options)
    answer = ask("tokenize/bert", text=text, add_special_tokens=special)
    for name, theirs in NAMES.items():
        assert answer[name] == json.loads(json.dumps(expected[theirs])), name
    rows = [answer["tokens"]] if isinstance(text, str) else answer["tokens"]
    assert rows == [expected.tokens(index) for index in range(len(rows))]


def test_offsets_are_the_characters_of_the_tokens(ask):
    text = "the  cat é𝄞 sat"
    answer = ask("tokenize/bert", text=text)
    assert [text[first:last] for first, last in answer["offsets"]] == ["", "the", "cat", "é𝄞", "sat", ""]
    assert answer["tokens"] == ["<s>", "the", "cat", "<unk>", "sat", "</s>"]


def test_pairs_have_two_sequences(ask):
    answer = ask("tokenize/bert", text="a cat", text_pair="who ran")
    assert answer["input_ids"] == tokenizer()("a cat", "who ran")["input_ids"]
    assert answer["sequence_ids"] == [None, 0, 0, None, 1, 1, None]
    assert answer["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


def test_what_is_truncated_is_reported(ask):
    assert ask("tokenize/bert", text=TEXTS)["truncated"] == [False, True]  # to 12 tokens, as the file says
    long = ask("tokenize/bert", text=LONG, truncation=False)
    assert (long["truncated"], len(long["tokens"])) == (False, 14)


@pytest.mark.parametrize("text", [SHORT, TEXTS], ids=["one", "two"])
def test_outputs_are_those_of_the_token_ids(text, ask):
    outputs = ["output", "weights"]
    answer = ask("text/bert", text=text, outputs=outputs)
    tokens = ask("tokenize/bert", text=text)
    inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    expected = ask("attention/bert", **inputs, outputs=outputs)
    assert {name: answer[name] for name in outputs} == {name: expected[name] for name in outputs}
    same = ("tokens", "offsets", "input_ids", "truncated")
    assert {name: answer[name] for name in same} == {name: tokens[name] for name in same}
    assert list(answer)[:2] == ["block", "tokens"]
    assert np.shape(ask("text/bert", text=text, weights_top_k=2)["weights"]["indices"])[-1] == 2


@pytest.mark.extended  # it is exported
def test_an_exported_model_has_embeddings_that_do_not_depend_on_the_other_texts(texts_repository):
    outputs = ["output", "embedding", "weights"]
    with running(texts_repository) as client:

        def answer(path, **body):
            return client.post(f"/v1/{path}/bert", json=body).raise_for_status().json()

        tokens = answer("tokenize", text="a cat", text_pair="who ran")
        inputs = {name: tokens[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        found = answer("text", text="a cat", text_pair="who ran", outputs=outputs)
        expected = answer("attention", **inputs, outputs=outputs)
        for name in outputs:
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6)
        alone = [answer("text", text=text, outputs=["embedding"])["embedding"] for text in TEXTS]
        for count in (1, 20):  # one run, and two
            together = answer("text", text=count * TEXTS, outputs=["embedding"])["embedding"]
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
    "too many bytes": ({"text": "a " * 30_000}, 413, "text", "max_text_bytes"),
    "ids, too": ({"text": SHORT, "input_ids": [1, 2]}, 400, "input_ids", "made of text"),
    "mask, too": ({"text": TEXTS, "attention_mask": [[1]]}, 400, "attention_mask", "made of text"),
    "mask without padding, too": ({"text": SHORT, "attention_mask": [1] * 8}, 400, "attention_mask", "made of text"),
    "misspelt": ({"texts": SHORT}, 400, "texts", "did you mean 'text'?"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", BAD)
def test_bad_texts(path, name, texts):
    body, status, field, detail = BAD[name]
    if path == "tokenize" and field in ("input_ids", "attention_mask"):
        detail = "no field of /v1/tokenize, which takes text, "
    response = texts.post(f"/v1/{path}/bert", json=body)
    problem = response.json()
    assert (response.status_code, problem["field"]) == (status, field), problem
    assert detail in problem["detail"]
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("model", "status", "detail"), [("dot_product", 422, "no tokenizer"), ("nope", 404, "unknown block")]
)
def test_models_without_texts(model, status, detail, path, texts):
    response = texts.post(f"/v1/{path}/{model}", json={"text": SHORT})
    assert response.status_code == status
    assert detail in response.json()["detail"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "media", "status"),
    [
        *((body, "application/json", 400) for body in (b"", b"[]", b'{"text": "a"', b'{"text": "\\ud800"}')),
        (b'{"text": "\xff"}', "application/json", 400),
        (b"text", "text/plain", 415),
    ],
)
def test_what_is_no_json_is_refused(body, media, status, path, texts):
    response = texts.post(f"/v1/{path}/bert", content=body, headers={"Content-Type": media})
    assert response.status_code == status, response.text


def test_long_texts_of_a_large_body_are_read(language_models):
    """A long string is cut out of a document of megabytes; its escapes are read all the same."""
    text = 'the "cat"\n[sat] ' * 30_000
    body = json.dumps({"text": text, "truncation": True}) + " " * (1 << 20)
    with running(language_models) as client:
        response = client.post("/v1/tokenize/bert", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 200, response.text
    assert response.json()["truncated"]
    assert response.json()["tokens"][1:3] == ["the", "<unk>"]


def test_a_broken_tokenizer_fails_the_load_with_its_reason(language_models, tmp_path):
    merge = b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["b c"]}}'
    for name, content in {"empty": b"{}", "text": b"not json", "merge": merge}.items():
        shutil.copytree(language_models / "bert", tmp_path / name)
        (tmp_path / name / "1" / "tokenizer.json").write_bytes(content)
    with running(tmp_path) as client:
        assert client.post("/v1/text/text", json={"text": SHORT}).status_code == 503
        index = client.post("/v2/repository/index").json()
    assert len(index) == 3
    for model in index:
        assert "tokenizer.json cannot be loaded" in model["reason"]


def test_the_description_and_the_documentation_have_texts(texts, ask):
    described = {"max_tokens": 16, "truncates_to": 12, "next_tokens": False}
    assert texts.get("/v1/attention/bert").json()["tokenizer"] == described
    assert texts.get("/v1/attention/dot_product").json()["tokenizer"] is None
    paths = texts.get("/openapi.json").json()["paths"]
    for name in PATHS:
        assert f"/v1/{name}/dot_product" not in paths
        example = paths[f"/v1/{name}/bert"]["post"]["requestBody"]["content"]["application/json"]["example"]
        ask(f"{name}/bert", **example)
