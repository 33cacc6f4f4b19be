"""The run without interventions beside the changed one: its outputs, and metrics of both."""

import numpy as np
import pytest

ATTENTION, TEXT = "/v1/attention/gpt", "/v1/text/gpt"
IDS = [[7, 40, 23, 11, 9], [8, 8, 40, 6, 2]]
CHANGE = [{"at": "hidden", "layers": 1, "positions": 2, "scale": 0}]


@pytest.fixture
def post(client):
    def post(path, **body):
        response = client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    return post


def log_softmax(scores):
    shifted = np.asarray(scores, float) - np.max(scores)
    return shifted - np.log(np.exp(shifted).sum())


def test_the_baseline_is_the_answer_without_interventions(post):
    body = {"input_ids": IDS, "outputs": ["output", "weights"], "weights_top_k": 2, "reduce_heads": "mean"}
    answer = post(ATTENTION, **body, interventions=CHANGE, baseline=True)
    plain = post(ATTENTION, **body)
    del plain["block"]
    assert answer["baseline"] == plain
    assert answer["output"] != plain["output"]


def test_the_baseline_has_its_own_next_tokens(post):
    body = {"text": ["the cat sat", "a dog"], "next_tokens": 3, "outputs": []}
    answer = post(TEXT, **body, interventions=CHANGE, baseline=True)
    plain = post(TEXT, **body)
    assert answer["baseline"].keys() == {"next_tokens"}
    of_baseline, of_plain, changed = (one["next_tokens"] for one in (answer["baseline"], plain, answer))
    for row, expected, other in zip(of_baseline, of_plain, changed, strict=True):
        assert [token["id"] for token in row] == [token["id"] for token in expected]
        found, exact, different = ([token["probability"] for token in tokens] for tokens in (row, expected, other))
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6)
        assert np.abs(np.subtract(found, different)).max() > 1e-3
    assert answer["tokens"] == plain["tokens"]


def test_metrics_are_of_the_last_token_of_each_row(post):
    body = {"input_ids": IDS, "attention_mask": [[1] * 5, [1, 1, 1, 0, 0]], "outputs": ["output"]}
    metrics = ["kl", "total_variation", {"logit_difference": [3, 4]}, {"probability": 5}]
    answer = post(ATTENTION, **body, interventions=CHANGE, difference=metrics)
    assert [one["metric"] for one in answer["difference"]] == [*metrics[:3], {"probability": [5]}]
    before, after = (np.array(one["output"])[[0, 1], [4, 2]] for one in (post(ATTENTION, **body), answer))
    expected = []
    for plain, changed in zip(before, after, strict=True):
        one, two = log_softmax(plain), log_softmax(changed)
        expected.append(
            [
                (0, (np.exp(one) * (one - two)).sum()), (0, np.abs(np.exp(one) - np.exp(two)).sum() / 2),
                (plain[3] - plain[4], changed[3] - changed[4]), (np.exp(one[5]), np.exp(two[5])),
            ]
        )  # fmt: skip
    found = [[one["unchanged"], one["changed"]] for one in answer["difference"]]
    np.testing.assert_allclose(found, np.transpose(expected, (1, 2, 0)), rtol=0, atol=1e-6)


def test_one_metric_of_one_row_is_no_list(post):
    answer = post(ATTENTION, input_ids=IDS[0], outputs=["weights"], interventions=CHANGE, difference="kl")
    assert answer.keys() == {"block", "weights", "difference"}
    assert answer["difference"]["unchanged"] == 0
    assert answer["difference"]["changed"] > 1e-3


def test_a_plan_without_a_comparison_is_another(post):
    """Requests of the same shapes, one after the other, have different fields in their answers."""
    body = {"input_ids": IDS, "outputs": ["weights"], "interventions": CHANGE}
    for more in ({}, {"baseline": True}, {"difference": "kl"}, {"baseline": False}, {"baseline": True}):
        answer = post(ATTENTION, **body, **more)
        wanted = {name for name, value in more.items() if value}
        assert answer.keys() == {"block", "weights", *wanted}


@pytest.mark.parametrize(
    ("fields", "status", "field", "words"),
    [
        ({"baseline": True}, 422, "baseline", "requires interventions"),
        ({"difference": "kl"}, 422, "difference", "requires interventions"),
        ({"interventions": CHANGE, "baseline": 1}, 422, "baseline", "expected a boolean, got 1"),
        ({"interventions": CHANGE, "difference": []}, 422, "difference", "expected 1 to 8 metrics, got 0"),
        ({"interventions": CHANGE, "difference": ["kl"] * 9}, 422, "difference", "expected 1 to 8 metrics, got 9"),
        ({"interventions": CHANGE, "difference": ["kl", "no"]}, 400, "difference[1]", "expected one of logit_diff"),
        ({"interventions": CHANGE, "difference": {"probability": 60}}, 422, "difference", "indices from 0 to 59"),
        ({"interventions": CHANGE, "difference": {"probability": "cat dog"}}, 422, "difference", "expected one token"),
    ],
)  # fmt: skip
def test_an_error_names_the_field(client, fields, status, field, words):
    response = client.post(ATTENTION, json={"input_ids": IDS, **fields})
    assert response.status_code == status, response.text
    assert response.json()["field"] == field
    assert words in response.json()["detail"]
