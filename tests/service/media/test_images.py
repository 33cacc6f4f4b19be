"""The field ``images`` of the native API: files of pictures in place of ``pixel_values``."""

import asyncio
import base64
import json
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from service.engine import engine
from service.media import images
from service.media.image_processor import image_processor
from service.media.picture import Picture
from service.media.preprocessor import preprocessor
from service.media.source import MAX_COUNT
from tests.support.application import running
from tests.support.media import file_of, noise, text_of, write_picture_model

SIDE = 24
INLINE_NS = 2_000_000
VIT = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": SIDE, "width": SIDE},
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.5, 0.25],
}
MODELS = {
    "colour": (VIT, 3),
    "grey": (VIT | {"image_mean": [0.5], "image_std": [0.25]}, 1),
    "plain": (None, 3),
    "detr": (VIT | {"image_processor_type": "DetrImageProcessor"}, 3),
    "yolos": (VIT | {"image_processor_type": "YolosImageProcessor"}, 3),
    "other_size": (VIT | {"size": {"height": 32, "width": 30}}, 3),
    "cropped": (
        VIT | {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": SIDE}, "crop_size": SIDE},
        3,
    ),
    "any_size": (VIT | {"size": {"shortest_edge": SIDE}}, 3),
}
PNG = file_of(noise(61, 47))
PATH = "/v1/attention/colour"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for name, (processor, channels) in MODELS.items():
        write_picture_model(folder / name / "1", SIDE, SIDE, processor, channels)
    with running(folder) as client:
        yield client


def expected(*contents: bytes, channels: int = 3) -> np.ndarray:
    """The ``pixel_values`` of these files."""
    processor, _ = MODELS["colour" if channels == 3 else "grey"]
    own = image_processor(processor, preprocessor(processor), channels, SIDE, SIDE)
    return np.stack([own(Picture(content, "images").unpacked(channels)) for content in contents])


def seen(response) -> np.ndarray:
    """The ``pixel_values`` that a model was run on."""
    assert response.status_code == 200, response.text
    return np.array(response.json()["output"], np.float32)


def test_one_picture_is_a_request_without_a_batch(client):
    np.testing.assert_array_equal(seen(client.post(PATH, json={"images": text_of(PNG)})), expected(PNG)[0])


def test_a_list_of_pictures_is_a_batch(client):
    files = [PNG, file_of(noise(30, 90), "JPEG"), file_of(noise(5, 5), "WEBP")]
    plain = [text_of(content) for content in files]
    for sent in (plain, [{"base64": text} for text in plain], [plain[0], *({"base64": text} for text in plain[1:])]):
        np.testing.assert_array_equal(seen(client.post(PATH, json={"images": sent})), expected(*files))


@pytest.mark.parametrize("start", ["data:image/png;base64,", "DATA:IMAGE/PNG;BASE64,"])
def test_a_data_url(client, start):
    text = f"{start}{text_of(PNG)}"
    for body in (json.dumps({"images": text}), json.dumps({"images": [text]}).replace("/", "\\/")):
        response = client.post(PATH, content=body, headers={"Content-Type": "application/json"})
        np.testing.assert_array_equal(seen(response).reshape(3, SIDE, SIDE), expected(PNG)[0])


def test_line_breaks_are_ignored(client):
    for content in (file_of(noise(9, 9)), file_of(noise(200, 150))):
        lines = base64.encodebytes(content).decode()
        assert "\n" in lines
        np.testing.assert_array_equal(seen(client.post(PATH, json={"images": lines})), expected(content)[0])


def test_a_grey_picture_of_a_model_of_one_channel(client):
    response = client.post("/v1/attention/grey", json={"images": text_of(PNG)})
    np.testing.assert_array_equal(seen(response).reshape(1, SIDE, SIDE), expected(PNG, channels=1)[0])


def test_pictures_do_not_hold_up_the_event_loop(tmp_path, monkeypatch):
    on_event_loop = []
    unpacked = Picture.unpacked

    def noted(self, channels):
        try:
            on_event_loop.append(asyncio.get_running_loop() is not None)
        except RuntimeError:
            on_event_loop.append(False)
        return unpacked(self, channels)

    write_picture_model(tmp_path / "colour" / "1", SIDE, SIDE, VIT)
    monkeypatch.setattr(Picture, "unpacked", noted)
    monkeypatch.setattr(engine, "INLINE_NS", INLINE_NS)
    with running(tmp_path) as client:
        for _ in range(20):
            assert client.post(PATH, json={"images": text_of(PNG)}).status_code == 200
    assert on_event_loop == [False] * 20


REFUSED_MODELS = {
    "plain": "has no preprocessor_config.json",
    "detr": "its image processor makes a pixel_mask, which the graph lacks",
    "yolos": "cannot take image files: its image processor, YolosImageProcessor, is not supported; send pixel_values",
    "other_size": "makes 32 x 30 pixels; the model takes 24 x 24",
    "any_size": "makes pictures of any size",
}


@pytest.mark.parametrize(("model", "reason"), REFUSED_MODELS.items(), ids=REFUSED_MODELS)
def test_a_model_without_a_known_image_processor(client, model, reason):
    response = client.post(f"/v1/attention/{model}", json={"images": text_of(PNG)})
    assert (response.status_code, response.json()["field"]) == (422, "images")
    assert reason in response.json()["detail"]
    assert response.json()["detail"].endswith("; send pixel_values")


def png_of(width: int, height: int) -> bytes:
    """A PNG that says it has this size; its pixels are missing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    body = struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    data = b"IDAT" + zlib.compress(b"\0")
    rest = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return b"\x89PNG\r\n\x1a\n" + body + rest


JPEG = file_of(noise(200, 150), "JPEG", progressive=True)
SCAN = JPEG[JPEG.index(b"\xff\xda") : -2]
REFUSED = {
    "empty": ("", 422, "images", "empty"),
    "no base64": ("===", 422, "images", "invalid base64"),
    "no picture": (text_of(b"hello"), 415, "images", "expected a file of PNG, JPEG or WebP"),
    "a GIF": (text_of(file_of(noise(9, 9).convert("P"), "GIF")), 415, "images", "expected a file of PNG"),
    "a BMP": ([text_of(PNG), text_of(file_of(noise(9, 9), "BMP"))], 415, "images[1]", "expected a file of PNG"),
    "half a PNG": (text_of(PNG[: len(PNG) // 2]), 422, "images", "the file is truncated or damaged"),
    "the beginning of a PNG": (text_of(PNG[:20]), 422, "images", "the file is truncated or damaged"),
    "the signature of a PNG": (text_of(PNG[:8]), 422, "images", "the file is truncated or damaged"),
    "the signature of a JPEG": (text_of(JPEG[:4]), 422, "images", "the file is truncated or damaged"),
    "a PNG of no width": (text_of(png_of(0, 100)), 422, "images", "the file is truncated or damaged"),
    "half a JPEG": (text_of(JPEG[: len(JPEG) // 2]), 422, "images", "the file is truncated or damaged"),
    "half a WebP": (text_of(file_of(noise(99, 99), "WEBP")[:900]), 422, "images", "the file is truncated or damaged"),
    "no pixels": (text_of(png_of(100, 100)), 422, "images", "the file is truncated or damaged"),
    "a long side": (text_of(png_of(10**5, 10**5)), 413, "images", "has 10,000,000,576 pixels, before"),
    "many scans": (text_of(JPEG[:-2] + SCAN * 30 + JPEG[-2:]), 422, "images", "a JPEG of more than 100 scans"),
    "a URL": ("https://example.com/cat.png", 422, "images", "expected a file as base64; URLs are not loaded"),
    "a file": ("file:///etc/passwd", 422, "images", "expected a file as base64; URLs are not loaded"),
    "a data URL of text": ("data:image/png,x", 422, "images", "expected a data URL with base64"),
    "a number": (3, 422, "images", "expected a file as base64, or a list of them, got 3"),
    "an object": ({"base64": "x"}, 422, "images", "expected a file as base64, or a list of them, got an object"),
    "a list of numbers": ([[1]], 422, "images[0]", "expected a file as base64, got a list"),
    "another object": ([{"url": "x"}], 422, "images[0]", "expected a file as base64, got an object"),
    "none": ([], 422, "images", f"expected 1 to {MAX_COUNT} files, got 0"),
    "too many": (["x"] * (MAX_COUNT + 1), 422, "images", f"expected 1 to {MAX_COUNT} files, got 257"),
}


@pytest.mark.parametrize(("images", "status", "field", "reason"), REFUSED.values(), ids=REFUSED)
def test_files_that_are_refused(client, images, status, field, reason):
    response = client.post(PATH, json={"images": images})
    problem = response.json()
    assert (response.status_code, problem["field"]) == (status, field), problem
    assert reason in problem["detail"]


def test_a_narrow_picture_that_would_become_huge(client):
    """Where the shortest side has a fixed length, a picture of 1 x 4 million is 24 x 96 million."""
    response = client.post("/v1/attention/cropped", json={"images": text_of(png_of(1, 4_000_000))})
    assert (response.status_code, response.json()["field"]) == (413, "images")
    assert "has 2,308,000,000 pixels, before and after it is resized" in response.json()["detail"]


def test_pictures_that_have_too_many_pixels_together(client, monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 5_000)
    response = client.post(PATH, json={"images": [text_of(PNG), text_of(PNG)]})
    assert (response.status_code, response.json()["field"]) == (413, "images[1]")


def test_the_error_of_a_long_list_says_how_to_send_it(client):
    file = text_of(b"\x89PNG\r\n\x1a\n" + bytes(3 << 20))
    response = client.post(PATH, json={"images": [file, file]})
    assert response.status_code == 413
    assert 'and files in a list as {"base64": "..."}' in response.json()["detail"]
    response = client.post(PATH, json={"images": [{"base64": file}, {"base64": file}]})
    assert response.json()["field"] == "images[0]"  # it is no picture


def test_pictures_beside_pixel_values(client):
    body = {"images": text_of(PNG), "pixel_values": expected(PNG)[0].tolist()}
    response = client.post(PATH, json=body)
    assert (response.status_code, response.json()["field"]) == (400, "pixel_values")


@pytest.mark.parametrize(("width", "height"), [(1100, 700), (1, 900), (300_000, 2)])
def test_a_large_picture_with_transparency_is_on_white(width, height):
    """It is put there some rows at a time."""
    picture = noise(width, height, "RGBA")
    white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    found = Picture(file_of(picture), "images").unpacked(3)
    np.testing.assert_array_equal(found, Image.alpha_composite(white, picture).convert("RGB"))


def test_a_colour_that_is_transparent_counts_as_transparency():
    transparent = file_of(noise(100, 100, "RGB"), transparency=(0, 0, 0))
    assert Picture(transparent, "images").memory == Picture(file_of(noise(100, 100, "RGBA")), "images").memory


def test_pictures_that_need_more_memory_than_there_is(tmp_path):
    write_picture_model(tmp_path / "colour" / "1", SIDE, SIDE, VIT)
    with running(tmp_path, memory_budget_bytes=8 << 20) as client:
        response = client.post(PATH, json={"images": text_of(file_of(Image.new("RGB", (2000, 2000))))})
        assert (response.status_code, response.json()["code"]) == (413, "too_much_memory")
        assert client.post(PATH, json={"images": text_of(PNG)}).status_code == 200


def test_a_server_without_pillow(tmp_path, monkeypatch):
    write_picture_model(tmp_path / "colour" / "1", SIDE, SIDE, VIT)
    monkeypatch.delitem(sys.modules, "service.media.image_processor")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with running(tmp_path) as client:
        response = client.post(PATH, json={"images": text_of(PNG)})
    assert "this server lacks PIL (pip install 'heed-attention[media]')" in response.json()["detail"]


def test_v2_takes_none(client):
    inputs = [{"name": "pixel_values", "datatype": "FP32", "shape": [1, 3, SIDE, SIDE], "data": [0] * 3 * SIDE**2}]
    body = {"inputs": inputs, "parameters": {"images": "x"}}
    response = client.post("/v2/models/colour/infer", json=body)
    assert response.status_code == 400
    assert "not accepted in V2" in response.json()["error"]


def test_the_document_has_the_field(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    with_images = [name for name, schema in schemas.items() if "images" in schema.get("properties", {})]
    assert len(with_images) >= len(MODELS)
    required = {name: schemas[f"{name}_request"].get("required", []) for name in ("colour", "detr")}
    assert required == {"colour": [], "detr": ["pixel_values"]}  # of which the second takes no files


def test_null_is_no_tensor_beside_a_file(client):
    """A client that is generated from the document may send it."""
    sent = {"images": text_of(PNG)}
    answer = client.post(PATH, json={**sent, "pixel_values": None})
    assert answer.status_code == 200, answer.text
    assert answer.json() == client.post(PATH, json=sent).json()
    neither = client.post(PATH, json={"pixel_values": None})
    assert (neither.status_code, neither.json()["detail"]) == (422, "pixel_values: missing (required)")
