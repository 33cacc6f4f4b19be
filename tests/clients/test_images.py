"""Pictures in the client and in ``heed run``."""

import json

import numpy as np
import pytest
from PIL import Image

from heed_client import BadRequest, Client
from tests.support.media import file_of, noise, write_picture_model

SIDE = 24
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor", "size": {"height": SIDE, "width": SIDE}, "resample": 0,
    "do_rescale": False, "do_normalize": False,
}  # fmt: skip
PICTURE = noise(SIDE, SIDE)
PIXELS = np.asarray(PICTURE).transpose(2, 0, 1).astype(np.float32)
WAYS = {
    "bytes": lambda path: path.read_bytes(),
    "path": lambda path: path,
    "text": str,
    "Pillow": Image.open,
    "array": lambda path: np.asarray(Image.open(path)),
}


@pytest.fixture(scope="session")
def url(tmp_path_factory, shared_server):
    folder = tmp_path_factory.mktemp("picture model")
    write_picture_model(folder / "seen" / "1", SIDE, SIDE, PROCESSOR)
    return shared_server(folder, "--workers", "1").url


@pytest.fixture
def path(tmp_path):
    (file := tmp_path / "a picture.png").write_bytes(file_of(PICTURE))
    return file


@pytest.mark.parametrize("way", WAYS)
def test_a_picture(url, path, way):
    with Client(url) as heed:
        np.testing.assert_array_equal(heed.attend("seen", images=WAYS[way](path)).output, PIXELS)
        several = heed.attend("seen", images=[WAYS[way](path), PICTURE], outputs="output").output
    np.testing.assert_array_equal(several, np.stack([PIXELS, PIXELS]))


WRONG = {
    "no file": ("nothing.png", ValueError, "images: nothing.png: No such file"),
    "floats": (np.zeros((4, 4, 3)), TypeError, r"images: expected a path, .*; got float64 \[4, 4, 3\]"),
    "a vector": (np.zeros(4, np.uint8), TypeError, "images: expected a path"),
    "no picture": (b"hello", BadRequest, "images: expected a file of PNG, JPEG or WebP"),
}


@pytest.mark.parametrize(("images", "error", "reason"), WRONG.values(), ids=WRONG)
def test_what_is_no_picture(url, images, error, reason):
    with Client(url) as heed, pytest.raises(error, match=reason):
        heed.attend("seen", images=images)


def test_the_command(url, path, attend, monkeypatch):
    monkeypatch.setenv("HEED_URL", url)
    printed = json.loads(attend("seen", "--image", str(path), "--outputs", "output"))
    np.testing.assert_array_equal(np.array(printed["output"], np.float32), PIXELS)
    printed = json.loads(attend("seen", "--image", str(path), "--image", str(path), "--outputs", "output"))
    assert np.shape(printed["output"]) == (2, 3, SIDE, SIDE)


def test_the_command_names_its_flag(url, tmp_path, command, monkeypatch):
    monkeypatch.setenv("HEED_URL", url)
    (file := tmp_path / "text.png").write_bytes(b"no picture")
    status, _, wrong = command("run", "seen", "--image", str(file))
    assert status == 2
    assert wrong.startswith("heed run: --image: expected a file of PNG, JPEG or WebP")
