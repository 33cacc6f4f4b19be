"""Pictures for vision models: what the model is run on, and the weights over the picture's patches."""

import base64
import io
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image
from playwright.sync_api import Page, expect

from export.__main__ import main
from heed_client import Client
from tests.support.families import IMAGE, Family, save
from tests.support.waiting import until
from tests.viewer.pages import choose, drag, drawn, expect_row, fragment, percent, pixels, take, violations

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
    "wide": (
        Family("ViTForImageClassification", {**IMAGE, "image_size": [64, 96], "patch_size": 16}),
        {"image_mean": MEAN, "image_std": STD},
    ),
    "middle": (
        Family("DeiTModel", {**IMAGE, "image_size": 64, "patch_size": 16, "num_channels": 1, "num_hidden_layers": 1}),
        {"image_mean": [0.25], "do_center_crop": True, "size": {"shortest_edge": 64}},
    ),
}
CANVAS = ".picture > canvas"
GROWTH = 0.7  # of the opacity with a level
VALUES = np.random.default_rng(5).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)  # of a picture
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def vision(once, shared_server):
    """The URL of a server of a colour and a greyscale model."""

    def fill(folder):
        for name, (family, preprocessor) in MODELS.items():
            save(family, folder / "saved" / name)
            (folder / "saved" / name / "preprocessor_config.json").write_text(json.dumps(preprocessor))
            main(["hf", str(folder / "saved" / name), "--repository", str(folder / "models"), "--name", name])

    return shared_server(once("vision", fill) / "models").url


@pytest.fixture
def open_model(open_page, vision):
    """Opens a model, on a picture if ``values`` are given; the page is there when the model has answered."""

    def opened(settings: str, values: np.ndarray | None = None, name: str = "noise.png") -> Page:
        page = open_page(f"model={settings}", url=vision)
        expect(page.locator(".selection")).to_contain_text(re.compile("look|Point"))
        if values is not None:
            drag(page, ["drop"], name, png(values), "image/png")
            expect(page.get_by_role("region", name="input")).to_contain_text(name)
        return page

    return opened


def weights_of(vision: str, model: str, pixel_values: np.ndarray) -> np.ndarray:
    """The weights [layers, heads, m, n] that the server answers."""
    with Client(vision) as heed:
        return np.asarray(heed.attend(model, pixel_values=pixel_values, outputs=["weights"]).weights)[:, 0]


def png(values):
    Image.fromarray(values.squeeze()).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def normalised(values):
    """pixel_values [1, 3, height, width] of values from 0 to 255 [height, width, 3]."""
    return np.moveaxis((values * FACTOR - np.array(MEAN)) / np.array(STD), -1, 0)[None].astype(np.float32)


def middle(page: Page, row: int, column: int) -> dict[str, float]:
    """The middle of a patch in the canvas, in CSS pixels."""
    expect(page.locator(CANVAS)).to_be_visible()  # it has no size before the frame around it is measured
    box = page.locator(CANVAS).bounding_box()
    return {"x": (column + 0.5) * box["width"] / COLUMNS, "y": (row + 0.5) * box["height"] / ROWS}


def colours(page: Page, rows: int, columns: int) -> np.ndarray:
    """Red, green and blue [rows, columns, 3] in the middle of each cell of a grid over the canvas."""
    canvas = pixels(page, CANVAS)[:, :, :3].astype(float)
    height, width, _ = canvas.shape
    y, x = np.ogrid[:rows, :columns]
    return canvas[(2 * y + 1) * height // (2 * rows), (2 * x + 1) * width // (2 * columns)]


def edge(page: Page, patch: int) -> np.ndarray:
    """Red, green and blue at the left edge of a patch, where an outline is."""
    canvas = pixels(page, CANVAS)[:, :, :3].astype(float)
    side = canvas.shape[0] / ROWS
    return canvas[int((patch // COLUMNS + 0.5) * side), round(patch % COLUMNS * side) + 2]


def test_a_built_in_picture_is_the_first_view_of_a_vision_model_only(open_model, open_page):
    page = open_model("vit&opacity=0")
    expect(page.get_by_role("tab", name="Picture")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".selection")).to_contain_text("“[CLS]” (0) looks at row")
    expect(page.get_by_role("radio", name="test picture")).to_be_checked()
    panel = page.get_by_role("region", name="input")
    expect(panel.get_by_role("heading")).to_have_text("vit")  # its class is among the options
    expect(panel.locator(".note", has_text="ViTForImageClassification (vit): ")).to_have_count(1)
    seen = colours(page, HEIGHT, WIDTH)
    assert np.abs(seen[0, 0] - [0x9F, 0xD3, 0xF5]).max() <= 1  # the sky
    assert np.abs(seen[-1, -1] - [0x6A, 0xA8, 0x4F]).max() <= 1  # the ground
    assert len(np.unique(seen.reshape(-1, 3), axis=0)) > 6
    for theme, width in (("light", 1280), ("dark", 390)):
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 900})
        drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not violations(page)
    page.get_by_role("tab", name="Matrix").click()
    page.get_by_role("combobox", name="model", exact=True).select_option("grey")
    expect(page.get_by_role("tab", name="Picture")).to_have_attribute("aria-selected", "true")
    page = open_model("vit&view=matrix")
    expect(page.get_by_role("tab", name="Matrix")).to_have_attribute("aria-selected", "true")
    page = open_page("model=encoder")
    expect(page.get_by_role("tab", name="Model")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tab", name="Picture")).to_have_count(0)


def test_weights_of_a_dropped_picture_are_those_of_the_server(open_model, vision):
    weights = weights_of(vision, "vit", normalised(VALUES))
    page = open_model("vit&layer=1&head=2&palette=viridis&scale=sqrt&opacity=0", VALUES)
    expect(page.get_by_role("region", name="input")).to_contain_text(f"noise.png, {WIDTH} × {HEIGHT} pixels")
    expect_row(page, weights[1, 2, 0])
    assert np.abs(colours(page, HEIGHT, WIDTH) - VALUES).max() <= 1
    page.get_by_role("slider", name="colour strength").fill("1")
    row = weights[1, 2, 0]
    levels = np.sqrt(row[1:] / row[1:].max()).reshape(ROWS, COLUMNS)
    ends = page.locator(".legend small").all_inner_texts()
    assert (ends[0], ends[-1]) == ("0", percent(row[1:].max()))
    each = lambda values: np.repeat(np.repeat(values, SIDE, 0), SIDE, 1)  # noqa: E731  of a patch's pixels
    over, shares = each(255 * colormaps["viridis"](levels)[..., :3]), each(levels**GROWTH)[..., None]
    grey = VALUES @ [0.3, 0.59, 0.11]  # the luminance of CSS's blend modes
    for opacity in (1, 0.5):  # where the weight is low, the picture is seen, with less colour
        page.get_by_role("slider", name="colour strength").fill(str(opacity))
        faded = VALUES + 0.75 * opacity * (grey[..., None] - VALUES)
        expected = faded + opacity * shares * (over - faded)
        assert np.abs(colours(page, HEIGHT, WIDTH) - expected).max() <= 4  # a level may be rounded up or down
    page.get_by_role("combobox", name="show").select_option("mean of heads")
    expect_row(page, weights[1].mean(0)[0])
    page.get_by_role("combobox", name="layer").select_option("0")
    page.locator(CANVAS).click(position=middle(page, 2, 4))
    expect_row(page, weights[0].mean(0)[1 + 2 * COLUMNS + 4])


def test_pointer_and_keys_select_patches(open_model, vision):
    weights = weights_of(vision, "vit", normalised(VALUES))[0, 0]
    page = open_model("vit&head=0", VALUES)
    expect_row(page, weights[0])
    canvas, selection, tip = page.locator(CANVAS), page.locator(".selection"), page.locator(".picture .tip")
    headline = page.locator(".headline")
    canvas.hover(position=middle(page, 3, 5))
    expect(tip).to_have_text(f"“[CLS]” → row 3, column 5: {percent(weights[0, 24])}")
    expect(headline).to_contain_text("row 3, column 5 looks most at")
    expect(headline.locator("b")).to_have_text(percent(weights[24, 1:].max()))
    expect_row(page, weights[0])  # it is not pinned
    expect(selection).to_have_css("opacity", "0.4")  # as the headline is about another patch
    for said in (
        "row 1, column 2 looks at",
        "“[CLS]” (0) looks at",
        "row 1, column 2 looks at",
    ):  # pinned, unpinned, pinned
        canvas.click(position=middle(page, 1, 2))
        expect(selection).to_contain_text(said)
    expect_row(page, weights[9])
    canvas.hover(position=middle(page, 3, 5))
    expect(tip).to_have_text(f"row 1, column 2 → row 3, column 5: {percent(weights[9, 24])}")
    expect(headline).to_contain_text("row 1, column 2 looks most at")
    canvas.press("ArrowDown")
    canvas.press("ArrowRight")
    expect(selection).to_contain_text("row 2, column 3 looks at")
    for key in ("ArrowUp",) * 5 + ("ArrowLeft",) * 7:  # the last ones are past the edge
        canvas.press(key)
    expect(selection).to_contain_text("row 0, column 0 looks at")
    page.get_by_role("combobox", name="selected patch or token").select_option("is looked at by")
    expect(selection).to_contain_text("row 0, column 0 is looked at by")
    expect_row(page, weights[:, 1])
    canvas.hover(position=middle(page, 2, 2))
    expect(tip).to_have_text(f"row 2, column 2 → row 0, column 0: {percent(weights[15, 1])}")
    assert "key=1" in fragment(page)
    canvas.press("Escape")
    expect(selection).to_contain_text("“[CLS]” (0) is looked at by")
    canvas.press("ArrowLeft")
    expect(selection).to_contain_text("row 0, column 0 is looked at by")
    page.get_by_role("button", name="[CLS]").click()
    expect_row(page, weights[:, 0])
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()


def test_the_first_sentence_names_the_patch_and_each_head_has_its_picture(open_model, vision):
    weights = weights_of(vision, "vit", normalised(VALUES))[0]
    page = open_model("vit&head=0&opacity=1", VALUES)
    expect_row(page, weights[0, 0])
    for head in (0, 2):
        patch = int(weights[head, 0, 1:].argmax())
        said = f"“[CLS]” looks most at row {patch // COLUMNS}, column {patch % COLUMNS}"
        expect(page.locator(".headline")).to_contain_text(said)
        heads = page.get_by_role("region", name="every head").get_by_role("button")
        expect(heads).to_have_count(4)
        expect(heads.nth(head)).to_have_attribute("aria-pressed", "true")
        until(lambda patch=patch: np.abs(edge(page, patch) - [0x1D, 0x4E, 0x89]).max() <= 2)  # it is outlined
        heads.nth(2).click()
    expect_row(page, weights[2, 0])
    page.get_by_role("combobox", name="selected patch or token").select_option("is looked at by")
    expect(page.locator(".headline")).to_contain_text("“[CLS]” is looked at most by row")
    large, small = (pixels(page, f"{selector} canvas").astype(float) for selector in (".picture >", ".head-pictures"))
    assert large.shape[1] > small.shape[1] > 0


def test_a_link_without_a_head_opens_the_one_that_looks_most_at_a_patch(open_model, vision):
    page = open_model("vit")
    ranked = page.get_by_role("region", name="heads by weight")
    expect(ranked.get_by_role("heading")).to_have_text("Heads ranked by their largest weight from “[CLS]” on a patch")
    buttons = ranked.get_by_role("button")
    expect(buttons.first).to_have_attribute("aria-current", "true")
    expect(page.locator(".headline b")).to_have_text(buttons.first.locator("b").inner_text())
    drag(page, ["drop"], "noise.png", png(VALUES), "image/png")
    largest = weights_of(vision, "vit", normalised(VALUES))[:, :, 0, 1:].max(-1)
    order = [np.unravel_index(i, largest.shape) for i in np.argsort(-largest, axis=None)]
    said = [f"layer {layer}, head {head} {percent(largest[layer, head])} to row" for layer, head in order]
    expect(buttons).to_contain_text(said[:10])
    buttons.nth(1).click()
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value(str(order[1][1]))


def test_each_layer_has_its_picture(open_model, vision):
    means = weights_of(vision, "vit", normalised(VALUES)).mean(1)[:, 9, 1:]
    page = open_model("vit&query=9", VALUES)
    layers = page.get_by_role("region", name="every layer").get_by_role("button")
    said = [f"layer {layer}, up to {percent(max(row))}" for layer, row in enumerate(means)]
    expect(layers).to_have_text(said)
    expect(page.get_by_role("region", name="every layer").get_by_role("heading")).to_have_text("layer means, one scale")
    beside, picture = (page.locator(one).bounding_box() for one in (".picture-layers", ".picture > canvas"))
    assert beside["x"] >= picture["x"] + picture["width"]
    page.set_viewport_size({"width": 1800, "height": 900})  # the input is beside it
    page.wait_for_function("() => document.querySelector('.picture > canvas').clientHeight >= 450")
    assert page.evaluate("document.documentElement.scrollHeight") <= 900
    layers.last.click()
    expect(page.get_by_role("combobox", name="layer", exact=True)).to_have_value(str(len(means) - 1))
    expect(layers.last).to_have_attribute("aria-pressed", "true")
    page.get_by_role("combobox", name="selected patch or token").select_option("is looked at by")
    expect(layers).to_have_count(0)  # it would need the matrices of all heads


@pytest.mark.parametrize("width", [16, 41])
def test_a_greyscale_model_takes_the_middle_of_a_colour_picture(open_model, vision, width):
    """Its preprocessor has a mean, and neither a factor nor a deviation: values stay from 0 to 255."""
    values = np.random.default_rng(5).integers(0, 256, (16, width, 3), np.uint8)
    start = (width - 16) // 2
    luminance = np.asarray(Image.fromarray(values).convert("L"))[:, start : start + 16]
    weights = weights_of(vision, "grey", (luminance[None, None] - 0.25).astype(np.float32))
    page = open_model("grey&head=0&opacity=0", values)
    if start:
        panel = page.get_by_role("region", name="input")
        expect(panel).to_contain_text("center-cropped and resized to 16 × 16.")
    expect_row(page, weights[0, 0, 0])
    assert np.abs(colours(page, 16, 16) - luminance[..., None]).max() <= 1
    page.get_by_role("button", name="[DIST]").click()
    expect_row(page, weights[0, 0, 1])


@pytest.mark.parametrize(("model", "columns", "breadth"), [("wide", 6, 128), ("middle", 4, 64)])
def test_a_file_is_drawn_with_its_own_pixels_where_the_model_has_its_patches(
    open_model, open_file, tmp_path, model, columns, breadth
):
    """One is resized, of the other the middle is seen; stripes as wide as a pixel of the model are sharp."""
    height, beside = 64, {"wide": 0, "middle": 72}[model]  # px of the file, of a patch and of what is cut off
    own = np.random.default_rng(7).integers(100, 256, (4, columns, 3)).astype(np.uint8)
    seen = np.repeat(np.repeat(own, height, 0), breadth, 1)
    period = breadth // 16
    seen[:, np.arange(seen.shape[1]) % period < period // 2] = 0
    values = np.pad(seen, ((0, 0), (beside, beside), (0, 0)), constant_values=255)
    expected = own if model == "wide" else np.asarray(Image.fromarray(own).convert("L"))[..., None].repeat(3, 2)
    page = open_model(f"{model}&opacity=0", values)
    expect(page.locator(".picture > .note")).to_contain_text(
        f"The model sees the picture at {16 * columns} × 64 pixels."
    )

    def is_drawn(page):
        canvas = pixels(page, CANVAS)[:, :, :3].astype(float)
        high, wide = canvas.shape[0] / 4, canvas.shape[1] / columns
        means, contrasts = np.empty((4, columns, 3)), np.empty((4, columns))
        for row, column in np.ndindex(4, columns):
            top, left = round((row + 0.2) * high), round((column + 0.2) * wide)
            patch = canvas[top : top + round(0.6 * high), left : left + round(0.6 * wide)]
            means[row, column], contrasts[row, column] = patch.mean((0, 1)), np.ptp(patch[..., 1], 1).min()
        return np.abs(means - expected / 2).max() < 12 and contrasts.min() > 60

    until(lambda: is_drawn(page))
    drawing = ElementTree.parse(take(page, "SVG").path()).getroot()
    image = drawing.find(".//{*}image").get("href").removeprefix("data:image/png;base64,")
    assert Image.open(io.BytesIO(base64.b64decode(image))).size == (columns * breadth, 4 * height)
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    page = open_file(tmp_path / "saved.html")
    expect(page.locator(CANVAS)).to_be_visible()
    until(lambda: is_drawn(page))


def test_another_size_and_transparent_pixels(open_model):
    """The left half has a colour, the right half is transparent, which is white."""
    values = np.zeros((64, 96, 4), np.uint8)
    values[:, :48] = [200, 30, 90, 255]
    page = open_model("vit&opacity=0")
    file = {"name": "a.png", "mimeType": "image/png", "buffer": png(values)}
    page.get_by_label("picture", exact=True).set_input_files(file)
    expect(page.get_by_role("region", name="input")).to_contain_text("a.png, 96 × 64 pixels, resized to 24 × 16.")
    drawn(page)
    page.wait_for_function("() => document.querySelectorAll('[aria-busy=true]').length === 0")
    seen = colours(page, HEIGHT, WIDTH)
    assert np.abs(seen[:, :10] - [200, 30, 90]).max() <= 3
    assert np.abs(seen[:, 14:] - 255).max() <= 3
    for said in ("A reload does not keep the picture file; this is the test picture.", "test picture"):
        page.reload()
        expect(page.get_by_text(said, exact=True).first).to_be_visible()


def test_a_saved_drawing_has_the_picture_and_its_patches(open_model, vision):
    weights = weights_of(vision, "vit", normalised(VALUES))[0, 0, 9, 1:]
    page = open_model("vit&head=0&query=9&opacity=1", VALUES)
    expect_row(page, weights_of(vision, "vit", normalised(VALUES))[0, 0, 9])
    expect(page.locator(".headline")).to_contain_text("row 1, column 2 looks most at")
    drawing = ElementTree.parse(take(page, "SVG").path()).getroot()
    name = "{http://www.w3.org/2000/svg}"
    image = drawing.find(f".//{name}image")
    data = base64.b64decode(image.get("href").removeprefix("data:image/png;base64,"))
    assert np.abs(np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), int) - VALUES).max() <= 1
    tinted = [one for one in drawing.findall(f"{name}rect") if one.get("fill-opacity")]
    patches = [one for one in tinted if not one.get("rx")]
    shares = [float(one.get("fill-opacity")) for one in patches]
    np.testing.assert_allclose(shares, (weights / weights.max()) ** GROWTH, atol=6e-3)
    last = drawing.findall(f"{name}g/{name}rect")[-1]  # of the scale
    assert last.get("fill") == patches[weights.argmax()].get("fill")
    assert last.get("fill-opacity") == "1"
    assert last.get("fill") == "rgb(107 0 88)"  # purple, which pictures rarely have
    assert "what row 1, column 2 looks at" in "".join(drawing.itertext())


def test_a_saved_page_has_the_picture(open_model, open_file, vision, tmp_path):
    page = open_model("vit&head=0&opacity=0", VALUES)
    expect_row(page, weights_of(vision, "vit", normalised(VALUES))[0, 0, 0])
    for name in ("saved.html", "again.html"):  # from the server's page, then from the saved one
        take(page, "HTML page").save_as(tmp_path / name)
        page = open_file(tmp_path / name)
        expect(page.get_by_role("tab", name="Picture")).to_have_attribute("aria-selected", "true")
        expect(page.locator(".provenance")).to_contain_text("noise.png")
        assert np.abs(colours(page, HEIGHT, WIDTH) - VALUES).max() <= 1


def huge():
    Image.new("1", (20_000, 20_000)).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'
WRONG = {
    "notes.png": (lambda: b"hello", "image/png", "is not a readable picture"),
    "notes.txt": (lambda: b"hello", "text/plain", "is not a readable picture"),
    "empty.png": (lambda: b"", "image/png", "is not a readable picture"),
    "half.png": (lambda: png(VALUES)[:40], "image/png", "half.png: "),
    "drawing.svg": (lambda: SVG, "image/svg+xml", "an SVG has no pixels"),
    "drawing.png": (lambda: SVG, "image/png", "is not a readable picture"),
    "huge.png": (huge, "image/png", "has 20000 × 20000 pixels; the limit is 64 million"),
    "query.npy": (lambda: b"hello", "", "is not a .npy file"),
}


def test_wrong_files_are_refused_in_one_sentence(open_model, vision):
    weights = weights_of(vision, "vit", normalised(VALUES))[0, 0, 0]
    page = open_model("vit", VALUES)
    expect_row(page, weights)
    alert = page.get_by_role("alert")
    for name, (content, kind, message) in WRONG.items():
        drag(page, ["drop"], name, content(), kind)
        expect(alert).to_contain_text(f"{name}: ")
        expect(alert).to_contain_text(message)
    expect_row(page, weights)
    drag(page, ["drop"], "noise.png", png(VALUES), "image/png")
    expect(alert).to_have_count(0)


def test_tensors_in_place_of_a_picture(open_model, vision, tmp_path):
    given = np.random.default_rng(6).standard_normal((2, 3, HEIGHT, WIDTH)).astype(np.float32)
    np.save(tmp_path / "pixel_values.npy", given)
    page = open_model("vit")
    choose(page, tmp_path / "pixel_values.npy")
    expect_row(page, weights_of(vision, "vit", given[:1])[0, 0, 0])
    page.get_by_role("combobox", name="row of the batch").select_option("1")
    expect_row(page, weights_of(vision, "vit", given[1:])[0, 0, 0])
    page.get_by_role("slider", name="colour strength").fill("0")
    seen = np.moveaxis(given[1], 0, -1) * STD + MEAN
    assert np.abs(colours(page, HEIGHT, WIDTH) - np.clip(seen / FACTOR, 0, 255)).max() <= 1
    page.get_by_role("radio", name="test picture").check()
    expect(page.get_by_role("combobox", name="row of the batch")).to_have_count(0)
