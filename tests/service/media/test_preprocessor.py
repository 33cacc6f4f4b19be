"""``preprocessor`` in the description of a vision model."""

import json
from types import SimpleNamespace

import pytest

from service.media.feature import Pictures
from service.media.preprocessor import Preprocessor, preprocessor, read_preprocessor
from service.native.preprocessor_schema import describe_preprocessor

MEAN, STD = [0.5, 0.4, 0.3], [0.25, 0.5, 1]
CONFIG = {"do_rescale": True, "rescale_factor": 0.5, "do_normalize": True, "image_mean": MEAN, "image_std": STD}
FILES = {
    "complete": (CONFIG, (0.5, tuple(MEAN), tuple(STD))),
    "no factor": ({"image_mean": MEAN, "image_std": STD}, (1 / 255, tuple(MEAN), tuple(STD))),
    "no rescaling": (CONFIG | {"do_rescale": False}, (None, tuple(MEAN), tuple(STD))),
    "no normalization": (CONFIG | {"do_normalize": False}, (0.5, None, None)),
    "wrong types": ({"rescale_factor": "1", "image_mean": 0.5, "image_std": [None]}, (None, None, None)),
    "nothing": ({}, (1 / 255, None, None)),
    "no object": ([], None),
    "no JSON": (b"{", None),
    "no UTF-8": (b"\xff", None),
    "no file": (None, None),
}


def loaded(folder):
    content = read_preprocessor(folder)
    return None if content is None else preprocessor(content)


@pytest.mark.parametrize(("content", "expected"), FILES.values(), ids=FILES)
def test_the_file(content, expected, tmp_path):
    if content is not None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        (tmp_path / "preprocessor_config.json").write_bytes(body)
    assert loaded(tmp_path) == (None if expected is None else Preprocessor(None, *expected))


def test_the_file_of_a_processor_of_texts_too(tmp_path):
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": CONFIG, "processor_class": "CLIP"}))
    assert loaded(tmp_path) == Preprocessor(None, 0.5, tuple(MEAN), tuple(STD))


SIZES = [
    (224, (224,)),
    ({"shortest_edge": 256}, (256,)),
    ({"height": 256, "width": 192}, (256, 192)),
    *((size, None) for size in ({"shortest_edge": "256"}, {"height": 256}, 0, None)),
]


@pytest.mark.parametrize(("size", "expected"), SIZES)
def test_what_is_cut_out(size, expected, tmp_path):
    for more, resize in (
        ({"do_center_crop": True}, expected),
        ({"do_center_crop": True, "do_resize": False}, None),
        ({"do_center_crop": False}, None),
        ({}, None),
    ):
        content = {"size": size, "crop_size": {"height": 224, "width": 224}, **more}
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
        assert loaded(tmp_path).resize == resize


def described(positions, config, pixels=("batch", 3, 16, 24)):
    return describe_preprocessor(
        SimpleNamespace(
            preprocessor=Preprocessor((20,), 0.5, (0.5,), (0.25,)),
            spec=SimpleNamespace(config=config),
            inputs={"pixel_values": SimpleNamespace(shape=pixels)},
            outputs={"weights": SimpleNamespace(shape=(2, "batch", 4, positions, positions))},
        )
    )


@pytest.mark.parametrize(
    ("positions", "config", "patch_size", "special_tokens"),
    [
        (25, {"patch_size": 4}, 4, 1),
        (26, {"patch_size": 4}, 4, 2),
        (24, {"patch_size": [4, 4]}, 4, 0),
        (29, {"patch_size": 4, "num_register_tokens": 4}, 4, 5),
        (16, {"patch_size": 5}, 5, None),  # 3 x 4 patches, and 4 positions that nothing explains
        (20, {"patch_size": 4}, 4, None),
        (25, {"patch_size": [4, 2]}, None, None),
        (25, {}, None, None),
    ],
)
def test_patches_and_positions_before_them(positions, config, patch_size, special_tokens):
    images = described(positions, config)
    assert (images.channels, images.height, images.width, images.resize) == (3, 16, 24, (20,))
    assert (images.patch_size, images.special_tokens) == (patch_size, special_tokens)


def test_images_of_any_size_are_not_described():
    assert described(25, {}, ("batch", 3, "height", "width")) is None


def test_a_block_without_images(client):
    assert client.get("/v1/attention/encoder").json()["preprocessor"] is None


def test_a_model_of_videos_takes_no_pictures():
    with pytest.raises(ValueError, match="its pixel_values are several pictures each"):
        Pictures().processor({}, SimpleNamespace(), (16, 3, 8, 8))
