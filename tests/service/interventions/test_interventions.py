"""The field ``interventions``: changes at their places, composed in their order, and clear errors.

That each kind of change is transformers' own is compared in tests/export/hf/test_families.py.
"""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import onnx
import pytest

from service.base.errors import Invalid
from service.codec.json_reader import JsonReader
from service.inference.source import InputSource
from service.interventions.changes import Change
from service.interventions.request import Intervention, InterventionReader
from service.interventions.sites import Sites
from service.interventions.values import Values
from service.tensors.spec import TensorSpec
from service.tokens.tokenizer import load_tokenizer
from tests.support.in_process import serving_in_process
from tests.support.tasks import opened

ATTENTION, TEXT = "/v1/attention/gpt", "/v1/text/gpt"
IDS = [7, 40, 23, 11, 9]
WIDTH = 32
ERROR = 1e-5
REMOVED = {"at": "hidden", "layers": 1, "positions": 2, "scale": 0}
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def service(generating, tmp_path_factory):
    """Of the small GPT-2, and of one that was refused at export."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("gpt", "refused"):
        shutil.copytree(generating / "models" / "gpt", folder / name)
    path = folder / "refused" / "1" / "model.onnx"
    model = onnx.load(path)
    spec = json.loads(model.metadata_props[0].value)
    onnx.helper.set_model_props(model, {"heed": json.dumps(spec | {"interventions": {"refused": "it has no layers"}})})
    onnx.save(model, path)
    with serving_in_process(folder) as service:
        yield service


@pytest.fixture
def ask(client):
    """The outputs of a run with these interventions, as arrays."""

    def post(*interventions, ids=IDS, outputs=("output", "weights", "hidden_states"), **fields):
        body = {"input_ids": ids, "outputs": [*outputs], **fields}
        response = client.post(ATTENTION, json=body | ({"interventions": [*interventions]} if interventions else {}))
        assert response.status_code == 200, response.text
        return {name: np.array(response.json()[name]) for name in outputs}

    return post


def assert_close(answer, expected):
    for name, array in expected.items():
        assert np.abs(answer[name] - array).max() <= ERROR, name


def test_hidden_states_are_those_after_the_change(ask):
    vector = np.linspace(-1, 1, WIDTH)
    plain = ask()["hidden_states"]
    changed = ask({"at": "hidden", "layers": 1, "positions": "1,3", "add": vector.tolist()})["hidden_states"]
    assert np.abs(changed[0] - plain[0]).max() == 0
    expected = plain[1].copy()
    expected[[1, 3]] += vector
    assert np.abs(changed[1] - expected).max() <= ERROR
    assert (np.abs(changed[2] - plain[2]).max(-1) > ERROR).tolist() == [False, True, True, True, True]  # causal


def test_removed_weights_are_0_and_renormalized_ones_have_the_sum_1(ask):
    place = {"at": "weights", "layers": 1, "heads": 2, "queries": -1, "keys": [0, 2]}
    plain, cut, whole = (
        ask(*changes)["weights"]
        for changes in ([], [{**place, "scale": 0}], [{**place, "scale": 0, "renormalize": True}])
    )
    expected = plain.copy()
    expected[1, 2, -1, [0, 2]] = 0
    assert np.abs(cut - expected).max() <= ERROR
    expected[1, 2, -1] /= expected[1, 2, -1].sum()
    assert np.abs(whole - expected).max() <= ERROR


def test_changes_of_one_place_are_applied_in_their_order(ask):
    vector = np.linspace(-1, 1, WIDTH).tolist()
    place = {"at": "mlp_output", "layers": 0, "positions": 3}
    double, add, replace = ({**place, **one} for one in ({"scale": 2}, {"add": vector}, {"replace": vector}))
    plain = ask()["hidden_states"][1]
    fourfold, added_twice = (ask(*changes)["hidden_states"][1] - plain for changes in ([double, double], [add, double]))
    once = ask(double)["hidden_states"][1] - plain
    assert np.abs(fourfold - 3 * once).max() <= ERROR
    expected = once.copy()
    expected[3] += 2 * np.array(vector)
    assert np.abs(added_twice - expected).max() <= ERROR
    assert_close(ask(add, replace), ask(replace))
    assert_close(ask(replace, add), ask({**place, "replace": (2 * np.array(vector)).tolist()}))


def test_changes_of_several_places_are_independent(ask):
    """A layer in which everything is scaled beside one in which a position of a head is."""
    both = ask(
        {"at": "head_output", "layers": 0, "scale": 0.5}, {"at": "head_output", "layers": 1, "heads": 1, "scale": 2}
    )
    halved = ask({"at": "head_output", "layers": 0, "scale": 0.5})
    assert np.abs(both["hidden_states"][1] - halved["hidden_states"][1]).max() <= ERROR
    assert np.abs(both["output"] - halved["output"]).max() > ERROR


def test_replacements_of_other_places_are_no_contradiction(ask):
    zeros = [
        {"at": "hidden", "layers": layer, "positions": position, "replace": [0.0]}
        for layer, position in ((1, 2), (1, 3), (0, 2))
    ]
    hidden = ask(*zeros)["hidden_states"]
    assert [np.abs(hidden[place]).max() for place in ((1, 2), (1, 3), (0, 2))] == [0, 0, 0]
    assert np.abs(hidden[0, 3]).max() > 0


def test_an_activation_of_another_run_is_patched(ask):
    """A layer that is replaced as a whole gives the output of the run from which it is."""
    other = [9, 9, 3, 50, 4]
    source = {"at": "hidden", "layers": 1, "from": {"input_ids": other}}
    assert_close(ask(source, outputs=["output"]), ask(ids=other, outputs=["output"]))
    last = {"at": "hidden", "layers": 1, "positions": -1, "from": {"input_ids": other[:3], "positions": 2}}
    hidden = ask(last)["hidden_states"]
    assert np.abs(hidden[1, -1] - ask(ids=other[:3])["hidden_states"][1, 2]).max() <= ERROR
    assert np.abs(hidden[1, :-1] - ask()["hidden_states"][1, :-1]).max() <= ERROR


def test_weights_of_another_run_are_patched(ask):
    other = [9, 9, 3, 50, 4]
    source = {"at": "weights", "layers": 1, "queries": [2, 4], "heads": "1:3", "from": {"input_ids": other}}
    weights, plain, theirs = ask(source)["weights"], ask()["weights"], ask(ids=other)["weights"]
    expected = plain.copy()
    expected[1, 1:3, 2], expected[1, 1:3, 4] = theirs[1, 1:3, 2], theirs[1, 1:3, 4]
    assert np.abs(weights - expected).max() <= ERROR


def test_a_steering_vector_is_the_difference_of_two_texts(ask, client):
    states = [ask(ids=ids)["hidden_states"][1] for ids in ([9, 9], [3, 4, 5])]
    vector = 4 * (states[0][-1] - states[1][1:].mean(0))
    difference = {"input_ids": [9, 9], "minus": {"input_ids": [3, 4, 5], "positions": "1:"}, "scale": 4}
    place = {"at": "hidden", "layers": 1, "positions": "1:"}
    assert_close(ask({**place, "add": difference}), ask({**place, "add": vector.tolist()}))
    unit = vector / np.linalg.norm(vector)
    found = ask({**place, "add": difference, "norm_match": True, "scale": -0.5})["hidden_states"][1]
    plain = ask()["hidden_states"][1]
    lengths = np.linalg.norm(plain, axis=-1, keepdims=True)
    assert np.abs(found[1:] - (plain - 4 * 0.5 * lengths * unit)[1:]).max() <= 10 * ERROR


def test_the_mean_leaves_padding_out(ask):
    mask = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    rows = [IDS, [8, 30, 2, 0, 0]]
    mean = {"at": "hidden", "layers": 1, "positions": 1, "replace": "mean"}
    plain = ask(ids=rows, attention_mask=mask)["hidden_states"]
    found = ask(mean, ids=rows, attention_mask=mask)["hidden_states"]
    for row, length in ((0, 5), (1, 3)):
        assert np.abs(found[1, row, 1] - plain[1, row, :length].mean(0)).max() <= ERROR


def test_positions_are_those_of_tokens(client):
    def ask(**place):
        body = {"text": "the cat sat", "interventions": [{"at": "hidden", "layers": 1, "scale": 0, **place}]}
        response = client.post(TEXT, json={**body, "outputs": ["output"], "next_tokens": 3})
        assert response.status_code == 200, response.text
        return response.json()

    assert ask(tokens=["cat", "the"]) == ask(positions=[1, 2])
    assert ask(tokens=["cat"]) != ask(positions=[1, 2])


def test_answers_without_interventions_stay_the_same_beside_others(client):
    bodies = [{"input_ids": IDS}, {"input_ids": IDS, "interventions": [REMOVED]}]
    alone = [client.post(ATTENTION, json=body).json() for body in bodies]
    assert alone[0] != alone[1]
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda index: client.post(ATTENTION, json=bodies[index % 2]).json(), range(40))]
    for index, answer in enumerate(answers):
        for name in ("output", "weights"):
            assert np.abs(np.array(answer[name]) - np.array(alone[index % 2][name])).max() <= ERROR


def test_rows_are_renormalized_after_the_changes_before(ask):
    """Several edges may be cut one after the other, and rows without changes stay as they are."""
    first, second = {**CUT, "keys": 0}, {**CUT, "keys": 2, "renormalize": True}
    both = ask({**CUT, "keys": [0, 2], "renormalize": True}, outputs=["weights"])
    assert_close(ask(first, second, outputs=["weights"]), both)
    assert_close(ask({**first, "renormalize": True}, second, outputs=["weights"]), both)
    other = {"at": "weights", "layers": 1, "queries": 2, "keys": 0, "scale": 0.5}
    ask({**first, "renormalize": True}, other)


def test_a_vector_may_be_as_long_as_float32_allows(ask):
    """And as short: squares of its numbers do not fit."""
    vector = np.linspace(-1, 1, WIDTH)
    place = {"at": "hidden", "layers": 1, "norm_match": True}
    expected = ask({**place, "add": vector.tolist()}, outputs=["hidden_states"])
    for factor in (1e-30, 1e38):
        assert_close(ask({**place, "add": (factor * vector).tolist()}, outputs=["hidden_states"]), expected)


def test_a_number_for_the_whole_width_has_the_length_of_the_vector(ask):
    place = {"at": "hidden", "layers": 1, "norm_match": True}
    expected = ask({**place, "add": [2.0] * WIDTH}, outputs=["hidden_states"])
    assert_close(ask({**place, "add": 2.0}, outputs=["hidden_states"]), expected)


def test_a_steering_vector_is_that_of_the_last_token_before_the_padding(ask):
    place = {"at": "hidden", "layers": 1, "positions": 2}
    alone = ask({**place, "add": {"input_ids": [9, 30]}}, outputs=["hidden_states"])
    padded = {"input_ids": [9, 30, 1, 1], "attention_mask": [1, 1, 0, 0]}
    assert_close(ask({**place, "add": padded}, outputs=["hidden_states"]), alone)


def test_padding_alone_has_no_mean(client):
    mean = {"at": "hidden", "layers": 1, "replace": "mean"}
    body = {"input_ids": [IDS, IDS], "attention_mask": [[1] * 5, [0] * 5], "interventions": [mean]}
    problem = client.post(ATTENTION, json=body).json()
    assert (problem["status"], problem["field"]) == (422, "interventions[0].replace"), problem


def test_places_are_found_beside_the_event_loop(generating, monkeypatch):
    """However often small requests were quick: how long it takes depends on the indices."""
    threads = set()
    check = Change.check

    def checked(change):
        threads.add(threading.current_thread())
        check(change)

    monkeypatch.setattr(Change, "check", checked)
    with serving_in_process(generating / "models", inline_ns=2_000_000) as service:
        for path, body in [
            (ATTENTION, {"input_ids": IDS, "interventions": [REMOVED]}),
            (TEXT, {"text": "the cat sat", "interventions": [REMOVED]}),
            ("/v1/lens/gpt", {"input_ids": IDS, "interventions": [REMOVED]}),
        ] * 4:
            assert httpx.post(f"http://127.0.0.1:{service.port}{path}", json=body, timeout=60).status_code == 200
    assert threads
    assert service.thread not in threads


def test_options_of_the_weights_hold_for_the_changed_run(ask):
    place = {"at": "hidden", "layers": 1, "positions": 2, "scale": 0}
    whole = ask(place, outputs=["weights"])["weights"]
    assert_close(ask(place, outputs=["weights"], layers=1, reduce_heads="mean"), {"weights": whole[[1]].mean(1)})


CUT = {"at": "weights", "layers": 1, "queries": 3, "scale": 0}
ERRORS = [
    ("a number", 3, 422, "", "expected a list of objects"),
    ("an empty list", [], 422, "", "expected 1 to 64"),
    ("no object", [3], 422, "[0]", "expected an object"),
    ("no site", [{"scale": 0}], 422, "[0].at", "missing (required); available: weights, head_output, hidden"),
    ("another site", [{"at": "mlp"}], 422, "[0].at", "expected one of"),
    ("an unknown field", [REMOVED, {**REMOVED, "layer": 1}], 400, "[1].layer", "did you mean 'layers'"),
    ("no action", [{"at": "hidden"}], 400, "[0]", "there is none"),
    ("two actions", [{**REMOVED, "replace": "mean"}], 400, "[0]", "got scale and replace"),
    ("a layer that is not there", [{**REMOVED, "layers": 2}], 422, "[0].layers", "from -2 to 1, got 2"),
    ("a position that is not there", [{**REMOVED, "positions": 9}], 422, "[0].positions", "from -5 to 4, got 9"),
    ("heads without any", [{**REMOVED, "heads": 1}], 422, "[0].heads", "not an axis of hidden"),
    ("a width that differs", [{"at": "hidden", "add": [1, 2]}], 422, "[0].add", "broadcasts to [2, 5, 32], got [2]"),
    ("NaN", [{"at": "hidden", "replace": [None] * WIDTH}], 422, "[0].replace", "null"),
    ("a text", [{"at": "hidden", "replace": "median"}], 422, "[0].replace", 'expected numbers or "mean"'),
    ("an infinite factor", [{**REMOVED, "scale": 1e300}], 422, "[0].scale", "expected a finite number"),
    ("two replacements", [{"at": "hidden", "replace": "mean"}, {"at": "hidden", "layers": 1, "replace": [0.0]}],
     422, "[1]", "replaces what interventions[0] replaces"),
    ("another length", [{"at": "hidden", "from": {"input_ids": [1, 2]}}], 422, "[0].from", "expected 5 positions"),
    ("weights to fewer keys", [{"at": "weights", "queries": 0, "add": {"input_ids": [1, 2, 3]}}], 422, "[0].add",
     "expected weights to 5 keys, got 3"),
    ("weights of fewer keys", [{"at": "weights", "queries": 0, "from": {"input_ids": [1, 2], "positions": 1}}], 422,
     "[0].from", "expected weights to 5 keys, got 2"),
    ("no input", [{"at": "hidden", "from": {}}], 422, "[0].from.text", "missing (required)"),
    ("several texts", [{"at": "hidden", "from": {"text": ["a", "b"]}}], 422, "[0].from.text", "expected one text"),
    ("ids that are no tokens", [{"at": "hidden", "from": {"input_ids": [1, 2, 3, 4, 999]}}], 422,
     "[0].from.input_ids", "999"),
    ("a vector without direction", [{"at": "hidden", "add": [0.0] * WIDTH, "norm_match": True}], 422, "[0].add",
     "has no direction"),
    ("renormalize at hidden", [{**REMOVED, "renormalize": True}], 422, "[0].renormalize", "only weights have a sum"),
    ("norm_match without add", [{**REMOVED, "norm_match": True}], 400, "[0].norm_match", "requires add"),
    ("no such token", [{"at": "hidden", "tokens": ["zebra"], "scale": 0}], 422, "[0].tokens", "not a token of"),
    ("tokens and positions", [{**REMOVED, "tokens": ["cat"]}], 400, "[0].tokens", "cannot be given together"),
    ("a list in place of a number", [REMOVED, {"at": "hidden", "layers": 0, "add": [[1.0], [[2.0]], *[[1.0]] * 3]}],
     422, "[1].add", "got a list at [1, 0]"),
    ("such a list of another run", [{"at": "hidden", "from": {"input_ids": [1, [2], 3, 4, 5]}}], 422,
     "[0].from.input_ids", "got a list at [1]"),
    ("a change of renormalized rows", [{**CUT, "keys": 0, "renormalize": True}, {**CUT, "keys": 1, "scale": 0.5}], 422,
     "[1]", "changes rows that interventions[0] renormalizes"),
    ("too many indices in all", [{**REMOVED, "positions": "0," * 700 + "0"}] * 6, 422, "[5].positions",
     "at most 4,096 indices and ranges in a request"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("interventions", "status", "field", "words"), [one[1:] for one in ERRORS], ids=[one[0] for one in ERRORS]
)
def test_an_error_names_the_field_and_its_place(client, interventions, status, field, words):
    response = client.post(ATTENTION, json={"input_ids": IDS, "interventions": interventions})
    problem = response.json()
    assert (response.status_code, problem.get("field")) == (status, f"interventions{field}"), problem
    assert words in problem["detail"]


def test_every_output_is_of_the_changed_run_or_refused(client):
    names = [output["name"] for output in client.get(ATTENTION).json()["outputs"]]
    assert {"weights", "query"} <= {*names}
    for name in [*names, "entropy", "head_statistics"]:
        problem = client.post(ATTENTION, json={"input_ids": IDS, "outputs": [name], "interventions": [REMOVED]}).json()
        if name in ("query", "key"):
            assert (problem["status"], problem["field"]) == (422, "outputs"), problem
            assert problem["detail"] == f"outputs: {name} cannot be returned together with interventions"
        else:
            assert name in problem, problem


def test_positions_without_tokens_are_not_found_by_tokens():
    """Those of the encoder of a model that takes sound."""
    one = Intervention("interventions[0]", "encoder_hidden", {}, ["cat"], scale=0)
    values = Values([one], {}, {}, None, Sites(sites={"encoder_hidden": (1, "batch", 4, 8)}), None, 0)
    with pytest.raises(Invalid, match="not accepted at encoder_hidden: its positions are not tokens") as error:
        values.place(one, {"decoder_input_ids": np.array([[3, 4]])}, {"batch": 1})
    assert error.value.field == "interventions[0].tokens"


def test_a_run_of_two_stacks_needs_both_texts(generating):
    """Of which a model with one stack has only the first."""
    folder = generating / "models" / "gpt" / "1"
    model = opened(folder)
    model.tokenizer = load_tokenizer(folder)
    ids = "decoder_input_ids"
    model.inputs[ids] = TensorSpec(ids, np.dtype(np.int64), ("batch", "m"))
    reading = InterventionReader(JsonReader(), model, Sites(), InputSource(), 1000)
    with pytest.raises(Invalid, match="missing") as error:
        reading.run({"text": "the cat"}, "")
    assert error.value.field == "text_target"
    assert {*reading.run({"text": "the cat", ids: 3}, "").tensors} == {ids}


def test_a_model_that_cannot_be_changed_says_why(client):
    response = client.post("/v1/attention/refused", json={"input_ids": IDS, "interventions": [REMOVED]})
    assert response.status_code == 422
    assert response.json()["detail"] == "interventions: model 'refused' takes no interventions: it has no layers"
    description = client.get("/v1/attention/refused").json()
    assert (description["interventions"], description["interventions_refused"]) == (None, "it has no layers")


def test_a_block_does_not_have_the_field(client, two_blocks):
    models = client.get("/openapi.json").json()["components"]["schemas"]
    assert "interventions" in models["gpt_request"]["properties"]
    assert "interventions" in models["gpt_text_request"]["properties"]
    with serving_in_process(two_blocks) as service:
        url = f"http://127.0.0.1:{service.port}/v1/attention/dot_product"
        body = {"query": [[1.0]], "key": [[1.0]], "value": [[1.0]], "interventions": [REMOVED]}
        problem = httpx.post(url, json=body).json()
    assert (problem["status"], problem["field"]) == (400, "interventions")


def test_v2_says_where_interventions_are_accepted(client):
    body = {
        "inputs": [{"name": "input_ids", "shape": [1, 5], "datatype": "INT64", "data": IDS}],
        "parameters": {"interventions": "scale"},
    }
    response = client.post("/v2/models/gpt/infer", json=body)
    assert (response.status_code, "POST /v1/attention" in response.json()["error"]) == (400, True), response.text
