"""``/v1/tokenize`` beside ``/v1/text``: metrics, statistics, deadlines; answers with many tokens."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.language_model import write_language_model
from tests.support.server import serving

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture
def served(tmp_path):
    """A client of a server with one worker and a language model of any number of tokens."""
    write_language_model(tmp_path / "models" / "lm" / "1", limit=None)
    with serving(tmp_path / "models", "--workers", "1") as client:
        yield client


def count(client, name, **labels):
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def test_requests_for_tokens_are_counted_and_are_no_inferences(served):
    for _ in range(3):
        assert served.post("/v1/tokenize/lm", json={"text": "a cat"}).status_code == 200
    assert served.post("/v1/tokenize/lm", json={"text": 5}).status_code == 422
    assert served.post("/v1/tokenize/other", json={"text": "a"}).status_code == 404
    assert served.post("/v1/text/lm", json={"text": "a cat"}).status_code == 200
    assert served.post("/v1/text/lm", json={"text": 5}).status_code == 422
    requests = {"name": "heed_requests_total", "api": "tokenize"}
    assert count(served, **requests, model="lm", status="200") == 3
    assert count(served, **requests, model="lm", status="422") == 1
    assert count(served, **requests, model="(none)", status="404") == 1
    assert count(served, "heed_request_duration_seconds_count", model="lm", api="tokenize") == 3
    assert count(served, "heed_requests_in_flight") == 0
    (statistics,) = served.get("/v2/models/lm/stats").json()["model_stats"]
    assert statistics["inference_stats"]["success"]["count"] == statistics["inference_count"] == 1
    assert statistics["inference_stats"]["fail"]["count"] == 1


@pytest.mark.parametrize("path", ["tokenize", "text"])
def test_texts_are_not_tokenized_after_the_deadline(path, served):
    response = served.post(f"/v1/{path}/lm", json={"text": "a cat"}, headers={"X-Request-Timeout": "0"})
    assert response.status_code == 504
    assert "Request timeout expired" in response.json()["detail"]
    assert count(served, "heed_requests_rejected_total", reason="deadline") == 1
    answer = served.post(f"/v1/{path}/lm", json={"text": "a cat"}, headers={"X-Request-Timeout": "60"})
    assert answer.json()["tokens"] == ["<s>", "a", "cat", "</s>"]


@pytest.mark.parametrize("texts", [1, 2])
def test_an_answer_with_many_tokens(texts, served):
    """3,000 tokens, in several pieces of JSON; the second text is padded."""
    words = ["the", "cat"] * 1500
    text = [" ".join(words), "a"][:texts]
    body = {"text": text, "add_special_tokens": False}
    tokens = served.post("/v1/tokenize/lm", json=body).json()
    assert tokens["tokens"][0] == words
    assert tokens["offsets"][0] == [[start, start + 3] for start in range(0, 12_000, 4)]
    assert tokens["sequence_ids"][1:] == [[0] + [None] * 2999][: texts - 1]
    answer = served.post("/v1/text/lm", json=body | {"outputs": ["output"], "next_tokens": 1}).json()
    assert list(answer)[:2] == ["block", "tokens"]
    assert list(answer)[-2:] == ["next_tokens", "output"]
    assert {name: answer[name] for name in tokens if name in answer} == {
        name: tokens[name] for name in tokens if name not in ("model", "sequence_ids", "token_type_ids")
    }
    assert len(answer["output"][0]) == 3000
