"""A model that reads pictures in its text: the page shows which patch a word looks at."""

import io
import json
import re
from urllib.parse import urlencode
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from heed_client import Client
from tests.viewer.generate.words import expect_end
from tests.viewer.pages import drag, drawn, fragment, percent, take

VALUES = np.random.default_rng(5).integers(0, 256, (16, 16, 3), np.uint8)  # of a picture


@pytest.fixture(scope="module")
def server(readers, shared_server):
    """The URL of a server of a small LLaVA, ``mine``."""
    return shared_server(readers("llava") / "models").url


def noise():
    Image.fromarray(VALUES).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def test_a_word_looks_at_patches_and_a_patch_at_words(open_page, server):
    page = open_page("model=mine&text=the+cat+sat&picture=false&head=0", url=server)
    expect(page.locator("#view canvas").first).to_be_visible()
    assert "Picture" not in page.get_by_role("tab").all_inner_texts()
    drag(page, ["drop"], "noise.png", noise(), "image/png")
    expect(page.get_by_role("region", name="input")).to_contain_text("noise.png")
    page.get_by_role("tab", name="Picture").click()
    with Client(server) as heed:
        answer = heed.attend("mine", text="<image> the cat sat", images=noise(), outputs=["weights"])
    weights = np.asarray(answer.weights)[0, 0]
    words = [place for place, token in enumerate(answer.tokens) if token != "<image>"]
    chips = page.get_by_role("group", name="tokens other than patches").get_by_role("button")
    expect(chips).to_have_count(len(words))
    last = words[-1]
    expect(chips.last).to_have_attribute("aria-pressed", "true")  # the first words see no patch
    assert not weights[0, 1:].any()
    chips.first.click()
    expect(page.locator(".headline")).to_have_text(f"“{answer.tokens[0]}” looks at no patch")
    chips.last.click()
    expect(chips.last).to_have_attribute("aria-pressed", "true")
    for chip, place in zip(chips.all(), words, strict=True):
        expect(chip).to_have_text(f"{answer.tokens[place]} {percent(weights[last, place])}")
    picture = page.get_by_role("application")
    expect(picture).to_have_accessible_name(
        re.compile(f"in 4 × 4 patches, coloured by what “{answer.tokens[last]}” looks")
    )
    box = picture.bounding_box()
    picture.hover(position={"x": box["width"] * 0.4, "y": box["height"] * 0.9})  # row 3, column 1
    assert picture.bounding_box() == box  # the words above it have other numbers
    first = answer.tokens.index("<image>")
    tip = page.locator(".picture .tip")
    expect(tip).to_have_text(f"“{answer.tokens[last]}” → row 3, column 1: {percent(weights[last, first + 13])}")
    assert "text=the+cat+sat" in fragment(page)


def test_the_text_says_where_the_picture_stands_and_it_can_be_removed(open_page, server):
    page = open_page("model=mine&text=who+sat+on&head=0", url=server)
    page.get_by_role("tab", name="Picture").click()
    page.get_by_role("textbox", name="text", exact=True).fill("who sat <image> on")
    page.wait_for_url(re.compile("image"))
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false")  # else the answer moves the selection
    label = "the picture in 4 × 4 patches"
    chips = page.get_by_role("group", name="tokens other than patches").get_by_role("button")
    expect(chips).to_have_count(5)
    page.get_by_role("application").press("ArrowRight")  # from the first word to the first patch
    expect(page.get_by_role("application")).to_have_accessible_name(
        re.compile(f"{label}, coloured by what row 0, column 0 looks")
    )
    page.get_by_role("textbox", name="text", exact=True).fill("who sat on")
    page.get_by_role("button", name="remove the picture").click()
    expect(page.get_by_role("tab", name="Picture")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("button", name="use the test picture")).to_be_visible()
    expect(page.get_by_role("tab", name="Picture")).to_have_count(0)
    page.get_by_role("button", name="use the test picture").click()
    expect(page.get_by_role("tab", name="Picture")).to_have_count(1)
    assert "picture=false" not in fragment(page)


def test_a_link_to_a_selection_has_the_test_picture(open_page, server):
    page = open_page("model=mine&query=20&view=head", url=server)
    expect(page.get_by_role("region", name="input")).to_contain_text("29 of")
    expect(page.get_by_role("tab", name="Head")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tab", name="Picture")).to_have_count(1)
    assert "query=20" in fragment(page)


def test_back_and_forward_keep_the_pins_of_each_entry(open_page, server):
    page = open_page("model=mine", url=server)
    expect(page).to_have_url(re.compile("query=24"))  # "it"
    page.get_by_role("tab", name="Matrix").click()
    page.get_by_role("button", name="remove the picture").click()
    expect(page).to_have_url(re.compile("query=8"))
    page.get_by_role("tab", name="Head").click()
    settled = page.locator(".answer")
    page.go_back()
    page.go_back()  # the picture that was removed
    expect(page.get_by_role("tab", name="Matrix")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tab", name="Picture")).to_have_count(1)
    expect(settled).to_have_attribute("aria-busy", "false")
    assert "query=24" in fragment(page)
    page.go_forward()
    expect(page.get_by_role("tab", name="Picture")).to_have_count(0)
    expect(settled).to_have_attribute("aria-busy", "false")
    assert "query=8" in fragment(page)
    page.get_by_role("button", name="use the test picture").click()
    expect(page).to_have_url(re.compile("query=24"))  # the pin follows its word again


def test_back_restores_a_picture_that_was_removed(open_page, server):
    page = open_page("model=mine&text=the+cat+sat&picture=false", url=server)
    expect(page.locator("#view canvas").first).to_be_visible()  # a page that has not started takes no file
    drag(page, ["drop"], "noise.png", noise(), "image/png")
    own = page.get_by_role("region", name="input").get_by_text("noise.png")
    expect(own).to_be_visible()
    page.get_by_role("button", name="remove the picture").click()
    expect(own).to_have_count(0)
    page.go_back()
    expect(own).to_be_visible()


def test_a_drawing_names_the_words_that_are_masked(open_page, server):
    page = open_page("model=mine&text=the+cat+sat&view=picture", url=server)
    chips = page.get_by_role("group", name="tokens other than patches").get_by_role("button")
    chips.nth(1).click()
    expect(chips.nth(1)).to_have_attribute("aria-pressed", "true")
    masked = chips.locator("xpath=self::*[contains(@class, 'masked')]").all_inner_texts()
    assert masked
    drawing = ElementTree.parse(take(page, "SVG").path()).getroot()
    texts = [text.text for text in drawing.findall("{*}text")]
    assert [text for text in texts if text.endswith("(masked)")] == [f"{word.strip()} (masked)" for word in masked]


def test_each_link_starts_with_the_same_word(open_page, server):
    page = open_page("model=mine&view=picture", url=server)
    expect(page).to_have_url(re.compile("query=24"))
    page.get_by_role("button", name="remove the picture").click()
    expect(page.get_by_role("tab", name="Model")).to_have_attribute("aria-selected", "true")
    assert "view=" not in fragment(page)
    page.go_back()
    expect(page.get_by_role("tab", name="Picture")).to_have_attribute("aria-selected", "true")


def test_a_prompt_with_a_picture_is_generated_from(open_page, server):
    page = open_page("model=mine&text=who+sat+on&view=generate&length=3", url=server)
    expect(page.get_by_role("region", name="input")).to_contain_text("test picture")
    expect(page.locator("#view")).to_contain_text("3 tokens")


def test_what_follows_a_generated_text_is_run_with_its_picture(open_page, server):
    """The heads in which a word looks at others, and another head's weights."""
    page = open_page("model=mine&text=who+sat+on&view=generate&length=3", url=server)
    words = page.get_by_role("group", name="prompt and generated text")
    expect(words).to_contain_text("picture (16 patches)")
    expect(words).not_to_contain_text("row 3")
    expect(page.locator("#view")).to_contain_text("3 tokens")
    words.get_by_role("button").last.click()
    heads = page.get_by_role("region", name="heads by weight").get_by_role("button")
    expect(heads).to_have_count(8)
    pictures = page.get_by_role("region", name="picture of each word")
    pictures.scroll_into_view_if_needed()
    expect(pictures.locator("[aria-pressed=true]")).to_be_in_viewport()
    form = page.get_by_role("combobox", name="each word as")
    form.select_option("a row of the matrix")
    expect(page.get_by_role("region", name="alignment").get_by_role("application")).to_be_visible()
    expect(pictures).to_have_count(0)
    expect(page).to_have_url(re.compile("asRows=true"))
    form.select_option("a picture")
    expect(pictures.get_by_role("button")).to_have_count(3)
    words.get_by_text("picture (16 patches)").hover()
    expect(page.locator(".readout")).to_contain_text("looks at the picture: ")
    said = page.locator(".readout").inner_text().split(": ")[1]
    assert page.locator("[data-picture]").get_attribute("data-picture") == said
    share = float(said.removesuffix("\u00a0%"))
    seen = page.get_by_role("img", name="the picture in 4 × 4 patches")
    box, shares = seen.bounding_box(), []
    for patch in range(16):
        place = {"x": (patch % 4 + 0.5) * box["width"] / 4, "y": (patch // 4 + 0.5) * box["height"] / 4}
        seen.hover(position=place)
        expect(seen).to_have_attribute("title", re.compile(f"row {patch // 4}, column {patch % 4}: "))
        shares.append(float(re.search(r"([\d.]+)\s%$", seen.get_attribute("title"))[1]))
    assert share == pytest.approx(sum(shares), abs=16 * 0.1)  # each is rounded
    page.get_by_role("combobox", name="head", exact=True).select_option("2")
    expect(page.locator(".readout")).to_contain_text("looks most at")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_headline_of_any_word_has_room(open_page, server):
    """Beside the scale, which ends with the largest weight of a word or of the whole picture."""
    words = "+".join(["incomprehensibility", "disproportionately"] * 3)
    window = {"width": 1440, "height": 900}
    page = open_page(
        f"model=mine&text={words}&view=generate&length=6&layer=0&head=0", url=server, closed=True, viewport=window
    )
    expect_end(page)
    top, sums, scales = page.locator(".passages .passage").bounding_box()["y"], [], set()
    for word in page.locator(".word.new, .word.prompt[data-word]").all():
        word.hover()
        drawn(page)
        headline = page.locator(".passages-head .headline")
        assert headline.evaluate("({ scrollWidth, clientWidth }) => scrollWidth - clientWidth") == 0
        assert page.locator(".passages .passage").bounding_box()["y"] == top
        if word.get_attribute("data-row") is not None:
            sums.append(page.locator("[data-picture]").get_attribute("data-picture"))
            scales.add(page.locator(".passages .legend small").last.inner_text())
    assert len(scales) == 1
    end, *parts = (float(text.strip("<> %\u00a0")) for text in [*scales, *sums])
    assert end >= max(parts)


def test_a_patch_colours_the_words_that_look_at_it(open_page, server):
    """On a scale that ends with the largest of their weights."""
    page = open_page("model=mine&text=who+sat+on&view=generate&length=8&palette=greys", url=server)
    expect(page.locator(".word.new")).to_have_count(8)
    strength = page.get_by_role("slider", name="colour strength")
    expect(strength).to_be_visible()
    seen = page.get_by_role("img", name="the picture in 4 × 4 patches")
    box = seen.bounding_box()
    seen.click(position={"x": box["width"] / 8, "y": 3 * box["height"] / 8})
    expect(page.locator(".readout")).to_have_text(
        re.compile(r"^Row 1, column 0 is looked at most by “.+”( \(\d+\))?: .+\s%$")
    )
    expect(page.locator(".selection")).to_contain_text("row 1, column 0 is looked at by")
    expect(strength).to_be_visible()  # of the small pictures
    largest = page.locator(".selection li").first
    top = page.locator(".passages .legend small").last
    expect(top).to_have_text(largest.locator(".value").inner_text())
    drawn(page)
    backgrounds = page.locator(".word.new").evaluate_all(
        "(words) => words.map((word) => [word.textContent, getComputedStyle(word).backgroundColor])"
    )
    strongest = [word for word, colour in backgrounds if re.match(r"color\(srgb 0 0 0\)|rgb\(0, 0, 0\)", colour)]
    assert len(strongest) == 1
    assert f"“{strongest[0]}”" in page.locator(".readout").inner_text()
    page.set_viewport_size({"width": 390, "height": 844})
    assert (
        seen.bounding_box()["y"] < page.locator(".seen h2").first.bounding_box()["y"]
    )  # a narrow window begins with the picture


def test_heads_are_switched_off_beside_a_picture(open_page, server):
    page = open_page("model=mine&text=who+sat+on&view=ablate&ablated=[[0,1]]", url=server)
    expect(page.get_by_role("table").last).to_contain_text("all heads on")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_other_text_has_the_same_picture(open_page, server):
    patch = json.dumps({"source": "the cat sat", "metric": "kl"})
    page = open_page(f"model=mine&text=who+sat+on&view=patch&{urlencode({'patch': patch})}", url=server)
    expect(page.locator(".ending[role=status]")).to_contain_text("places measured")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_weights_that_are_all_written_alike_have_no_colour(open_page, server):
    """A head that has no attention on the picture is not as strong as others, nor are words that have none."""
    page = open_page("model=mine&text=who+sat+on&view=generate&length=3", url=server)
    levels = page.evaluate("""async () => {
      const { coloured } = await import("heed/data/picture.js");
      const { scaleEnd } = await import("heed/data/display.js");
      const [hidden, settings] = [new Uint8Array(5), { scale: "linear", kind: "weights" }];
      const patches = { special: 1, rows: 2, columns: 2 };
      const of = (...values) => coloured(Float32Array.from(values), hidden, patches, false, settings).levels;
      const ends = [["weights", 3e-6], ["weights", 0.3], ["scores", 3e-6]].map((given) => scaleEnd(...given).threshold);
      return [[...of(0.999, 4e-4, 1e-4, 0, 0)], [...of(0.2, 0.8, 0, 0, 0)], ends];
    }""")
    assert levels == [[1, 0, 0, 0, 0], [0.25, 1, 0, 0, 0], [5e-4, 0, 0]]
