"""``/v1/text`` and ``/v1/tokenize``: tokens of transformers, outputs of token ids, errors, metrics and memory."""

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

from service.base.errors import CLIENT_CLOSED_REQUEST, TooLarge
from service.codec.json_parser import placeholder
from service.codec.json_reader import JsonReader
from service.codec.json_slices import LongText
from service.tokens.request import MAX_ESCAPE_BYTES, TextFields, read_texts, tokenize, tokenizing_needs, tokens_json
from tests.support.application import running
from tests.support.http_requests import http
from tests.support.in_process import Client, serving_in_process
from tests.support.texts import TEXTS, tokenizer
from tests.support.waiting import until

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


def test_a_token_that_is_not_the_models_is_an_error_of_the_text(language_models, tmp_path):
    shutil.copytree(language_models / "bert", tmp_path / "bert")
    file = str(tmp_path / "bert" / "1" / "tokenizer.json")
    words = Tokenizer.from_file(file)
    words.add_tokens([f"word{number}" for number in range(100)])
    words.save(file)
    with running(tmp_path) as client:
        answer = client.post("/v1/text/bert", json={"text": "the word99"})
    assert (answer.status_code, answer.json()["field"]) == (422, "text"), answer.text
    assert answer.json()["detail"].startswith("text: expected ")


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

        pair = {"text": "a cat", "text_pair": "who ran"}
        tokens, found = answer("tokenize", **pair), answer("text", **pair, outputs=outputs)
        inputs = {name: tokens[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        expected = answer("attention", **inputs, outputs=outputs)
        for name in outputs:
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6)
        alone = [answer("text", text=text, outputs=["embedding"])["embedding"] for text in TEXTS]
        for count in (1, 20):  # one run, and two
            together = answer("text", text=count * TEXTS, outputs=["embedding"])["embedding"]
            np.testing.assert_allclose(together, count * alone, rtol=0, atol=1e-6)
            np.testing.assert_allclose(np.linalg.norm(together, axis=-1), 1, rtol=0, atol=1e-6)


BAD = {
    "null": ({"text": None}, 422, "text", "required"),
    "blank": ({"text": " \n"}, 422, "text", "got an empty or blank string"),
    "an empty one": ({"text": [SHORT, ""]}, 422, "text", "in text 1"),
    "list in a list": ({"text": [[SHORT]]}, 422, "text", "a list at [0]"),
    "object": ({"text": {"a": 1}}, 422, "text", "an object"),
    "many texts": ({"text": ["a"] * 1025}, 422, "text", "1 to 1024 texts"),
    "one pair": ({"text": TEXTS, "text_pair": SHORT}, 422, "text_pair", "a list of 2"),
    "pair alone": ({"text_pair": SHORT}, 422, "text", "required"),
    "no decoder": ({"text": SHORT, "text_target": SHORT}, 422, "text_target", "no input decoder_input_ids"),
    "too long": ({"text": " ".join(["cat"] * 20), "truncation": False}, 422, "text", "at most 16 tokens, got 22"),
    "ids, too": ({"text": SHORT, "input_ids": [1, 2]}, 400, "input_ids", "together with text"),
    "mask without padding, too": (
        {"text": SHORT, "attention_mask": [1] * 8},
        400,
        "attention_mask",
        "together with text",
    ),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", BAD)
def test_bad_texts(path, name, texts):
    body, status, field, detail = BAD[name]
    if path == "tokenize" and field in ("input_ids", "attention_mask"):
        detail = "unknown field; /v1/tokenize takes text, "
    response = texts.post(f"/v1/{path}/bert", json=body)
    problem = response.json()
    assert (response.status_code, problem["field"]) == (status, field), problem
    assert detail in problem["detail"]
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", PATHS)
def test_a_model_that_is_unknown_or_has_no_tokenizer(path, texts):
    for model, status, detail in (("dot_product", 422, "no tokenizer"), ("nope", 404, "unknown model")):
        response = texts.post(f"/v1/{path}/{model}", json={"text": SHORT})
        assert (response.status_code, detail in response.json()["detail"]) == (status, True), response.text


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"", b"[]", b'{"text": "a"', b'{"text": "\\ud800"}', b'{"text": "\xff"}'])
def test_what_is_no_json_is_refused(body, path, texts):
    for media, status in (("application/json", 400), ("text/plain", 415)):
        response = texts.post(f"/v1/{path}/bert", content=body, headers={"Content-Type": media})
        assert response.status_code == status, response.text


def test_long_texts_of_a_large_body_are_read(application):
    """A long string is cut out of a document of megabytes; its escapes are read all the same."""
    body = json.dumps({"text": 'the "cat"\n[sat] ' * 30_000, "truncation": True}) + " " * (1 << 20)
    response = application.post("/v1/tokenize/bert", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 200, response.text
    assert response.json()["truncated"]
    assert response.json()["tokens"][1:3] == ["the", "<unk>"]


MOST = 6000  # bytes of texts; one that is longer than 4 KB in a large body is cut out of it


def read(field, content, models):
    """The texts in ``field`` of a request, from which this JSON string was cut out."""
    reader, given = JsonReader([LongText(memoryview(content))]), {"text": "a", "text_pair": "b"}
    given[field] = placeholder(0)[1:-1].decode()
    return read_texts(reader, reader.resolved(given), models.block("bert"), MOST)


@pytest.mark.parametrize("field", ["text", "text_pair"])
@pytest.mark.parametrize(
    ("piece", "factor"),  # how much longer than MOST it is refused undecoded
    [
        *((b"a", 1.1), (rb"\n", 1.1), (rb"\u0061", 1.1), ("é".encode(), 1.1)),
        *((rb"\u00e9", 2.1), (rb"\ud83d\ude00", 2.1), (rb"\\u", 6.1)),
    ],
)
def test_a_text_that_is_too_long_is_not_decoded(piece, factor, field, application, monkeypatch):
    models = application.app.repository
    count = (MOST - 1) // len(json.loads(b'"%b"' % piece).encode())
    assert MOST - 4 <= read(field, piece * count, models).size <= MOST
    monkeypatch.setattr("service.codec.json_slices.orjson", None)
    with pytest.raises(TooLarge, match=r"at least .*; the limit is 6,000 bytes \(max_text_bytes\)") as error:
        read(field, piece * int(factor * count), models)
    assert error.value.field == field


def test_a_text_that_is_far_too_long_is_not_copied(application):
    content = b"a" * (MAX_ESCAPE_BYTES * (MOST + 1)) * 10
    models = application.app.repository
    models.block("bert")
    tracemalloc.start()
    with pytest.raises(TooLarge):
        read("text", content, models)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(content) // 2


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
    described, document = texts.get("/v1/attention/bert").json(), texts.get("/openapi.json").json()
    assert described["tokenizer"] == {"max_tokens": 16, "truncates_to": 12, "next_tokens": False, "placeholders": []}
    assert texts.get("/v1/attention/dot_product").json()["tokenizer"] is None
    assert texts.get("/v1/attention/right").json()["tokenizer"]["next_tokens"]
    for name in PATHS:
        assert f"/v1/{name}/dot_product" not in document["paths"]
        body = document["paths"][f"/v1/{name}/bert"]["post"]["requestBody"]
        ask(f"{name}/bert", **body["content"]["application/json"]["example"])
    for name, has in (("right", True), ("masked", False)):
        for part in ("request", "answer"):
            fields = document["components"]["schemas"][f"{name}_text_{part}"]["properties"]
            assert ("next_tokens" in fields) == has


def count(client, name, **labels):
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def test_requests_for_tokens_are_counted_and_are_no_inferences(fresh):
    for path, text, status in (
        *[("tokenize/long", "a cat", 200)] * 3,
        ("tokenize/long", 5, 422),
        ("tokenize/other", "a", 404),
        ("text/long", "a cat", 200),
        ("text/long", 5, 422),
    ):
        assert fresh.post(f"/v1/{path}", json={"text": text}).status_code == status
    requests = {"name": "heed_requests_total", "api": "tokenize"}
    assert count(fresh, **requests, model="long", status="200") == 3
    assert count(fresh, **requests, model="long", status="422") == 1
    assert count(fresh, **requests, model="(none)", status="404") == 1
    assert count(fresh, "heed_request_duration_seconds_count", model="long", api="tokenize") == 3
    assert count(fresh, "heed_requests_in_flight") == 0
    (statistics,) = fresh.get("/v2/models/long/stats").json()["model_stats"]
    assert statistics["inference_stats"]["success"]["count"] == statistics["inference_count"] == 1
    assert statistics["inference_stats"]["fail"]["count"] == 1


@pytest.mark.parametrize("path", PATHS)
def test_texts_are_not_tokenized_after_the_deadline(path, fresh):
    response = fresh.post(f"/v1/{path}/long", json={"text": "a cat"}, headers={"X-Request-Timeout": "0"})
    assert response.status_code == 504
    assert "Request timeout expired" in response.json()["detail"]
    assert count(fresh, "heed_requests_rejected_total", reason="deadline") == 1
    answer = fresh.post(f"/v1/{path}/long", json={"text": "a cat"}, headers={"X-Request-Timeout": "60"})
    assert answer.json()["tokens"] == ["<s>", "a", "cat", "</s>"]


@pytest.mark.parametrize("path", PATHS)
def test_no_answer_is_made_for_a_client_that_has_gone(path, language_models):
    with serving_in_process(language_models) as service:
        counts = service.server.config.app.counts
        with Client(service) as client:
            client.send(http(json.dumps({"text": "the cat " * 100_000}).encode(), f"/v1/{path}/long"))
            until(lambda: counts.in_flight)
        until(lambda: not counts.in_flight)
        assert [(status, count) for (*_, status), count in counts.failed.items()] == [(CLIENT_CLOSED_REQUEST, 1)]
        until(lambda: not service.budget.used)


@pytest.mark.parametrize("count", [1, 2])
def test_an_answer_with_many_tokens(count, ask):
    """3,000 tokens, in several pieces of JSON; the second text is padded."""
    words = ["the", "cat"] * 1500
    body = {"text": [" ".join(words), "a"][:count], "add_special_tokens": False}
    tokens = ask("tokenize/long", **body)
    assert tokens["tokens"][0] == words
    assert tokens["offsets"][0] == [[start, start + 3] for start in range(0, 12_000, 4)]
    assert tokens["sequence_ids"][1:] == [[0] + [None] * 2999][: count - 1]
    answer = ask("text/long", **body, outputs=["output"], next_tokens=1)
    assert list(answer)[:2] == ["block", "tokens"]
    assert list(answer)[-2:] == ["next_tokens", "output"]
    assert {name: answer[name] for name in tokens if name in answer} == {
        name: tokens[name] for name in tokens if name not in ("model", "sequence_ids", "token_type_ids")
    }
    assert len(answer["output"][0]) == 3000


def fields(texts, truncation=None):
    return TextFields({"": texts}, is_single=False, truncation=truncation, special_tokens=True)


def test_short_texts_beside_a_long_one_reserve_their_padding(application):
    """63 texts of different lengths are padded to 4,002 tokens each: 100 times the memory of their own tokens."""
    request, models = ["a " * count for count in (*range(1, 64), 4000)], application.app.repository
    whole, truncated = fields(request), fields(request, truncation=True)
    tracemalloc.start()
    try:
        tokens_json(tokenize(whole, models.block("long")), is_single=False, whole=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    needs = tokenizing_needs([whole], models.block("long"), 1 << 20)
    assert whole.size * 768 < peak <= needs.memory < 4 * peak
    assert tokenizing_needs([truncated], models.block("bert"), 1 << 20).memory == truncated.size * 768 + 64 * 12 * 80
    assert needs.work > 64 * 4000 * 50  # nanoseconds: the padding counts


def test_texts_that_normalization_lengthens_beyond_the_limit_are_refused(texts):
    """Of three bytes it makes 33: they would take eleven times the memory and time of any other text."""
    for path in PATHS:
        for text, status in (("\ufdfa" * 4000, 413), ("\ufdfa" * 1000, 200), ("\u00e9" * 20_000, 200)):
            response = texts.post(f"/v1/{path}/bert", json={"text": text, "truncation": True})
            assert response.status_code == status, response.text
            if status == 413:
                assert response.json()["field"] == "text"
                assert "MiB after normalization; the limit is 50,000 bytes" in response.json()["detail"]
