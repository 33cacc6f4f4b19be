"""Interventions and the lens in ``POST /v1/generate``. ``tests.export.hf`` compares each change with transformers."""

import asyncio
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import onnx
import pytest

from service.engine.engine import INLINE_NS
from service.generation import endpoint, sequence
from tests.support.in_process import serving_in_process

PROMPT = [5, 9, 14, 30]
OTHER = {"input_ids": [[3, 4, 5, 9]]}
SITES = ["weights", "head_output", "hidden", "attention_output", "mlp_output"]
STEERING = {"at": "hidden", "layers": 1, "add": {**OTHER, "minus": {"input_ids": [[7, 8]]}, "scale": 4}}
CHANGES = {
    "steering": [STEERING],
    "positions": [{"at": "mlp_output", "positions": "1:3,5", "add": np.linspace(-3, 3, 32).tolist()}],
    "rows": [{"at": "hidden", "layers": 0, "positions": [0, 3, 6], "replace": np.eye(3, 32).tolist()}],
    "heads": [{"at": "head_output", "layers": 0, "heads": [1, 2], "positions": "-2:", "scale": 0}],
    "patch": [{"at": "attention_output", "layers": 1, "from": OTHER}],
    "mean": [{"at": "weights", "layers": 1, "heads": 0, "replace": "mean"}],
    "weights of a run": [{"at": "weights", "layers": 0, "from": OTHER}],
    "added weights": [{"at": "weights", "layers": 0, "add": 0.3}],
    "edges": [{"at": "weights", "queries": "2:", "keys": [1, 4], "scale": 0, "renormalize": True}],
    "two": [{"at": "hidden", "scale": 0.5}, {"at": "hidden", "positions": "-1:", "add": 0.5, "norm_match": False}],
}
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def post(client):
    """The response to a request to generate six tokens behind PROMPT, or another prompt."""

    def post(**body):
        prompt = {} if "text" in body else {"input_ids": PROMPT}
        return client.post("/v1/generate/gpt", json={**prompt, "ignore_eos": True, "max_new_tokens": 6, **body})

    return post


@pytest.fixture(scope="module")
def ask(post):
    def ask(**body):
        response = post(**body)
        assert response.status_code == 200, response.text
        return response.json()

    return ask


def ids_of(answer):
    return [token["id"] for token in answer["generated"]]


def assert_same(answer, expected, limit=1e-5):
    assert ids_of(answer) == ids_of(expected)
    for name in ("weights", "logprobs"):
        for one, other in zip(answer["generated"], expected["generated"], strict=True):
            np.testing.assert_allclose(one[name], other[name], rtol=0, atol=limit)


def test_the_description_has_the_sites_of_generation(client):
    assert client.get("/v1/attention/gpt").json()["generate"]["interventions"] == SITES


def test_the_document_has_the_fields(client):
    document = client.get("/openapi.json").json()
    body = document["paths"]["/v1/generate/gpt"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schemas = document["components"]["schemas"]
    assert {"interventions", "lens_top_k"} <= schemas[body["$ref"].split("/")[-1]]["properties"].keys()
    assert {"lens", "ranks"} <= schemas["GeneratedToken"]["properties"].keys()


def test_changes_that_are_neutral_change_nothing(ask):
    outputs = ["weights", "logprobs"]
    neutral = [{"at": site, "scale": 1} for site in SITES] + [{"at": "hidden", "add": 0}]
    assert_same(ask(outputs=outputs, interventions=neutral), ask(outputs=outputs))


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_prompt_in_several_runs_is_changed_as_in_one(ask, monkeypatch, changes):
    body = {"outputs": ["weights", "logprobs"], "interventions": changes}
    expected = ask(**body)
    assert ids_of(expected) != ids_of(ask()) or changes[0]["at"] == "weights"
    monkeypatch.setattr(sequence, "PREFILL", 2)
    assert_same(ask(**body), expected)


@pytest.mark.parametrize("name", ["steering", "heads", "patch", "mean", "weights of a run", "two"])
def test_the_first_token_is_that_of_the_changed_prompt(ask, client, name):
    body = {"input_ids": [PROMPT], "interventions": CHANGES[name], "outputs": ["output"]}
    output = np.array(client.post("/v1/attention/gpt", json=body).json()["output"])[0, -1]
    logprobs = output - np.log(np.exp(output).sum())
    (first,) = ask(interventions=CHANGES[name], outputs=["logprobs"], max_new_tokens=1)["generated"]
    np.testing.assert_allclose(first["logprobs"], logprobs, rtol=0, atol=1e-5)


def test_what_is_cut_is_zero_in_the_weights_of_the_step(ask):
    cut = {"at": "weights", "layers": 1, "heads": 2, "queries": 5, "keys": [0, 4], "scale": 0, "renormalize": True}
    plain, changed = (ask(outputs=["weights"], interventions=[one]) for one in ({**cut, "scale": 1}, cut))
    for place, (one, other) in enumerate(zip(plain["generated"], changed["generated"], strict=True)):
        query = len(PROMPT) - 1 + place  # that predicted the token
        row = np.array(other["weights"])[1, 2, 0]
        assert (np.flatnonzero(row == 0).tolist() == [0, 4]) == (query == 5)
        np.testing.assert_allclose(row.sum(), 1, rtol=1e-6)
        if query < 5:
            assert one == other


def test_prompts_of_a_list_are_changed_as_each_alone(ask):
    prompts = ["the cat sat", "a dog", "the animal was too tired"]
    changes = [STEERING, {"at": "hidden", "positions": -1, "scale": 2}, {"at": "mlp_output", "replace": "mean"}]
    together = ask(text=prompts, interventions=changes)
    alone = [ask(text=prompt, interventions=changes) for prompt in prompts]
    assert together["generated"] == [answer["generated"] for answer in alone]


def test_tokens_are_those_of_each_prompt_of_a_list(ask):
    prompts = ["the cat sat", "a dog cat"]  # the word is at another place
    body = {"outputs": ["logprobs"], "interventions": [{"at": "mlp_output", "tokens": ["cat"], "scale": -4}]}
    together = ask(text=prompts, **body)
    alone = [ask(text=prompt, **body) for prompt in prompts]
    assert together["generated"] == [answer["generated"] for answer in alone]


def test_places_are_found_beside_the_event_loop(generating, monkeypatch):
    """However quickly they were found before: the next request may have many more."""
    loops = []

    def changes_of(*arguments):
        loops.append(asyncio._get_running_loop())
        return planned(*arguments)

    planned = endpoint.changes_of
    monkeypatch.setattr(endpoint, "changes_of", changes_of)
    body = {"input_ids": PROMPT, "max_new_tokens": 1, "interventions": CHANGES["edges"]}
    with serving_in_process(generating / "models", inline_ns=INLINE_NS) as service:
        for _ in range(20):
            url = f"http://127.0.0.1:{service.port}/v1/generate/gpt"
            assert httpx.post(url, json=body, timeout=60).status_code == 200
    assert loops == [None] * 20


def test_a_stream_has_the_tokens_of_the_answer(ask, post):
    body = {"interventions": [STEERING], "lens_top_k": 2}
    events = post(**body, stream=True).text.strip().split("\n\n")
    assert [json.loads(event.partition("data: ")[2]) for event in events][:-1] == ask(**body)["generated"]


def test_changed_generations_share_no_steps_with_others(ask):
    bodies = [{"max_new_tokens": 20}, {"max_new_tokens": 20, "interventions": [STEERING]}, {"max_new_tokens": 20}] * 3
    alone = [ids_of(ask(**body)) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as threads:
        answers = [*threads.map(lambda body: ids_of(ask(**body)), bodies)]
    assert answers == alone
    assert alone[0] != alone[1]


def test_only_requests_with_changes_need_their_graphs(generating, tmp_path):
    folder = tmp_path / "models"
    shutil.copytree(generating / "models", folder)
    for file in (folder / "gpt" / "1").glob("*_interventions.onnx"):
        file.unlink()
    with serving_in_process(folder) as service:
        url = f"http://127.0.0.1:{service.port}/v1/generate/gpt"
        body = {"input_ids": PROMPT, "max_new_tokens": 2}
        assert httpx.post(url, json=body, timeout=60).status_code == 200
        answer = httpx.post(url, json={**body, "interventions": [STEERING]}, timeout=60)
        assert (answer.status_code, "decode_output_interventions.onnx" in answer.text) == (422, True)


def test_a_version_whose_steps_take_none_says_so(generating, tmp_path):
    folder = tmp_path / "models"
    shutil.copytree(generating / "models", folder)
    file = folder / "gpt" / "1" / "model.onnx"
    model = onnx.load(file)
    (metadata,) = (entry for entry in model.metadata_props if entry.key == "heed")
    spec = json.loads(metadata.value)
    del spec["interventions"]["generation"], spec["interventions"]["head"]
    metadata.value = json.dumps(spec)
    onnx.save(model, file)
    with serving_in_process(folder) as service, httpx.Client(base_url=f"http://127.0.0.1:{service.port}") as client:
        assert client.get("/v1/attention/gpt").json()["generate"]["interventions"] == []
        for change, words in (
            ({"interventions": [STEERING]}, "takes no interventions in generation: it was exported without"),
            ({"lens_top_k": 2}, "has no lens in generation"),
        ):
            answer = client.post("/v1/generate/gpt", json={"input_ids": PROMPT, **change}, timeout=60)
            assert (answer.status_code, answer.json()["field"]) == (422, next(iter(change)))
            assert words in answer.json()["detail"]


@pytest.mark.parametrize("changes", [[], [STEERING]], ids=["plain", "changed"])
def test_the_lens_is_that_of_the_whole_text(ask, client, changes):
    change = {"interventions": changes} if changes else {}
    tokens = ask(lens_top_k=3, next_tokens=3, **change)["generated"]
    ids = [PROMPT + [token["id"] for token in tokens]]
    positions = [*range(len(PROMPT) - 1, len(ids[0]) - 1)]
    lens = client.post(
        "/v1/lens/gpt", json={"input_ids": ids, "lens_top_k": 3, "positions": positions, **change}
    ).json()
    for place, token in enumerate(tokens):
        assert token["ranks"] == [ranks[place] for ranks in lens["ranks"]]
        for name in ("indices", "tokens"):
            assert token["lens"][name] == [layer[place] for layer in lens["lens"][name]]
        expected = np.array(lens["lens"]["probabilities"])[:, place]
        np.testing.assert_allclose(token["lens"]["probabilities"], expected, rtol=1e-4)
        assert token["lens"]["indices"][-1] == [one["id"] for one in token["next_tokens"]]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"interventions": {}}, 422, "interventions: expected a list of objects"),
        ({"interventions": []}, 422, "interventions: expected 1 to 64 interventions, got 0"),
        ({"interventions": [STEERING, {"at": "hidden"}]}, 400, "interventions[1]: expected one of add, scale"),
        ({"interventions": [{"at": "logits", "scale": 0}]}, 422, "interventions[0].at: expected one of weights, head"),
        ({"interventions": [{"at": "hidden", "layers": 2, "scale": 0}]}, 422, "interventions[0].layers: expected"),
        (
            {"interventions": [STEERING, {"at": "hidden", "positions": 10, "scale": 0}]},
            422,
            "interventions[1].positions: expected indices from -10 to 9, got 10",
        ),
        (
            {"interventions": [{"at": "hidden", "positions": -5, "scale": 0}]},
            422,
            "interventions[0].positions: expected -4 or more, got -5",
        ),
        (
            {"interventions": [{"at": "weights", "queries": "1:", "keys": -9, "scale": 0}]},
            422,
            "interventions[0].keys: expected -4 or more, got -9",
        ),
        (
            {"interventions": [{"at": "hidden", "positions": 5, "from": OTHER}]},
            422,
            "interventions[0].positions: expected indices from -4 to 3, got 5",
        ),
        (
            {"interventions": [{"at": "hidden", "from": {"input_ids": [[1, 2, 3]]}}]},
            422,
            "interventions[0].from: expected 4 positions, the number changed, got 3",
        ),
        (
            {"interventions": [{"at": "hidden", "add": [1, 2]}]},
            422,
            "interventions[0].add: expected a shape that broadcasts to [2, 10, 32], got [2]",
        ),
        (
            {"interventions": [{"at": "hidden", "scale": float("1e39")}]},
            422,
            "interventions[0].scale: expected a finite number",
        ),
        (
            {"text": "the cat sat", "interventions": [{"at": "hidden", "tokens": ["dog"], "scale": 0}]},
            422,
            "interventions[0].tokens: 'dog' is not a token of the text",
        ),
        (
            {"interventions": [{"at": "hidden", "replace": 0}, {"at": "hidden", "positions": 7, "replace": 1}]},
            422,
            "interventions[1]: replaces what interventions[0] replaces",
        ),
        ({"lens_top_k": 0}, 422, "lens_top_k: expected a whole number from 1 to 100, got 0"),
        ({"lens_top_k": 61}, 422, "lens_top_k: expected at most 60, the size of the vocabulary, got 61"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(post, body, status, words):
    answer = post(**body)
    assert answer.status_code == status
    assert words in answer.json()["detail"]


def test_memory_of_changes_is_counted_before_it_is_taken(generating):
    """The arrays of a change of all weights are counted beside those of the step."""
    change = {"at": "weights", "queries": "0:", "keys": "0:", "scale": 0.5}
    with serving_in_process(generating / "models", max_memory_bytes=95_000) as service:
        url = f"http://127.0.0.1:{service.port}/v1/generate/gpt"
        body = {"input_ids": PROMPT * 5, "max_new_tokens": 5, "ignore_eos": True}
        assert httpx.post(url, json=body, timeout=60).status_code == 200
        answer = httpx.post(url, json={**body, "interventions": [change]}, timeout=60)
        assert (answer.status_code, "a step of this request needs about" in answer.text) == (413, True)


UNPLANNED = {"at": "hidden", "layers": 0, "positions": "0:", "scale": 1}


def test_keys_and_values_are_counted_before_changes_are_planned(post, monkeypatch):
    """The places of a change take eight bytes for each position."""
    planned = []
    monkeypatch.setattr(endpoint.Decoder, "max_positions", None)
    monkeypatch.setattr(endpoint, "changes_of", lambda *_: planned.append(None))
    response = post(max_new_tokens=200_000_000_000, interventions=[UNPLANNED])
    assert (response.status_code, response.json()["code"]) == (413, "too_much_memory")
    assert not planned


def test_the_changes_of_all_prompts_have_a_limit(post):
    response = post(input_ids=[[5, 9]] * 257, interventions=[UNPLANNED] * 16)
    assert (response.status_code, response.json()["field"]) == (422, "interventions")
    assert response.json()["detail"].endswith("at most 4,096 in all prompts together, got 16 in each of 257")


@pytest.mark.parametrize("option", ["layers", "heads"])
def test_the_indices_and_ranges_of_all_prompts_have_a_limit(option, post):
    """Each length of a prompt may select other places: the work grows with both."""
    body = {"outputs": ["weights"], option: "0" + ",9:9" * 255, "max_new_tokens": 1}
    assert post(input_ids=[[5, 9]] * 256, **body).status_code == 200
    response = post(input_ids=[[5, 9]] * 257, **body)
    assert (response.status_code, response.json()["field"]) == (422, option)
    assert response.json()["detail"].endswith("at most 65,536 in all prompts together, got 256 in each of 257")


def test_a_prompt_that_has_ended_keeps_no_values(post, monkeypatch):
    released, release = [], sequence.GrowingSequence.release

    def recorded(one):
        release(one)
        released.append((one.changes._found, one.past))

    monkeypatch.setattr(sequence.GrowingSequence, "release", recorded)
    assert post(input_ids=[PROMPT] * 3, interventions=CHANGES["patch"]).status_code == 200
    assert released == [({}, None)] * 3
