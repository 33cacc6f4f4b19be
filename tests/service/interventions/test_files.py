"""Files of pictures in the runs of sweeps and interventions, in place of the tensors that they become."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.support.application import running
from tests.support.media import files, text_of
from tests.support.texts import TEXTS
from tests.support.towers import MODELS

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]  # those of transformers
PICTURE, OTHER = (files()[name] for name in ("JPEG", "320x240"))
SWEEP = {
    "intervention": {"at": "hidden", "scale": 0.5}, "over": {"layers": "all", "positions": "0:3"},
    "metric": "kl",
}  # fmt: skip


@pytest.fixture(scope="module")
def client(towers):
    with running(towers("clip") / "models") as client:
        yield client


def tensor(content):
    """What the processor of transformers makes of a file."""
    processor = MODELS["clip"].image_processor()
    return np.asarray(processor([Image.open(io.BytesIO(content)).convert("RGB")])["pixel_values"]).tolist()


def test_a_sweep_of_pictures(client):
    """Of two, so that a text is not as near to one as to all."""
    run = {"text": TEXTS[0], **SWEEP}
    from_file = client.post("/v1/sweep/mine", json={**run, "images": [*map(text_of, (PICTURE, OTHER))]})
    from_tensor = client.post("/v1/sweep/mine", json={**run, "pixel_values": tensor(PICTURE) + tensor(OTHER)})
    assert from_file.status_code == 200, from_file.text
    assert np.ptp(from_file.json()["values"]) > 0
    assert from_file.json() == from_tensor.json()


def test_another_run_with_a_picture(client):
    def changed(**given):
        change = {"at": "hidden", "layers": 1, "positions": 2, "from": {"text": TEXTS[1], "positions": 3, **given}}
        body = {"text": TEXTS[0], "images": text_of(PICTURE), "interventions": [change], "outputs": ["output"]}
        return client.post("/v1/text/mine", json=body)

    from_file, from_tensor = changed(images=[text_of(OTHER)]), changed(pixel_values=tensor(OTHER))
    assert from_file.status_code == 200, from_file.text
    assert from_file.json() == from_tensor.json()


@pytest.mark.parametrize(
    ("given", "status", "field", "detail"),
    [
        ({"images": 5}, 422, "images", "expected a file as base64, or a list of them, got 5"),
        ({"images": "AAAA"}, 415, "images", "expected a file of PNG, JPEG or WebP"),
        ({"images": [text_of(PICTURE)] * 2, "pixel_values": [[[[0.0]]]]}, 400, "pixel_values", "given, and computed"),
    ],
    ids=["a number", "another format", "twice"],
)
@pytest.mark.parametrize("place", ["interventions[0].from", ""], ids=["another run", "a sweep"])
def test_a_wrong_file_is_named_with_its_place(client, given, status, field, detail, place):
    if place:
        change = {"at": "hidden", "from": {"text": TEXTS[1], **given}}
        body = {"text": TEXTS[0], "images": text_of(PICTURE), "interventions": [change]}
        answer = client.post("/v1/text/mine", json=body)
    else:
        answer = client.post("/v1/sweep/mine", json={"text": TEXTS[0], **SWEEP, **given})
    assert answer.status_code == status, answer.text
    assert answer.json()["field"] == ".".join(filter(None, (place, field)))
    assert detail in answer.json()["detail"]


def test_files_of_too_many_runs(client):
    """Each run may have the pixels of a whole request."""

    def answer(count):
        change = {"at": "hidden", "layers": 1, "from": {"text": TEXTS[0], "images": [text_of(OTHER)], "positions": 1}}
        changes = [{**change, "positions": index} for index in range(1, 3)] * count
        body = {"text": TEXTS[0], "images": text_of(PICTURE), "interventions": changes, "outputs": ["output"]}
        return client.post("/v1/text/mine", json=body)

    many = answer(5)
    assert (many.status_code, many.json()["field"]) == (422, "interventions[8].from.images")
    assert "expected files in at most 8 runs of a request" in many.json()["detail"]
    assert answer(1).status_code == 200
