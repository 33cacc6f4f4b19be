"""Pictures for vision models: what the model is run on, and the weights over the picture's patches."""

import base64
import io
import json

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Page, expect

from export.__main__ import main
from heed_client import Client
from tests.support.families import IMAGE, Family, save
from tests.support.server import serving
from tests.viewer.numbers import expect_row
from tests.viewer.pages import drawn, fragment

HEIGHT, WIDTH, SIDE = 16, 24, 4  # px; of the model's pictures, and of a patch
ROWS, COLUMNS = HEIGHT // SIDE, WIDTH // SIDE
MEAN, STD, FACTOR = [0.5, 0.4, 0.3], [0.5, 0.5, 0.25], 1 / 200
MODELS = {  # the family, and what its preprocessor_config.json has
    "vit": (
        Family("ViTForImageClassification", {**IMAGE, "image_size": [HEIGHT, WIDTH]}),
        {"image_mean": MEAN, "image_std": STD, "rescale_factor": FACTOR},
    ),
    "grey": (
        Family("DeiTModel", {**IMAGE, "num_channels": 1, "num_hidden_layers": 1}),
        {"image_mean": [0.25], "do_rescale": False, "do_center_crop": True, "size": {"shortest_edge": 16}},
    ),
}
CANVAS = ".picture canvas"
RNG = np.random.default_rng(5)
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def vision_models(once):
    def fill(folder):
        for name, (family, preprocessor) in MODELS.items():
            save(family, folder / "saved" / name)
            (folder / "saved" / name / "preprocessor_config.json").write_text(json.dumps(preprocessor))
            main(["hf", str(folder / "saved" / name), "--repository", str(folder / "models"), "--name", name])

    return once("vision", fill) / "models"


@pytest.fixture(scope="module")
def vision(vision_models):
    """The URL of a server of a colour and a greyscale model."""
    with serving(vision_models) as client:
        yield str(client.base_url).rstrip("/")


def picture(height=HEIGHT, width=WIDTH, channels=3):
    """The same in each order of the tests: how a weight is written depends on its size."""
    return np.random.default_rng(5).integers(0, 256, (height, width, channels), np.uint8)


def png(values):
    file = io.BytesIO()
    Image.fromarray(values.squeeze()).save(file, "PNG")
    return file.getvalue()


def normalised(values):
    """pixel_values [1, 3, height, width] of values from 0 to 255 [height, width, 3]."""
    return np.moveaxis((values * FACTOR - np.array(MEAN)) / np.array(STD), -1, 0)[None].astype(np.float32)


def answered(vision, model, pixel_values):
    """The weights [layers, heads, m, n] that the server answers."""
    with Client(vision) as heed:
        return np.asarray(heed.attend(model, pixel_values=pixel_values, outputs=["weights"]).weights)[:, 0]


def drop(page: Page, name: str, content: bytes, kind: str = "image/png") -> None:
    expect(page.locator(".selection")).to_contain_text("look")  # the model is there
    transfer = page.evaluate_handle(
        """async ([name, type, text]) => {
          const transfer = new DataTransfer();
          const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
          transfer.items.add(new File([bytes], name, { type }));
          return transfer;
        }""",
        [name, kind, base64.b64encode(content).decode()],
    )
    page.locator("body").dispatch_event("drop", {"dataTransfer": transfer})


def middle(page: Page, row: int, column: int) -> dict[str, float]:
    """The middle of a patch in the canvas, in CSS pixels."""
    expect(page.locator(CANVAS)).to_be_visible()  # it has no size before the frame around it is measured
    box = page.locator(CANVAS).bounding_box()
    return {"x": (column + 0.5) * box["width"] / COLUMNS, "y": (row + 0.5) * box["height"] / ROWS}


def colours(page: Page, rows: int, columns: int) -> np.ndarray:
    """Red, green and blue [rows, columns, 3] in the middle of each cell of a grid over the canvas."""
    drawn(page)
    read = page.eval_on_selector(
        CANVAS,
        """(canvas, [rows, columns]) => {
          const { width, height } = canvas;
          const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
          copy.drawImage(canvas, 0, 0);
          const at = (place, count, length) => Math.floor((place + 0.5) * length / count);
          return Array.from({ length: rows * columns }, (_, i) => [...copy.getImageData(
            at(i % columns, columns, width), at(Math.floor(i / columns), rows, height), 1, 1).data.subarray(0, 3)]);
        }""",
        [rows, columns],
    )
    return np.array(read, float).reshape(rows, columns, 3)


def palette(page: Page, levels: np.ndarray) -> np.ndarray:
    """The colours [..., 3] of levels from 0 to 1 in viridis."""
    table = page.evaluate("import('heed/data/palettes.js').then(({ palette }) => Array.from(palette('viridis')))")
    table = np.array(table, "<u4").view(np.uint8).reshape(256, 4)[:, :3]
    return table[np.round(255 * levels).astype(int)].astype(float)


def test_a_built_in_picture_is_drawn_without_a_keystroke(open_page, vision):
    page = open_page("model=vit&opacity=0", url=vision)
    expect(page.get_by_role("tab", name="Picture")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".selection")).to_contain_text("“[CLS]” (0) looks at “")
    expect(page.get_by_role("radio", name="test picture")).to_be_checked()
    seen = colours(page, HEIGHT, WIDTH)
    assert np.abs(seen[0, 0] - [0x9F, 0xD3, 0xF5]).max() <= 1  # the sky
    assert np.abs(seen[-1, -1] - [0x6A, 0xA8, 0x4F]).max() <= 1  # the ground
    assert len(np.unique(seen.reshape(-1, 3), axis=0)) > 6


def test_the_picture_is_the_first_view_of_such_a_model_only(open_page, vision, viewer):
    page = open_page("model=vit&view=matrix", url=vision)
    expect(page.get_by_role("tab", name="Matrix")).to_have_attribute("aria-selected", "true")
    page.get_by_role("combobox", name="model", exact=True).select_option("grey")
    expect(page.get_by_role("tab", name="Picture")).to_have_attribute("aria-selected", "true")
    page = open_page("model=encoder")
    expect(page.get_by_role("tab", name="Model")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tab", name="Picture")).to_have_count(0)


def test_weights_of_a_dropped_picture_are_those_of_the_server(open_page, vision):
    values = picture()
    weights = answered(vision, "vit", normalised(values))
    page = open_page("model=vit&layer=1&head=2&palette=viridis&range=row&scale=sqrt&opacity=0", url=vision)
    drop(page, "noise.png", png(values))
    expect(page.get_by_role("region", name="input")).to_contain_text(f"noise.png, {WIDTH} × {HEIGHT} pixels")
    expect_row(page, weights[1, 2, 0])
    assert np.abs(colours(page, HEIGHT, WIDTH) - values).max() <= 1
    page.get_by_role("slider", name="opacity").fill("1")
    row = weights[1, 2, 0]
    expected = palette(page, np.sqrt(row / row.max())[1:].reshape(ROWS, COLUMNS))
    assert np.abs(colours(page, ROWS, COLUMNS) - expected).max() <= 4  # a level may be rounded up or down
    page.get_by_role("slider", name="opacity").fill("0.5")
    cells = np.repeat(np.repeat(expected, SIDE, 0), SIDE, 1)
    assert np.abs(colours(page, HEIGHT, WIDTH) - (values + cells) / 2).max() <= 4
    page.get_by_role("combobox", name="show").select_option("mean of heads")
    expect_row(page, weights[1].mean(0)[0])
    page.get_by_role("combobox", name="layer").select_option("0")
    page.locator(CANVAS).click(position=middle(page, 2, 4))
    expect_row(page, weights[0].mean(0)[1 + 2 * COLUMNS + 4])


def test_pointer_and_keys_select_patches(open_page, vision):
    values = picture()
    weights = answered(vision, "vit", normalised(values))[0, 0]
    page = open_page("model=vit", url=vision)
    drop(page, "noise.png", png(values))
    expect_row(page, weights[0])
    canvas, selection, tip = page.locator(CANVAS), page.locator(".selection"), page.locator(".picture .tip")
    canvas.hover(position=middle(page, 3, 5))
    expect(tip).to_have_text(f"3,5: {weights[0, 24]:.4f}")
    canvas.click(position=middle(page, 1, 2))
    expect(selection).to_contain_text("“1,2” (9) looks at")
    expect_row(page, weights[9])
    canvas.press("ArrowDown")
    canvas.press("ArrowRight")
    expect(selection).to_contain_text("“2,3” (16) looks at")
    for key in ("ArrowUp",) * 5 + ("ArrowLeft",) * 7:  # the last ones are past the edge
        canvas.press(key)
    expect(selection).to_contain_text("“0,0” (1) looks at")
    page.get_by_role("combobox", name="a patch").select_option("is looked at by")
    expect(selection).to_contain_text("“0,0” (1) is looked at by")
    expect_row(page, weights[:, 1])
    canvas.hover(position=middle(page, 2, 2))
    expect(tip).to_have_text(f"2,2: {weights[15, 1]:.4f}")
    assert "key=1" in fragment(page)
    canvas.press("Escape")
    expect(selection).to_contain_text("“[CLS]” (0) is looked at by")
    canvas.press("ArrowLeft")
    expect(selection).to_contain_text("“0,0” (1) is looked at by")
    page.get_by_role("button", name="[CLS]").click()
    expect_row(page, weights[:, 0])
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()


def test_a_greyscale_model_takes_a_colour_picture(open_page, vision):
    """Its preprocessor has a mean, and neither a factor nor a deviation: values stay from 0 to 255."""
    values = picture(16, 16)
    luminance = np.asarray(Image.fromarray(values).convert("L"))
    weights = answered(vision, "grey", (luminance[None, None] - 0.25).astype(np.float32))
    page = open_page("model=grey&opacity=0", url=vision)
    drop(page, "noise.png", png(values))
    expect_row(page, weights[0, 0, 0])
    assert np.abs(colours(page, 16, 16) - luminance[..., None]).max() <= 1
    page.get_by_role("button", name="[DIST]").click()
    expect_row(page, weights[0, 0, 1])


def test_another_size_and_transparent_pixels(open_page, vision):
    """The left half has a colour, the right half is transparent, which is white."""
    values = np.zeros((64, 96, 4), np.uint8)
    values[:, :48] = [200, 30, 90, 255]
    page = open_page("model=vit&opacity=0", url=vision)
    page.get_by_role("radio", name="picture file").check()
    page.get_by_label("picture", exact=True).set_input_files(
        {"name": "a.png", "mimeType": "image/png", "buffer": png(values)}
    )
    expect(page.get_by_role("region", name="input")).to_contain_text("a.png, 96 × 64 pixels, resized to 24 × 16.")
    drawn(page)
    page.wait_for_function("() => document.querySelectorAll('[aria-busy=true]').length === 0")
    seen = colours(page, HEIGHT, WIDTH)
    assert np.abs(seen[:, :10] - [200, 30, 90]).max() <= 3
    assert np.abs(seen[:, 14:] - 255).max() <= 3


def test_the_middle_of_a_picture_is_cut_out_as_the_model_wants_it(open_page, vision):
    values = picture(16, 41)
    seen = np.asarray(Image.fromarray(values).convert("L"))[:, 12:28]
    weights = answered(vision, "grey", (seen[None, None] - 0.25).astype(np.float32))
    page = open_page("model=grey&opacity=0", url=vision)
    drop(page, "wide.png", png(values))
    expect(page.get_by_role("region", name="input")).to_contain_text("cut to its middle and resized to 16 × 16.")
    expect_row(page, weights[0, 0, 0])
    assert np.abs(colours(page, 16, 16) - seen[..., None]).max() <= 1


def test_a_saved_page_has_the_picture(open_page, open_file, vision, tmp_path):
    values = picture()
    page = open_page("model=vit&opacity=0", url=vision)
    drop(page, "noise.png", png(values))
    expect(page.get_by_role("region", name="input")).to_contain_text("noise.png")
    expect_row(page, answered(vision, "vit", normalised(values))[0, 0, 0])
    path = tmp_path / "saved.html"
    for number in range(2):  # from the server's page, then from the saved one
        page.get_by_text("Take it along").click()
        with page.expect_download() as download:
            page.get_by_role("button", name="HTML page").click()
        download.value.save_as(path := path.with_name(f"saved{number}.html"))
        page = open_file(path)
        expect(page.get_by_role("tab", name="Picture")).to_have_attribute("aria-selected", "true")
        expect(page.locator(".provenance")).to_contain_text("noise.png")
        assert np.abs(colours(page, HEIGHT, WIDTH) - values).max() <= 1


def huge():
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    return file.getvalue()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'
WRONG = {
    "notes.png": (lambda: b"hello", "image/png", "is no picture that can be read"),
    "notes.txt": (lambda: b"hello", "text/plain", "is no picture that can be read"),
    "empty.png": (lambda: b"", "image/png", "is no picture that can be read"),
    "half.png": (lambda: png(picture(200, 200))[:40], "image/png", "half.png: "),
    "drawing.svg": (lambda: SVG, "image/svg+xml", "an SVG has no pixels"),
    "drawing.png": (lambda: SVG, "image/png", "is no picture that can be read"),
    "huge.png": (huge, "image/png", "has 20000 × 20000 pixels; at most 64 million are read"),
    "query.npy": (lambda: b"hello", "", "is no .npy file"),
}


def test_wrong_files_are_refused_in_one_sentence(open_page, vision):
    values = picture()
    weights = answered(vision, "vit", normalised(values))
    page = open_page("model=vit", url=vision)
    drop(page, "noise.png", png(values))
    expect_row(page, weights[0, 0, 0])
    for name, (content, kind, message) in WRONG.items():
        drop(page, name, content(), kind)
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text(f"{name}: ")
        expect(alert).to_contain_text(message)
    expect_row(page, weights[0, 0, 0])
    drop(page, "noise.png", png(values))
    expect(page.get_by_role("alert")).to_have_count(0)


def test_tensors_in_place_of_a_picture(open_page, vision, tmp_path):
    given = RNG.standard_normal((2, 3, HEIGHT, WIDTH)).astype(np.float32)
    np.save(tmp_path / "pixel_values.npy", given)
    page = open_page("model=vit", url=vision)
    page.get_by_role("radio", name="tensors", exact=True).check()
    page.get_by_label("files", exact=True).set_input_files(tmp_path / "pixel_values.npy")
    expect_row(page, answered(vision, "vit", given[:1])[0, 0, 0])
    page.get_by_role("combobox", name="row of the batch").select_option("1")
    expect_row(page, answered(vision, "vit", given[1:])[0, 0, 0])
    page.get_by_role("slider", name="opacity").fill("0")
    seen = np.moveaxis(given[1], 0, -1) * STD + MEAN
    assert np.abs(colours(page, HEIGHT, WIDTH) - np.clip(seen / FACTOR, 0, 255)).max() <= 1
    page.get_by_role("radio", name="test picture").check()
    expect(page.get_by_role("combobox", name="row of the batch")).to_have_count(0)


def test_axe_finds_no_serious_violation(open_page, vision):
    page = open_page("model=vit", url=vision)
    expect(page.locator(".selection")).to_contain_text("looks at")
    for theme, width in (("light", 1280), ("dark", 390)):
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 900})
        drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        violations = Axe().run(page).response["violations"]
        assert not [found["id"] for found in violations if found["impact"] in ("serious", "critical")]
