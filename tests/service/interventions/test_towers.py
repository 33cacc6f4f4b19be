"""Interventions in the tower for texts of a model that compares texts with images: images are not always needed."""

import numpy as np
import pytest
import torch
import transformers

from tests.support.application import running
from tests.support.media import files, text_of
from tests.support.texts import TEXTS, tokenizer

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]  # those of transformers
PICTURES = [text_of(files()[name]) for name in ("JPEG", "320x240", "WebP")]
TEXT, OTHER = TEXTS[0], "the dog ran to the street"
OF_TEXT = {"text": TEXT, "outputs": ["text_embedding"]}
REMOVED = {"at": "hidden", "layers": 1, "positions": 2, "scale": 0}
PATCHED = {"at": "hidden", "from": {"text": OTHER}}
EPS = np.finfo(np.float32).eps


@pytest.fixture(scope="module")
def folder(towers):
    return towers("clip")


@pytest.fixture(scope="module")
def client(folder):
    with running(folder / "models") as client:
        yield client


@pytest.fixture
def post(client):
    """The answer of the API ``name``."""

    def answer(name, body):
        response = client.post(f"/v1/{name}/mine", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    return answer


def cosine_distance(first, second):
    return 1 - np.dot(first, second) / np.linalg.norm(first) / np.linalg.norm(second)


def test_a_text_without_images(folder, post):
    """As in transformers in float64, with a hook that removes one position."""
    model = transformers.CLIPModel.from_pretrained(folder / "model", attn_implementation="eager").eval().double()

    def remove(_module, given):
        hidden = given[0].clone()
        hidden[:, REMOVED["positions"]] = 0
        return hidden, *given[1:]

    model.text_model.encoder.layers[REMOVED["layers"]].register_forward_pre_hook(remove)
    with torch.no_grad():
        expected = model.get_text_features(**tokenizer()(TEXT, return_tensors="pt", return_token_type_ids=False))
    vector = getattr(expected, "pooler_output", expected)[0].numpy()
    changed = post("text", {**OF_TEXT, "interventions": [REMOVED]})["text_embedding"]
    np.testing.assert_allclose(changed, vector / np.linalg.norm(vector), rtol=0, atol=32 * EPS)


def test_another_run_needs_a_text_alone(post):
    alone = {**PATCHED, "layers": 1}
    beside = {**alone, "from": {"text": OTHER, "images": PICTURES[0]}}
    vectors = [post("text", {**OF_TEXT, "interventions": [change]})["text_embedding"] for change in (alone, beside)]
    np.testing.assert_allclose(vectors[0], vectors[1], rtol=0, atol=8 * EPS)
    assert np.abs(np.subtract(vectors[0], post("text", OF_TEXT)["text_embedding"])).max() > 1e-3


def test_a_sweep_measures_the_embedding_of_the_text(post):
    over = {"layers": "all", "positions": [1, -1]}
    swept = post("sweep", {"text": TEXT, "intervention": PATCHED, "over": over})
    unchanged = post("text", OF_TEXT)["text_embedding"]
    assert swept["metric"] == "cosine_distance"
    for (layer, place), value in np.ndenumerate(swept["values"]):
        change = {**PATCHED, "layers": layer, "positions": swept["positions"][place]}
        change["from"] = {"text": OTHER, "positions": change["positions"]}
        changed = post("text", {**OF_TEXT, "interventions": [change]})["text_embedding"]
        assert value == pytest.approx(cosine_distance(changed, unchanged), abs=1e-6)
    other = post("text", {**OF_TEXT, "text": OTHER})["text_embedding"]
    assert swept["source"] == pytest.approx(cosine_distance(other, unchanged), abs=1e-6)


@pytest.mark.parametrize(
    ("metric", "images", "of_source", "has_source"),
    [
        ({"logit_difference": [2, 0]}, PICTURES, {}, True),
        ({"logit_difference": [2, 0]}, PICTURES, {"images": PICTURES[:2]}, False),
        ("kl", PICTURES, {"images": PICTURES[:1]}, False),
        ("kl", PICTURES[:2], {"images": PICTURES}, False),
    ],
    ids=["those of the sweep", "another number", "one", "more"],
)
def test_scores_are_those_of_images(post, metric, images, of_source, has_source):
    """The other run has the images of the sweep, unless it has its own."""
    change = {"at": "hidden", "from": {"text": OTHER, **of_source}}
    body = {"text": TEXT, "images": images, "intervention": change, "over": {"layers": "all"}, "metric": metric}
    swept = post("sweep", body)
    assert np.isfinite(swept["values"]).all()
    assert (swept["source"] is not None) == has_source
    if has_source:
        logits = post("text", {"text": OTHER, "images": images, "outputs": ["output"]})["output"]
        assert swept["source"] == pytest.approx(logits[2] - logits[0], abs=1e-5)


@pytest.mark.parametrize(
    ("api", "body", "status", "detail"),
    [
        (
            "attention",
            {"images": PICTURES[0], "outputs": ["image_embedding"], "interventions": [REMOVED]},
            422,
            "input_ids: missing (required for interventions)",
        ),
        (
            "sweep",
            {"text": TEXT, "intervention": REMOVED, "over": {}, "metric": "kl"},
            422,
            "pixel_values: missing (required)",
        ),
        (
            "sweep",
            {"text": TEXT, "images": PICTURES, "intervention": REMOVED, "over": {}, "metric": {"probability": 3}},
            422,
            "metric: expected indices from 0 to 2, got 3",
        ),
    ],
    ids=["images alone", "scores without images", "an index of no image"],
)
def test_a_wrong_request_is_refused(client, api, body, status, detail):
    response = client.post(f"/v1/{api}/mine", json=body)
    assert (response.status_code, response.json()["detail"]) == (status, detail)


def test_a_difference_of_scores_needs_images(client, post):
    """Of which there are as many scores: an index beyond them is an error before the run."""
    body = {"text": TEXT, "outputs": ["text_embedding"], "interventions": [REMOVED]}
    answer = post("text", {**body, "images": PICTURES, "difference": {"probability": 2}})["difference"]
    assert answer["unchanged"] != answer["changed"]
    for more, field in (({}, "pixel_values"), ({"images": PICTURES[:2]}, "difference")):
        response = client.post("/v1/text/mine", json={**body, **more, "difference": {"probability": 2}})
        assert (response.status_code, response.json()["field"]) == (422, field)
