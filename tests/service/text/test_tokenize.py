"""``/v1/tokenize`` beside ``/v1/text``: metrics, statistics, deadlines; memory for many tokens, and their JSON."""

import tracemalloc

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.text.request import TextFields, tokenize, tokens_json
from tests.support.application import running

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture
def fresh(language_models):
    """An application of which nothing was asked."""
    with running(language_models) as client:
        yield client


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


@pytest.mark.parametrize("path", ["tokenize", "text"])
def test_texts_are_not_tokenized_after_the_deadline(path, fresh):
    response = fresh.post(f"/v1/{path}/long", json={"text": "a cat"}, headers={"X-Request-Timeout": "0"})
    assert response.status_code == 504
    assert "Request timeout expired" in response.json()["detail"]
    assert count(fresh, "heed_requests_rejected_total", reason="deadline") == 1
    answer = fresh.post(f"/v1/{path}/long", json={"text": "a cat"}, headers={"X-Request-Timeout": "60"})
    assert answer.json()["tokens"] == ["<s>", "a", "cat", "</s>"]


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
    return TextFields(texts, [], is_single=False, truncation=truncation, special_tokens=True)


def test_short_texts_beside_a_long_one_reserve_their_padding(texts):
    """255 texts are padded to 4,002 tokens each: 100 times the memory of their own tokens."""
    request, models = ["a"] * 255 + ["a " * 4000], texts.app.repository
    whole, truncated = fields(request), fields(request, truncation=True)
    tracemalloc.start()
    try:
        tokens_json(tokenize(whole, models.block("long")), is_single=False, whole=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert whole.size * 768 < peak <= whole.memory(models.block("long")) < 4 * peak
    assert truncated.memory(models.block("bert")) == truncated.size * 768 + 256 * 12 * 80
