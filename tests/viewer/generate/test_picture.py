"""A picture that a decoder writes about: its patches have the colours of what each generated word looked at."""

import json
import re
from urllib.parse import quote
from xml.etree import ElementTree

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

from export.__main__ import main
from tests.support.pairs import save
from tests.support.texts import save_tokenizer
from tests.viewer.generate.words import LISTED, expect_end, expect_words, row, tokens
from tests.viewer.pages import fragment, percent, take

SVG = "{http://www.w3.org/2000/svg}"
SIDE, COLUMNS = 4, 4  # px of a patch, patches in a row
PREPROCESSOR = {"image_mean": [0.5], "image_std": [0.5], "size": {"height": 16, "width": 16}}
# where the numbers of columns, or of rows, have their middles: px from the picture's left edge, or its upper one
MIDDLES = """(numbers) => numbers.map((number) => {
    const canvas = number.closest(".picture").querySelector("canvas");
    const [own, picture] = [number, canvas].map((one) => one.getBoundingClientRect());
    const isOfRow = own.right <= picture.left;
    if (!isOfRow && own.bottom > picture.top) throw new Error("it is over the picture");
    return isOfRow ? (own.top + own.bottom) / 2 - picture.top : (own.left + own.right) / 2 - picture.left;
})"""
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def url(once, shared_server):
    """A server of a ViT beside a decoder of TrOCR, with a tokenizer."""

    def fill(folder):
        save("trocr", folder / "saved")
        save_tokenizer(folder / "saved")
        (folder / "saved" / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
        main(["hf", str(folder / "saved"), "--repository", str(folder / "models"), "--name", "reader"])

    return shared_server(once("reader", fill) / "models").url


def test_patches_have_the_weights_of_the_word(open_page, open_file, url, generate, tmp_path):
    bodies = []
    page = open_page("model=reader&view=head&head=0", url=url)  # it opens with Generate otherwise
    page.on(
        "request", lambda request: request.url.endswith("/generate/reader") and bodies.append(request.post_data_json)
    )
    page.get_by_role("tab", name="Generate").click()
    expect_end(page)
    body = {name: value for name, value in bodies[-1].items() if name != "stream"}
    answer = generate("reader", **body)
    expect_words(page, tokens(answer))
    largest = [max(row(one, "cross_weights")[1:]) for one in answer["generated"]]
    expect(page.locator(".word.active")).to_have_text(tokens(answer)[int(np.argmax(largest))])
    expect(page.get_by_role("combobox", name="palette")).to_be_visible()
    expect(page.get_by_role("combobox", name="colour range")).to_have_count(0)  # pictures have their own choice
    opened = ElementTree.parse(take(page, "SVG").path()).getroot()
    _, *patches = [rect.get("fill-opacity") for rect in opened.findall(f"{SVG}rect") if rect.get("fill-opacity")]
    assert max(patches) == "0.8"  # the strongest colour, as on the page
    last = answer["generated"][-1]
    page.locator(".word.new").last.click()
    expect_patches(page, row(last, "cross_weights"))
    first = f"[CLS] ▲ {percent(row(last, 'cross_weights')[0])}"
    others = page.get_by_role("group", name="tokens other than patches")
    expect(others.get_by_role("button")).to_have_text([first])
    legend = page.locator(".of-patches .legend")
    expect(legend).to_contain_text("patches")
    expect(page.locator(".seen .beyond")).to_contain_text("▲ beyond the scale")
    expect(page.locator(".seen .picture-title").get_by_role("button", name="[CLS]")).to_be_visible()
    expect(page.get_by_role("group", name="generated", exact=True)).to_contain_text(
        "</s>"
    )  # that the decoder begins with
    expect(page.locator(".passages .legend")).to_be_hidden()  # no word has a colour
    drawing = ElementTree.parse(take(page, "SVG").path()).getroot()
    assert drawing.find(f".//{SVG}image").get("href").startswith("data:image/png;base64,")
    assert "pixelated" in drawing.find(f".//{SVG}image").get("style")  # as on the page
    texts = ["".join(text.itertext()) for text in drawing.findall(f"{SVG}text")]
    assert first in texts
    token, *weights = row(last, "cross_weights")
    most, share = weights.index(max(weights)), percent(sum(weights))
    said = f"Picture: {share} of the attention, most on row {most // COLUMNS}, column {most % COLUMNS} "
    expect(page.locator(".seen .picture h2")).to_have_text(f"{said}({percent(max(weights))})")
    coloured = [rect for rect in drawing.findall(f"{SVG}rect") if rect.get("fill-opacity")]
    chip, *patches = coloured
    assert token > max(weights)
    assert chip.get("fill-opacity") == "1"  # the scale ends below its weight
    shares = [float(rect.get("fill-opacity")) for rect in patches]
    np.testing.assert_allclose(shares, [0.8 * (weight / max(weights)) ** 0.7 for weight in weights], atol=6e-3)
    assert drawing.find(f"{SVG}filter").get("color-interpolation-filters") == "sRGB"  # colours as on the page
    small = drawing.find(f"{SVG}g/{SVG}svg")
    largest = [percent(max(row(one, "cross_weights")[1:])) for one in answer["generated"]]
    numbers = ["".join(text.itertext()) for text in small.findall(f"{SVG}text")]
    assert numbers == [f"{token} {number}" for token, number in zip(tokens(answer), largest, strict=True)]
    pictures = page.get_by_role("region", name="picture of each word").get_by_role("button")
    expect(pictures).to_have_text(numbers)
    expect(pictures.last).to_have_attribute("aria-pressed", "true")
    take(page, "PNG")
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    expect_patches(open_file(tmp_path / "saved.html"), row(last, "cross_weights"))
    seen = page.get_by_role("img", name="the picture in 4 × 4 patches")
    box = seen.bounding_box()
    page.get_by_role("combobox", name="scale of").select_option("all words")
    expect(page).to_have_url(re.compile("oneScale=true"))
    high = max(max(row(one, "cross_weights")[1:]) for one in answer["generated"])
    expect(legend.locator("small").last).to_have_text(percent(high))
    drawing = ElementTree.parse(take(page, "SVG").path()).getroot()
    _, *patches = [rect for rect in drawing.findall(f"{SVG}rect") if rect.get("fill-opacity")]
    shares = [float(rect.get("fill-opacity")) for rect in patches]
    np.testing.assert_allclose(shares, [0.8 * (weight / high) ** 0.7 for weight in weights], atol=6e-3)
    point(page, 6, click=True)
    expect(page).to_have_url(re.compile(f"seen={6 + 1}"))  # behind [CLS]
    expect(legend).to_be_visible()
    seven = [row(one, "cross_weights")[7] for one in answer["generated"]]
    asker = tokens(answer)[int(np.argmax(seven))]  # the word that looks most at the patch is beside it
    expect(page.locator(".seen .picture h2")).to_contain_text(f" of the attention of “{asker}”")
    expect(page.get_by_role("region", name="next tokens").get_by_role("heading")).to_contain_text(f"“{asker}”")
    expect(page.get_by_role("region", name="heads by weight").get_by_role("heading")).to_have_text(
        re.compile(f"^Heads ranked by their weight from “{re.escape(asker)}”.* on row 1, column 2$")
    )
    assert seen.bounding_box() == box
    page.get_by_role("combobox", name="scale of").select_option("each word")
    assert "oneScale" not in fragment(page)
    numbers = page.locator(".patch-numbers small")  # beside the picture, so that they hide nothing of it
    side = box["width"] / COLUMNS
    assert numbers.all_inner_texts() == [str(i) for i in range(COLUMNS)] * 2
    expected = [(i + 0.5) * side for i in range(COLUMNS)] * 2
    np.testing.assert_allclose(numbers.evaluate_all(MIDDLES), expected, atol=0.6)


def test_the_opening_word_is_ranked_and_stays_in_another_head(open_page, url):
    page = open_page("model=reader&view=generate", url=url)
    expect_end(page)
    ranked = page.get_by_role("region", name="heads by weight").get_by_role("button")
    expect(ranked.first).to_have_attribute("aria-current", "true")
    expect(page.locator(".passage .word.active")).to_have_count(1)
    place = page.locator(".passage .word").evaluate_all("(words) => words.findIndex((one) => one.matches('.active'))")
    assert place >= 0
    page.locator(".seen").evaluate("(picture) => picture.setAttribute('data-kept', '')")
    page.get_by_role("combobox", name="head", exact=True).select_option("1")
    page.get_by_role("combobox", name="layer").select_option("0")
    expect(page.locator(".passage .word").nth(place)).to_have_class(re.compile("active"))
    expect(page.locator(".on-paper")).to_contain_text("layer 0, head 1")
    expect(page.locator(".ranked [aria-current=true]")).to_contain_text("layer 0, head 1")  # that is drawn
    expect(page.locator(".seen")).to_have_attribute("data-kept", "")  # while the other head was loaded


def test_a_link_with_a_view_that_the_model_lacks_opens_another(open_page, url):
    page = open_page("model=reader&view=lens", url=url)
    expect(page.get_by_role("note")).to_contain_text(
        "reader has no view “lens”, which needs a model that predicts next tokens."
    )
    expect(page.get_by_role("tab", selected=True)).to_have_text("Model")


def expect_patches(page, weights):
    """What the page says of patches that are pointed at."""
    canvas = page.get_by_role("img", name="the picture in 4 × 4 patches")
    for patch in (0, 5, 15):
        point(page, patch)
        expect(canvas).to_have_attribute(
            "title", f"row {patch // COLUMNS}, column {patch % COLUMNS}: {percent(weights[patch + 1])}"
        )


def point(page, patch, click=False):
    canvas = page.get_by_role("img", name="the picture in 4 × 4 patches")
    box = canvas.bounding_box()
    size = box["width"] / COLUMNS
    position = {"x": (patch % COLUMNS + 0.5) * size, "y": (patch // COLUMNS + 0.5) * size}
    if click:
        canvas.click(position=position)
    else:
        canvas.hover(position=position)


def test_the_heads_of_a_pinned_word_begin_on_the_first_screen(open_page, readers, shared_server):
    """The controls of the pictures are in one row; in a narrow window names are above their fields."""
    fragment = f"model=mine&text={'+'.join(['who+sat+on'] * 4)}&view=generate&length=9&token=1"
    window = {"width": 1440, "height": 900}
    page = open_page(fragment, url=shared_server(readers("llava") / "models").url, closed=True, viewport=window)
    expect_end(page)
    labels = page.locator(".seen .tools label")
    expect(labels).to_have_text([re.compile(name) for name in ("^each word as", "^scale of", "^colour strength")])
    places = [label.bounding_box() for label in labels.all()]
    assert len({round(box["y"] + box["height"] / 2, -1) for box in places}) == 1
    title = page.get_by_role("region", name="picture of each word").get_by_role("heading")
    expect(title).to_have_text("Each word with its largest weight on a patch, on its own scale")
    page.get_by_role("combobox", name="scale of").select_option("all words")
    expect(title).to_contain_text("all on one scale")
    expect(page.locator(".selection b")).to_have_count(1)
    assert page.locator(".selection").bounding_box()["height"] < 40
    heads = page.get_by_role("region", name="every head").get_by_role("button")
    expect(heads).to_have_count(4)
    assert heads.first.bounding_box()["y"] < 900
    heads.nth(2).click()
    expect(page).to_have_url(re.compile("head=2"))
    expect(heads.nth(2)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".every-head")).to_have_count(0)  # a column for each patch could not be read
    page.set_viewport_size({"width": 390, "height": 844})
    for name in ("length", "temperature"):
        field = page.get_by_role("spinbutton", name=name).bounding_box()
        label = page.locator(".tools label", has_text=name).bounding_box()
        assert field["y"] - label["y"] > 14, name
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_picture_in_the_prompt_is_saved_above_the_text(open_page, readers, shared_server):
    server = shared_server(readers("llava") / "models")
    text = "+".join(["who+sat+on"] * 8)
    page = open_page(f"model=mine&text={text}&view=generate&length=3", url=server.url)
    expect(page.get_by_role("group", name="prompt and generated text")).to_contain_text("picture (16 patches)")
    expect_end(page)
    page.get_by_role("combobox", name="each word as").select_option("a row of the matrix")
    alignment = page.get_by_role("region", name="picture").get_by_role("region", name="alignment")
    keys = page.locator(".passages [data-column]").count()  # one for all patches; nothing looks at the last word
    expect(alignment.get_by_role("application")).to_have_attribute(
        "aria-label", re.compile(f"^weights of 3 queries.* and {keys} keys")
    )
    drawing = ElementTree.parse(take(page, "SVG").path()).getroot()
    assert drawing.find(f".//{SVG}image") is not None
    assert len([rect for rect in drawing.findall(f"{SVG}rect") if rect.get("fill-opacity")]) == COLUMNS**2
    text = drawing.find(f"{SVG}g/{SVG}svg")
    words = [word.text for word in text.findall(f"{SVG}text")]
    assert len([word for word in words if re.fullmatch(r"picture \(16 patches\) [\d.]+\s%", word)]) == 1
    assert not any("row" in word for word in words)
    new = [word for word in text.findall(f"{SVG}text") if word.get("font-weight")]
    lines = {word.get("y") for word in text.findall(f"{SVG}text")[: words.index(new[0].text)]}
    assert len(lines) > 1
    assert new[0].get("y") not in lines  # no line has the end of the prompt and the generated words
    page.locator(".word.new").nth(1).hover()
    page.get_by_role("region", name="picture").get_by_role("img", name="the picture").click(position={"x": 10, "y": 10})
    expect(page.locator(".seen .picture h2")).to_have_text(re.compile("^Picture: .* of the attention of “"))
    likely = page.get_by_role("region", name="next tokens")
    asker = re.compile("^Most likely tokens in place of “")  # the word that looks most at the patch
    expect(likely.get_by_role("heading")).to_have_text(asker)
    page.locator(".word.new").nth(1).hover()
    expect(likely.get_by_role("heading")).to_have_text(f"Most likely tokens in place of “{new[1].text}”")
    assert words[-1].startswith("bold: generated; no box: weight near 0")  # without a title, which is above the picture


def test_a_generated_placeholder_is_no_picture(open_page, readers, shared_server):
    """The weights of words after it come from the same text generated again: it cannot be sent in a prompt."""
    url, bodies = shared_server(readers("llava") / "models").url, []
    start = "model=mine&text=who+sat+on&view=generate&head=0&length=9&temperature=4&seed="
    page = open_page(f"{start}0", url=url)
    page.on("request", lambda request: request.url.endswith("/generate/mine") and bodies.append(request.post_data_json))
    page.get_by_role("button", name="Generate", exact=True).click()
    expect_end(page)
    with httpx.Client(base_url=url, timeout=60) as client:
        whole = {"layers": "0:2", "heads": "0:4"}
        body = {name: value for name, value in (bodies[0] | whole).items() if name != "stream"}
        answers = (client.post("/v1/generate/mine", json=body | {"seed": seed}).json() for seed in range(200))
        seed, answer = next((seed, answer) for seed, answer in enumerate(answers) if "<image>" in tokens(answer)[1:5])
    place = tokens(answer).index("<image>") + 2
    page = open_page(f"{start}{seed}&token={place}", url=url)
    expect_end(page)
    expect_words(page, tokens(answer))
    weights = np.array(answer["generated"][place]["weights"])[0, 0].ravel()  # of layer 0, head 0
    heads = page.get_by_role("region", name="every head").get_by_role("button")
    most, share = (percent(part) for part in (weights[1 : COLUMNS**2 + 1].max(), weights[1 : COLUMNS**2 + 1].sum()))
    expect(heads.first).to_have_text(f"head 0 {most}picture {share}")
    expect(heads.first).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".beside-text .ranking b")).to_have_count(8)
    likely = page.get_by_role("region", name="next tokens")
    reason = "No text continues from a generated <image>, the placeholder of a picture."
    expect(likely).to_contain_text(reason)
    expect(likely.get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)
    page.locator(".word.new").first.click()
    expect(likely.get_by_role("button")).to_have_count(LISTED)
    expect(likely).to_contain_text("Click another token")
    chosen = json.dumps([[token["id"], token["token"] or ""] for token in answer["generated"][: place + 1]])
    page = open_page(f"{start}{seed}&chosen={quote(chosen)}", url=url)
    expect(page.get_by_role("alert")).to_have_text(reason)
    expect(page.locator(".word.new")).to_have_count(0)


def test_a_touch_screen_has_no_hole_above_the_picture(open_page, url):
    window = {"width": 390, "height": 844}
    page = open_page("model=reader&view=generate", url=url, closed=True, viewport=window, has_touch=True)
    expect_end(page)
    note, seen = (page.locator(name).bounding_box() for name in (".passages > .note", ".seen"))
    assert 0 <= seen["y"] - note["y"] - note["height"] < 16
    expect(page.get_by_role("region", name="next tokens")).to_contain_text("Tap another token to continue from it.")
    page.locator(".seen canvas[role=img]").click(position={"x": 10, "y": 10})
    expect(page.locator(".passages .legend")).to_be_visible()
