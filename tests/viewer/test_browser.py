"""The page as a browser has it: links, back and forward, how views look, another theme, paper."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from heed_client.client import Client
from tests.viewer.pages import EXAMPLE, alike, display, drawn, expect_value, picture_of_view

TEXT = "model=bert&text=the+cat+sat+on+the+mat"
PICTURES = Path(__file__).with_name("pictures")
TOLERANCE = 6  # mean difference of a pixel, of 255; two different views differ by more


@pytest.mark.parametrize(
    "fragment",
    [
        "layer=-1&head=-1&query=-1&key=99&batch=7",
        "layer=99&head=1e9&query=4.5&heads=[99,-1]&ablated=[[5,5],[1]]",
        "view=nothing&scale=nothing&range=nothing&palette=nothing&sort=nothing&combine=nothing&direction=nothing",
        "view=matrix&threshold=-5&parameters=[]&other={%22layer%22:%22x%22,%22text%22:5}&words=[1]",
        "view=ablate&random={%22seed%22:-1}&no-such=1&%00=%00",
        "view=head&kind=weights&query=99&combine=rollout",
    ],
)
def test_a_broken_link_is_no_broken_page(open_page, fragment):
    page = open_page(f"model=bert&text=the+cat&{fragment}")
    expect(page.get_by_role("tab", selected=True)).to_have_count(1)
    expect(page.locator("#view canvas, #view [role=option], #view .chip").first).to_be_visible()


def test_the_sentence_is_in_the_link_and_leaves_it_with_its_tensors(open_page):
    """Its words stay when a number is edited."""
    page = open_page(EXAMPLE)
    for _ in range(2):
        expect(page.locator(".selection")).to_contain_text("“it” (10) looks at “animal” (2)")
        page.reload()
    display(page).get_by_role("checkbox", name="hide special tokens").check()
    expect(page.locator(".selection")).not_to_contain_text("[CLS]")
    expect(page).to_have_url(re.compile("sentence=true"))
    page.get_by_role("radio", name="random").check()
    expect(page).not_to_have_url(re.compile("sentence"))
    page = open_page(EXAMPLE)
    expect(page.locator(".selection")).to_contain_text("“it” (10) looks at “animal” (2)")
    page.get_by_role("tab", name="Steps").click()
    page.get_by_role("textbox", name="query 0", exact=True).fill("0.5")
    page.get_by_role("tab", name="Head").click()
    expect(page).not_to_have_url(re.compile("sentence=true"))
    expect(page.locator(".selection")).to_contain_text("“it” (10) looks at “")
    expect(page.locator(".special").first).to_have_attribute("title", "[CLS] (0)")


@pytest.mark.parametrize("model", ["attention_float16", "efficient_bfloat16"])
def test_half_precision(open_page, shared_server, halves, model):
    url = shared_server(halves).url
    page = open_page(f"model={model}&view=matrix&query=0&key=1", url=url)
    with Client(url) as heed:
        weights = heed.attend(model, **{**heed.describe(model).example, "outputs": ["weights"]}).weights
    expect_value(page, np.asarray(weights, np.float32).reshape(-1, *weights.shape[-2:])[0, 0, 1])


def test_views_look_as_they_did(open_page):
    """Compared at a quarter of the size, as fonts differ between machines. A picture that is deleted is taken anew."""
    page = open_page("model=bert&text=the+animal+did+not+cross+the+street&view=model&head=1&query=2")
    pictures = {}
    for view in ("model", "head", "matrix", "tokens"):
        page.get_by_role("tab", name=view).click()
        expect(page.locator(".thumbnail" if view == "model" else ".selection").first).to_be_visible()
        page.mouse.move(5, 5)
        pictures[view] = picture_of_view(page).resize((200, 120), Image.Resampling.BOX)
    new = [view for view in pictures if not (PICTURES / f"{view}.png").exists()]
    for view in new:
        pictures[view].save(PICTURES / f"{view}.png")
    page.get_by_role("tab", name="model").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("up to the largest of the head.")
    assert not new, "look at the pictures that were taken anew"
    for view, picture in pictures.items():
        for name in pictures:
            expected = np.asarray(Image.open(PICTURES / f"{name}.png"), float)
            assert (np.abs(picture - expected).mean() <= TOLERANCE) == (name == view), (view, name)


def test_a_link_is_followed_also_if_settings_are_written_before_its_event(open_page):
    page = open_page("model=bert&text=the+cat")
    expect(page.locator(".thumbnail")).to_have_count(4)
    page.evaluate("before => { location.hash = 'model=additive'; history.replaceState(null, '', before) }", page.url)
    expect(page.get_by_role("combobox", name="model", exact=True)).to_have_value("additive")
    expect(page).to_have_url(re.compile("model=additive"))


def test_back_and_forward_lead_through_views_and_models(open_page):
    page = open_page("model=bert&text=the+cat")
    tab = page.get_by_role("tab", selected=True)
    page.locator(".thumbnail").nth(2).click()
    expect(tab).to_have_text("Head")
    page.get_by_role("combobox", name="scale").select_option("log")  # which is no step
    page.get_by_role("tab", name="Matrix").click()
    expect(page.locator(".heat-map [role=application]")).to_be_visible()
    page.get_by_role("combobox", name="model", exact=True).select_option("additive")
    expect(page.get_by_role("radio", name="example")).to_be_checked()
    page.go_back()
    expect(page.get_by_role("textbox", name="text", exact=True)).to_have_value("the cat")
    expect(tab).to_have_text("Matrix")
    page.go_back()
    expect(tab).to_have_text("Head")
    expect(page.get_by_role("combobox", name="scale")).to_have_value("log")
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value("2")
    page.go_back()
    expect(tab).to_have_text("Model")
    expect(page.locator(".thumbnail")).to_have_count(4)
    page.go_forward()
    expect(page.get_by_role("button", name="head 2", exact=True)).to_have_attribute("aria-pressed", "true")


def test_a_change_of_the_theme_is_drawn_at_once(open_page):
    """As if the page had been opened with the other theme."""
    page = open_page(f"{TEXT}&query=1&ablated=[[0,1]]")
    theme = page.get_by_role("combobox", name="theme")
    seen = {}

    def turn(view: str) -> None:
        page.get_by_role("tab", name=view).click()
        page.mouse.move(5, 5)
        expect(page.locator("#view :is(canvas, .chip, .chips li)").first).to_be_visible()

    for view in ("Model", "Head", "Matrix", "Tokens", "Ablate"):
        page.emulate_media(color_scheme="light")
        turn(view)
        light = picture_of_view(page)
        page.emulate_media(color_scheme="dark")
        dark = picture_of_view(page)
        assert not alike(light, dark)
        seen[view] = light, dark
    page.reload()
    for view, (light, dark) in seen.items():
        turn(view)
        assert alike(picture_of_view(page), dark)
        theme.select_option("light")
        page.mouse.move(5, 5)
        assert alike(picture_of_view(page), light)
        theme.select_option("system")


CONTRASTS = """async () => {
  const { headColour, palette } = await import("heed/data/palettes.js");
  const part = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = (hex) => [0.2126, 0.7152, 0.0722].reduce(
    (sum, share, i) => sum + share * part(parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16) / 255), 0);
  const back = luminance("#11141a");
  const contrasts = [4, 12, 16].flatMap((heads) => Array.from({ length: heads }, (_, head) =>
    (luminance(headColour(head, heads)) + 0.05) / (back + 0.05)));
  return [Math.min(...contrasts), palette("auto", true)[128] & 255];
}"""


def test_the_theme_is_remembered_and_colours_are_seen_on_a_dark_page(open_page):
    page = open_page(TEXT, color_scheme="light")
    page.get_by_role("combobox", name="theme").select_option("dark")
    page.reload()
    expect(page.get_by_role("combobox", name="theme")).to_have_value("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 20, 26)"
    contrast, middle = page.evaluate(CONTRASTS)
    assert contrast >= 3
    assert middle < 40


PAINTED = """() => [
  document.querySelector("#view canvas").toDataURL(),
  [...document.querySelectorAll(".chip")].map((chip) => chip.style.backgroundColor).filter(Boolean).length,
]"""
CONTROLS = """() => [...document.querySelectorAll("button, select, input, textarea, summary, a, [role=tab]")]
  .filter((one) => one.checkVisibility() && !one.matches(".thumbnail, .chip, .head-chips *"))
  .map((one) => one.outerHTML.slice(0, 80))"""


def test_paper_has_a_light_drawing_and_where_it_is_from(open_page):
    """And the screen is as it was."""
    page = open_page(f"{TEXT}&query=1&key=2", viewport={"width": 720, "height": 900})
    about = page.locator(".provenance")
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = ({PAINTED})(); }})")
    for view in ("Model", "Head", "Matrix", "Tokens", "Compare"):
        page.emulate_media(color_scheme="light", media="screen")
        page.get_by_role("tab", name=view).click()
        drawing = page.locator("#view :is(:not(.chip-colours) > canvas, .chip)").first
        expect(drawing).to_be_visible()
        expect(page.locator(".thumbnail[aria-busy=true]")).to_have_count(0)
        expect(about).to_be_hidden()
        drawn(page)
        light, _ = page.evaluate(PAINTED)
        page.emulate_media(color_scheme="dark")
        if view != "Head":  # only colours of low contrast differ
            page.wait_for_function(f"(light) => ({PAINTED})()[0] !== light", arg=light)
        drawn(page)
        dark = page.evaluate(PAINTED)
        page.pdf()  # the browser's event comes before it
        printed, chips = page.evaluate("window.printed")
        assert printed == light
        assert (chips > 0) == (view == "Tokens")  # there the canvas is for the screen only
        page.wait_for_function(f"(dark) => JSON.stringify(({PAINTED})()) === JSON.stringify(dark)", arg=dark)
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        expect(about).to_contain_text("bert, version 1")
        expect(about).to_contain_text("the cat sat on the mat")
        assert page.evaluate(CONTROLS) == []
        expect(drawing).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 720


def test_arrow_keys_lead_through_the_heads_of_the_model_view(open_page):
    page = open_page("model=encoder&view=model")
    heads = page.get_by_role("group", name="heads")
    heads.get_by_role("button", name="1.2:").hover()
    expect(heads.locator("[tabindex='0']")).to_have_attribute("aria-label", "1.2: layer 1, head 2")
    heads.locator("[tabindex='0']").focus()
    for key, label in {"ArrowUp": "0.2", "ArrowRight": "0.3", "ArrowDown": "1.3", "Home": "0.0", "End": "1.3"}.items():
        page.keyboard.press(key)
        expect(heads.locator(":focus")).to_have_attribute("aria-label", re.compile(f"^{label}:"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value("3")


def test_the_head_that_is_pointed_at_is_large_beside_the_others(open_page):
    page = open_page("model=encoder&view=model&layer=1&head=2", viewport={"width": 1440, "height": 900})
    large, heads = page.get_by_role("region", name="large head"), page.get_by_role("group", name="heads")
    title = large.get_by_role("heading")
    first = re.match(r"layer \d+, head \d+", page.locator(".ranking button").first.inner_text())[0]
    expect(title).to_contain_text(first)
    heads.get_by_role("button", name="0.3:").hover()
    expect(title).to_have_text(re.compile("^layer 0, head 3: “.+” → “.+” \\d"))
    heads.get_by_role("button", name="1.0:").focus()
    expect(title).to_contain_text("layer 1, head 0")
    page.mouse.move(0, 0)
    expect(title).to_contain_text("layer 1, head 0")  # on the way to it
    large.get_by_role("application").click()
    expect(page).to_have_url(re.compile("query=.*key="))
    page.set_viewport_size({"width": 1000, "height": 900})
    expect(large).to_be_hidden()


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_head_that_looks_back_is_not_taken_for_masked(open_page, is_masked):
    """Of more than 64 tokens the page has weights of 8 bits: those of one head on later keys are all rounded to 0."""
    length = 80
    key = np.eye(length, dtype=np.float32)
    back = 300 * np.roll(key, -1, axis=1)  # each query looks at the key before it, the first one at itself
    back[0] = 300 * key[0]
    query = np.stack([back, np.zeros_like(back)])
    fields = {"query": query[None], "key": np.stack([key, key])[None], "value": np.stack([key, key])[None]}
    tensors = {"words": [f"word{i}" for i in range(length)], **{name: one.tolist() for name, one in fields.items()}}
    parameters = '&parameters={"is_causal":true}' if is_masked else ""
    page = open_page(f"model=scaled_dot_product&sentence=true&view=model{parameters}", tensors=tensors)
    meaning = page.locator(".meaning")
    expect(meaning).to_contain_text("Hatched: masked." if is_masked else "of the head. Point")


@pytest.mark.parametrize("width", [400, 800])
@pytest.mark.parametrize("view", ["model", "head", "matrix", "tokens", "compare", "ablate", "neurons"])
def test_nothing_is_cut_in_a_narrow_window(open_page, view, width):
    """Only what has a scroll bar of its own is wider than the window, and the tab of the view is in sight."""
    page = open_page(
        f"model=bert&text=the+cat+sat+on+the+mat&view={view}&query=2&ablated=[[0,1]]",
        closed=True,
        viewport={"width": width, "height": 800},
    )
    expect(page.locator("#view :is(canvas, .chips li)").first).to_be_visible()
    drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.get_by_role("tab", selected=True).bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    wide = """(width) => [...document.querySelectorAll("#view *, .compared *, .selection *")].filter((one) => {
      const box = one.getBoundingClientRect();
      const scrolls = one.closest(".grid-of-heads, .ranking, .thumbnails, .word-lists, .pair-words, .unseen");
      return !scrolls && box.width > 0 && (box.right > width + 1 || box.left < -1);
    }).map((one) => one.outerHTML.slice(0, 100))"""
    assert page.evaluate(wide, width) == []


def test_twelve_heads_fit_into_a_small_window(open_page):
    sizes = '{"seed":1,"sizes":{"batch":1,"heads":12,"m":5,"n":5}}'
    page = open_page(f"model=scaled_dot_product&view=model&random={sizes}", viewport={"width": 390, "height": 800})
    heads = page.locator(".thumbnail")
    expect(heads).to_have_count(12)
    box = heads.last.bounding_box()
    assert box["x"] + box["width"] <= 390 - 16
    assert page.eval_on_selector(".view", "(view) => view.scrollWidth <= view.clientWidth")
    assert heads.evaluate_all("(all) => all.every((one) => one.scrollWidth <= one.clientWidth)")  # with their names
