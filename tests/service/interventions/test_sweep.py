"""``POST /v1/sweep``: each cell is the run with that one intervention, and the metric is that of its output."""

import json

import httpx
import numpy as np
import pytest

from service.interventions.sweep import runs
from tests.support.in_process import serving_in_process
from tests.support.waiting import until

ATTENTION, SWEEP = "/v1/attention/gpt", "/v1/sweep/gpt"
IDS, OTHER = [7, 40, 23, 11, 9], [9, 9, 3, 50, 4]
PATCHED = {"at": "hidden", "from": {"input_ids": OTHER}}
GRID = {"layers": "all", "positions": "all"}
ERROR = 1e-5
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture
def sweep(client):
    """The answer to a sweep of IDS."""

    def post(intervention, over, **fields):
        body = {"input_ids": IDS, "intervention": intervention, "over": over, **fields}
        response = client.post(SWEEP, json={name: value for name, value in body.items() if value is not None})
        assert response.status_code == 200, response.text
        return response.json()

    return post


@pytest.fixture
def scores(client):
    """The logits of a run with one intervention, or without."""

    def post(intervention=None, ids=IDS):
        body = {"input_ids": ids, "outputs": ["output"], "interventions": [intervention] if intervention else None}
        response = client.post(ATTENTION, json=body)
        assert response.status_code == 200, response.text
        return np.array(response.json()["output"])

    return post


def probabilities(logits):
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def difference(logits, _):
    return logits[3] - logits[4]


def probability(logits, _):
    return probabilities(logits)[3]


def divergence(logits, unchanged):
    before = probabilities(unchanged)
    return (before * np.log(before / probabilities(logits))).sum()


def variation(logits, unchanged):
    return np.abs(probabilities(logits) - probabilities(unchanged)).sum() / 2


def cosine(logits, unchanged):
    return 1 - logits @ unchanged / np.linalg.norm(logits) / np.linalg.norm(unchanged)


@pytest.mark.parametrize(
    ("metric", "compute"),
    [
        ({"logit_difference": [3, 4]}, difference),
        ({"probability": 3}, probability),
        ("kl", divergence),
        ("total_variation", variation),
        ("cosine_distance", cosine),
    ],
    ids=["logit_difference", "probability", "kl", "total_variation", "cosine_distance"],
)
@pytest.mark.parametrize("position", [None, 3])
def test_a_cell_has_the_metric_of_its_run(sweep, scores, metric, compute, position):
    answer = sweep(PATCHED, GRID, metric=metric, position=position)
    place = -1 if position is None else position
    unchanged = scores()[place]
    expected = [
        [compute(scores({**PATCHED, "layers": layer, "positions": at})[place], unchanged) for at in range(len(IDS))]
        for layer in range(2)
    ]
    assert np.abs(np.array(answer["values"]) - expected).max() <= ERROR
    assert abs(answer["unchanged"] - compute(unchanged, unchanged)) <= ERROR
    assert abs(answer["source"] - compute(scores(ids=OTHER)[place], unchanged)) <= ERROR
    assert (answer["axes"], answer["layers"], answer["positions"]) == (["layers", "positions"], [0, 1], [0, 1, 2, 3, 4])


CHANGES = [
    (
        {"at": "weights", "queries": -1, "scale": 0, "renormalize": True},
        {"layers": "all", "heads": "1:", "keys": [0, 3]},
    ),
    ({"at": "weights", "scale": 0, "keys": 1}, {"queries": "2:", "layers": -1}),
    ({"at": "head_output", "replace": "mean"}, {"heads": "all", "layers": [1, 0]}),
    ({"at": "head_output", "from": {"input_ids": OTHER}}, {"positions": [4, 0], "heads": "0,3"}),
    ({"at": "mlp_output", "scale": 0.5, "layers": 1}, {"positions": "all"}),
    ({"at": "attention_output", "replace": np.linspace(-1, 1, 32).tolist()}, {"layers": "all"}),
    ({"at": "hidden", "add": np.linspace(-1, 1, 32).tolist(), "norm_match": True, "scale": 2}, GRID),
    ({"at": "hidden", "add": {"input_ids": [9, 9], "minus": {"input_ids": [3, 4, 5]}, "scale": 4}}, GRID),
    ({"at": "hidden", "scale": 0, "positions": 2}, {"layers": "all"}),
]


@pytest.mark.parametrize(
    ("intervention", "over"), CHANGES, ids=[f"{one['at']} {n}" for n, (one, _) in enumerate(CHANGES)]
)
def test_each_kind_of_change_is_that_of_a_run_of_its_own(sweep, scores, intervention, over):
    answer = sweep(intervention, over, metric={"logit_difference": [3, 4]})
    values, axes = np.array(answer["values"]), answer["axes"]
    assert values.shape == tuple(len(answer[axis]) for axis in axes)
    for cell in np.ndindex(values.shape):
        chosen = {axis: answer[axis][k] for axis, k in zip(axes, cell, strict=True)}
        expected = difference(scores({**intervention, **chosen})[-1], None)
        assert abs(values[cell] - expected) <= ERROR, chosen


def test_positions_of_two_runs_are_paired(sweep, scores):
    other = {"input_ids": OTHER[:3], "positions": [2, 0]}
    values = sweep({"at": "hidden", "layers": 1, "from": other}, {"positions": [4, 1]}, metric={"probability": 3})[
        "values"
    ]
    for place, (own, theirs) in enumerate([(4, 2), (1, 0)]):
        source = {"input_ids": OTHER[:3], "positions": theirs}
        changed = scores({"at": "hidden", "layers": 1, "positions": own, "from": source})
        assert abs(values[place] - probability(changed[-1], None)) <= ERROR


def test_the_last_token_is_that_before_the_padding(sweep):
    padded = {"input_ids": [*IDS, 0, 0], "attention_mask": [1, 1, 1, 1, 1, 0, 0]}
    over = {"layers": "all", "positions": [1, 3]}
    found = sweep({"at": "mlp_output", "scale": 0}, over, **padded)["values"]
    assert np.abs(np.array(found) - sweep({"at": "mlp_output", "scale": 0}, over)["values"]).max() <= ERROR


def test_a_shorter_run_may_have_no_number_of_its_own(sweep):
    other = {"input_ids": OTHER[:2], "positions": 1}
    answer = sweep({"at": "hidden", "layers": 1, "positions": 3, "from": other}, {}, position=3)
    assert (answer["source"], answer["values"] > 0) == (None, True)


def test_a_pooled_output_has_no_position(texts_repository):
    body = {"text": "the cat", "intervention": {"at": "hidden", "scale": 0}, "over": {"layers": "all"}, "position": 1}
    with serving_in_process(texts_repository) as service:
        problem = httpx.post(f"http://127.0.0.1:{service.port}/v1/sweep/bert", json=body).json()
    assert (problem["status"], problem["field"]) == (422, "position"), problem
    assert "embedding has no positions" in problem["detail"]


def test_the_deadline_ends_a_sweep_between_its_runs(generating):
    """The queue was empty all the time, so the message does not speak of it."""
    with serving_in_process(generating / "models") as service:
        url = f"http://127.0.0.1:{service.port}{SWEEP}"
        opening = httpx.post(url, json={**EDGES, "over": {"layers": "all"}}, timeout=60)
        assert opening.status_code == 200, opening.text  # else the deadline could pass before the first run
        response = httpx.post(url, json=EDGES, headers={"X-Request-Timeout": "0.5"}, timeout=60)
    assert response.status_code == 504, response.text
    assert "passed between the runs of the request" in response.json()["detail"]


def test_a_grid_without_axes_is_one_number(sweep, scores):
    answer = sweep({"at": "hidden", "layers": 1, "positions": 2, "scale": 0}, {}, metric="total_variation")
    changed = scores({"at": "hidden", "layers": 1, "positions": 2, "scale": 0})
    assert abs(answer["values"] - variation(changed[-1], scores()[-1])) <= ERROR


def test_many_cells_share_runs_within_the_limit_of_memory(generating, sweep):
    """The grid has 9,216 cells; with less memory fewer share a run."""
    edges = {"at": "weights", "scale": 0, "layers": 1}
    body = {"input_ids": IDS * 4, "intervention": edges, "over": {"heads": "all", "queries": "all", "keys": "all"}}
    whole = np.array(sweep(edges, body["over"], input_ids=IDS * 4)["values"])
    with serving_in_process(generating / "models", max_memory_bytes=500_000) as small:
        response = httpx.post(f"http://127.0.0.1:{small.port}{SWEEP}", json=body, timeout=60)
    assert response.status_code == 200, response.text
    assert np.abs(np.array(response.json()["values"]) - whole).max() <= ERROR
    assert whole.shape == (4, 20, 20)
    assert np.abs(whole[:, *np.triu_indices(20, 1)]).max() == 0  # a causal model has no weights there


def events(text):
    parts = [part.splitlines() for part in text.split("\n\n") if part]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in parts]


def test_a_stream_has_each_row(client, sweep):
    body = {"text": "the cat sat", "intervention": {"at": "mlp_output", "scale": 0}, "over": GRID}
    answer = sweep(body["intervention"], GRID, input_ids=None, text="the cat sat")
    response = client.post(SWEEP, json={**body, "stream": True})
    assert response.headers["content-type"] == "text/event-stream"
    (start, first), *rows, (done, last) = events(response.text)
    assert (start, [name for name, _ in rows], done) == ("start", ["row", "row"], "done")
    assert first == {name: value for name, value in answer.items() if name != "values"}
    assert [row["index"] for _, row in rows] == [0, 1]
    assert [row["values"] for _, row in rows] == last["values"] == answer["values"]


def test_a_text_has_its_tokens_and_a_token_is_a_text(sweep):
    answer = sweep(
        {"at": "mlp_output", "scale": 0}, GRID, input_ids=None, text="the cat sat", metric={"probability": "cat"}
    )
    assert answer["tokens"] == ["<s>", "the", "cat", "sat", "</s>"]
    assert answer["metric"] == {"probability": answer["input_ids"][2:3]}


def test_a_disconnect_ends_a_sweep(service, client):
    """Without it the queue would be busy for minutes."""
    with client.stream("POST", SWEEP, json={**EDGES, "stream": True}) as response:
        assert next(response.iter_lines()) == "event: start"
    assert client.post(ATTENTION, json={"input_ids": IDS}).status_code == 200
    until(lambda: not service.budget.used)


CELL = {"at": "hidden", "scale": 0}
FULL = {"intervention": CELL, "over": GRID}
EDGES = {
    "input_ids": [5] * 48,
    "intervention": {"at": "weights", "scale": 0},
    "over": {"layers": "all", "heads": "all", "queries": "all", "keys": "all"},
}
ERRORS = [
    ("nothing", {}, 422, "intervention", "missing (required)"),
    ("no grid", {"intervention": CELL}, 422, "over", "missing (required); expected an object of axes"),
    ("a list of axes", {**FULL, "over": ["layers"]}, 422, "over", "expected an object of axes"),
    ("an axis that is not there", {**FULL, "over": {"heads": "all"}}, 400, "over.heads", "not an axis of"),
    ("an axis given twice", {**FULL, "intervention": {**CELL, "layers": 1}}, 400, "over.layers", "together with"),
    ("a layer that is not there", {**FULL, "over": {"layers": [0, 7]}}, 422, "over.layers", "got 7"),
    ("a field of the intervention", {**FULL, "intervention": {"at": "hidden", "scaled": 0}}, 400,
     "intervention.scaled", "did you mean 'scale'"),
    ("an unknown field", {**FULL, "metrics": "kl"}, 400, "metrics", "did you mean 'metric'"),
    ("no such metric", {**FULL, "metric": "loss"}, 400, "metric", "expected one of logit_diff"),
    ("two metrics", {**FULL, "metric": {"kl": 1, "probability": 2}}, 400, "metric", "one field"),
    ("one token of two", {**FULL, "metric": {"logit_difference": [1]}}, 400, "metric", "expected 2 tokens"),
    ("an id that is no token", {**FULL, "metric": {"probability": 999}}, 422, "metric", "from 0 to 59, got 999"),
    ("a text of two tokens", {**FULL, "metric": {"probability": "the cat"}}, 422, "metric", "'the cat', which has 2"),
    ("a long text", {**FULL, "metric": {"probability": "cat " * 300}}, 422, "metric", "a text of 1,200 characters"),
    ("a word that is no token", {**FULL, "metric": {"probability": "zebra"}}, 422, "metric", "'zebra', which becomes"),
    ("a position that is not there", {**FULL, "position": 5}, 422, "position", "from -5 to 4"),
    ("a list in place of a token", {**FULL, "input_ids": [7, [40], 23]}, 422, "input_ids", "got a list at [1]"),
    ("a list in place of a number", {**FULL, "intervention": {"at": "hidden", "replace": [[0.0], [[1.0]], [0.0], [0.0],
     [0.0]]}}, 422, "intervention.replace", "got a list at [1, 0]"),
    ("several rows", {**FULL, "input_ids": [IDS, IDS]}, 422, "input_ids", "expected one row"),
    ("several texts", {**FULL, "input_ids": None, "text": ["a", "b"]}, 422, "text", "expected one text"),
    ("a stream that is a number", {**FULL, "stream": 1}, 422, "stream", "expected a boolean"),
    ("too many cells", EDGES, 422, "over", "at most 1,000 cells, got 18,432"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status", "field", "words"), [one[1:] for one in ERRORS], ids=[one[0] for one in ERRORS]
)
def test_an_error_names_the_field(client, monkeypatch, body, status, field, words):
    monkeypatch.setattr(runs, "MAX_CELLS", 1000)
    body = {"input_ids": IDS, **body}
    response = client.post(SWEEP, json={name: value for name, value in body.items() if value is not None})
    problem = response.json()
    assert (response.status_code, problem.get("field")) == (status, field), problem
    assert words in problem["detail"]
