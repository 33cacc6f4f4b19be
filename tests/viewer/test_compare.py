"""Two sides: texts, options, models; and the difference between them."""

import json
import re
import shlex
import subprocess
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.support.waiting import until
from tests.viewer.pages import copied, drawn, fragment, paste, percent, pixels, plot, take, violations

PAGE = "model=bert&text=the+cat+sat&view=compare"
LONG = "the+dog+sat+on+the+mat+and+the+cat+was"


def second_text(page):
    return page.get_by_role("textbox", name="text to compare with")


def test_the_difference_is_drawn_of_two_answers(open_page):
    page = open_page(PAGE + "&other={%22text%22:%22%22}")
    second = page.get_by_role("region", name="second", exact=True)
    drawings = page.locator("[aria-label=second], [aria-label=difference]").locator("canvas")
    expect(second).to_contain_text("Type a text")
    expect(drawings).to_have_count(0)
    svg = ElementTree.fromstring(take(page, "SVG").path().read_text())
    assert len(svg.findall("{*}g")) == 1  # the first side
    box = second_text(page)
    difference = page.get_by_role("region", name="difference")
    box.fill("the dog ran")
    expect(difference.locator("canvas").first).to_be_visible()
    page.route("**/v1/tokenize/**", lambda _: None)  # never answered
    box.fill("the mat")
    expect(drawings).to_have_count(0)
    expect(box).to_be_visible()


def test_the_words_of_the_queries_are_beside_the_first_of_three_maps(open_page):
    page = open_page(PAGE, viewport={"width": 1440, "height": 900}, closed=True)
    maps = page.locator(".sides .heat-map")
    expect(maps).to_have_count(3)
    expect(page.locator(".sides.row")).to_have_count(1)
    drawn(page)
    widths = [maps.nth(i).bounding_box()["width"] for i in range(3)]
    names = page.locator(".sides").evaluate("(sides) => parseFloat(sides.style.getPropertyValue('--names'))")
    assert widths == pytest.approx([widths[1] + names, widths[1], widths[1] + names], abs=0.1)
    assert page.evaluate("document.documentElement.scrollHeight") <= 900
    expect(page.locator(".sides .legend")).to_have_count(2)
    expect(page.get_by_role("region", name="second", exact=True)).to_contain_text("same scale")
    places = [maps.nth(i).bounding_box() for i in range(3)]
    maps.nth(1).click()
    expect(page.locator(".sides .selection b")).to_have_count(2)
    assert [maps.nth(i).bounding_box() for i in range(3)] == places  # a pin moves nothing
    assert page.evaluate("document.documentElement.scrollHeight") <= 900
    page.set_viewport_size({"width": 1024, "height": 900})
    expect(page.locator(".sides.row")).to_have_count(0)
    expect(page.locator(".sides .legend")).to_have_count(3)
    assert maps.nth(1).bounding_box()["width"] == pytest.approx(maps.first.bounding_box()["width"], abs=0.1)


def test_texts_are_compared_in_one_head_and_heads_in_one_text(open_page):
    """One thing differs, unless a head of the second side is chosen."""
    page = open_page(PAGE + "&head=1")
    head = page.get_by_role("combobox", name="second head")
    titles = page.locator(".sides h2")
    expect(titles).to_have_text(["First: head 1", "Second: head 2", "Difference: head 2 minus head 1"])
    second_text(page).fill("the dog ran")
    names = ["First: “the cat sat”, head 1", "Second: “the dog ran”, head 1"]
    expect(titles).to_have_text([*names, "Difference: “the dog ran” minus “the cat sat”, head 1"])
    expect(head).to_have_value("")
    expect(head.locator("option:checked")).to_have_text("same (1)")
    page.get_by_role("combobox", name="head", exact=True).select_option("3")
    expect(titles.nth(1)).to_have_text("Second: “the dog ran”, head 3")
    head.select_option("0")
    expect(titles.nth(2)).to_have_text("Difference: “the dog ran”, head 0 minus “the cat sat”, head 3")
    second_text(page).fill("the cat sat")
    expect(titles).to_have_text(["First: head 3", "Second: head 0", "Difference: head 0 minus head 3"])


def test_maps_of_equal_words_point_and_zoom_together(open_page):
    page = open_page(PAGE + "&head=1")
    sides = page.locator(".sides section")
    maps = sides.locator("[role=application]")
    tips = sides.locator(".tip:visible")
    box = maps.nth(1).bounding_box()
    maps.nth(1).hover(position={"x": box["width"] / 2, "y": box["height"] / 2})
    expect(tips).to_have_count(3)
    ends = [tips.nth(i).bounding_box()["y"] - maps.nth(i).bounding_box()["y"] for i in range(3)]
    assert min(ends) > plot(page)[3]  # they hide no cell
    first, second, change = (re.fullmatch(r"(“.+” → “.+”) (.+)", text).groups() for text in tips.all_inner_texts())
    assert first[0] == second[0] == change[0]
    assert change[1].endswith("points")
    before = [pixels(page, f".sides section:nth-child({place}) canvas", 0, 0, 150, 150) for place in (1, 2, 3)]
    page.get_by_role("button", name="zoom in").click()  # there is one
    page.mouse.move(5, 5)
    expect(tips).to_have_count(0)
    drawn(page)
    after = [pixels(page, f".sides section:nth-child({place}) canvas", 0, 0, 150, 150) for place in (1, 2, 3)]
    assert all((one != other).any() for one, other in zip(before, after, strict=True))
    second_text(page).fill("the dog ran away")
    expect(page.get_by_role("button", name="zoom in")).to_have_count(3)  # whose words differ


def test_counterparts_are_pointed_at_together(open_page):
    """In the second text, which has one word more before them."""
    page = open_page(PAGE + "&head=1&other={%22text%22:%22the+big+cat+sat%22}")
    sides = page.locator(".sides section")
    change = page.get_by_role("region", name="difference").get_by_role("application")
    tips = sides.locator(".tip:visible")
    expect(sides.get_by_role("application")).to_have_count(3)
    left, top, right, bottom = plot(page)
    change.scroll_into_view_if_needed()
    change.hover(position={"x": left + 3.5 * (right - left) / 5, "y": top + 2.5 * (bottom - top) / 5})
    expect(tips).to_have_count(3)
    pairs = [re.match("“(.+)” → “(.+)” ", text).groups() for text in tips.all_inner_texts()]
    assert pairs == [("cat", "sat")] * 3


def test_the_first_sentence_is_the_largest_change(open_page):
    """Of all but special tokens, or of the pinned words; the list has the next ones, and no pin moves the maps."""
    page = open_page(PAGE + "&head=1", viewport={"width": 1440, "height": 900}, closed=True)
    listed = page.get_by_role("list", name="largest differences").get_by_role("listitem")
    sentence = r"“(.+)” looks (?:more|less) at “.+”: {}([\d.]+)\s% → {}([\d.]+)\s%, ([+−][\d.]+)\spoints"
    ignored = " (ignoring special tokens and punctuation)"
    whole = "^Largest difference: " + sentence.format(r"first\s", r"second\s") + re.escape(ignored)
    headline = page.locator(".largest-change")
    expect(headline).to_have_text(re.compile(whole))
    said = headline.inner_text().removesuffix(ignored)
    found = re.search(sentence.format(r"first\s", r"second\s"), said)
    query, (one, other, change) = found[1], (float(found[i].replace("−", "-")) for i in (2, 3, 4))
    assert other - one == pytest.approx(change, abs=1e-6)
    expect(page.locator(".changes p")).to_have_text("Then:")
    expect(page.locator(".changes ol")).to_have_attribute("start", "2")
    expect(listed).to_have_count(4)
    expect(listed.first).to_have_text(re.compile(sentence.format("", "") + "$"))
    assert not re.search("</?s>", said + " ".join(listed.all_inner_texts()))
    assert said.split(": ", 1)[1].replace("first\u00a0", "").replace("second\u00a0", "") not in listed.all_inner_texts()
    top = page.locator(".sides").bounding_box()["y"]
    other = ["<s>", "the", "cat", "sat", "</s>"].index(query) ^ 1
    page.goto(page.url + f"&query={other}")
    word = ["<s>", "the", "cat", "sat", "</s>"][other]
    expect(headline).to_have_text(re.compile(f"^Largest difference from “{word}”: “{word}” looks"))
    expect(page.locator(".changes p")).to_have_text("Then:")
    expect(listed.first).to_contain_text(f"“{word}” looks")
    assert page.locator(".sides").bounding_box()["y"] == top
    page.goto(page.url + "&key=4")
    expect(headline).to_have_text(re.compile("^" + sentence.format(r"first\s", r"second\s") + "$"))
    expect(headline).to_contain_text("at “</s>”:")
    expect(listed).to_have_count(3)  # the words
    sizes = [float(re.search(r"[+−]([\d.]+)\spoints$", text)[1]) for text in listed.all_inner_texts()]
    assert sizes == sorted(sizes, reverse=True)
    assert "at “</s>”" not in " ".join(listed.all_inner_texts())
    assert page.locator(".sides").bounding_box()["y"] == top


def test_the_share_of_attention_that_is_elsewhere(open_page, heed):
    """Half the sum of the absolute differences of a query's weights, on average; texts of two lengths have none."""
    weights = heed.attend("bert", text="the cat sat").weights[0]
    share = abs(weights[3] - weights[0]).sum(-1).mean() / 2
    page = open_page(PAGE + "&head=0&other={%22head%22:3}")
    difference = page.get_by_role("region", name="difference")
    expect(difference).to_contain_text(f"On average {percent(share)} of a word’s attention is elsewhere.")
    second_text(page).fill("the cat sat on")
    expect(difference.get_by_role("heading")).to_contain_text("“the cat sat on”")
    expect(difference).not_to_contain_text("On average")


def test_cells_that_are_masked_on_both_sides_are_masked_in_the_difference(open_page):
    page = open_page("model=multi_head&view=compare&parameters=" + quote(json.dumps({"is_causal": True})))
    for name in ("first", "second", "difference"):
        expect(page.get_by_role("region", name=name, exact=True).locator(".legend")).to_contain_text("masked")


def test_titles_have_the_words_that_differ(open_page):
    page = open_page(f"model=bert&text={LONG}+old&view=compare&head=0")
    second_text(page).fill(LONG.replace("+", " ") + " big")
    titles = page.locator(".sides h2")
    for place, end in enumerate(("First: “…\u2060.*was old", "Second: “…\u2060.*was big")):  # no line ends after "…"
        expect(titles.nth(place)).to_have_text(re.compile(f"^{end}”, head\u00a00$"))


def test_words_are_compared_with_the_same_words(open_page, heed):
    """Of texts of two lengths: "cat" has another place, "on" and "the" are in the second only."""
    page = open_page("model=bert&text=the+animal+sat&view=compare&head=0&query=3")
    second_text(page).fill("the animal on the cat sat")
    before = heed.attend("bert", text="the animal sat").weights[0, 0]
    after = heed.attend("bert", text="the animal on the cat sat").weights[0, 0]
    region = page.get_by_role("region", name="second", exact=True)
    expect(region.locator(".selection b")).to_have_text("“sat”")
    expect(region.locator(".selection")).to_contain_text("(6) looks at")
    difference = page.get_by_role("region", name="difference")
    places = [0, 1, 2, 6, 7]  # of <s> the animal sat </s> in the second
    change = after[6, places].astype(float) - before[3].astype(float)
    largest = 1 + int(abs(change[1:-1]).argmax())
    expect(page.locator(".largest-change")).to_contain_text(
        f"first\u00a0{percent(before[3, largest], 1)} → second\u00a0{percent(after[6, places[largest]], 1)}"
    )
    expect(difference).not_to_contain_text("not in both texts")
    region.get_by_role("application").press("Escape")
    expect(page.locator(".selection")).to_have_text(["Point at a token or a cell; click to pin it.", ""])
    drawn(page)
    bottom, height = "(map) => map.getBoundingClientRect().bottom", page.evaluate("document.body.scrollHeight")
    assert page.locator(".hint").evaluate(bottom) <= page.locator("[aria-label=first] .heat-map").evaluate(bottom)
    page.locator("[aria-label=first] .heat-map").hover()
    expect(page.locator(".hint")).to_be_hidden()  # the cell's number is there
    assert page.evaluate("document.body.scrollHeight") == height
    first = page.get_by_role("region", name="first").get_by_role("application").bounding_box()
    below = 42  # px below the last row of the first, which has 5: rows of both texts have one height
    region.get_by_role("application").hover(position={"x": first["width"] / 2, "y": first["height"] - below})
    expect(region.locator(".tip")).to_have_text(re.compile(r"^“the” \(4\) → "))  # the fifth of the second
    for _ in range(2):
        region.get_by_role("application").press("ArrowRight")
    expect(region.locator(".selection b")).to_have_text("“<s>”")
    page.get_by_role("textbox", name="text", exact=True).fill("the animal on the big cat sat")
    expect(difference).to_contain_text("Hatched: not in both texts.")


def test_texts_of_two_lengths_have_cells_of_one_size(open_page):
    """Side by side, on a page that fits the window, also with a pin."""
    text = "the cat sat on the mat"
    other = f'{{"text":"{text} and the dog ran"}}'
    fragment = f"model=bert&text={text.replace(' ', '+')}&view=compare&other={quote(other)}"
    page = open_page(fragment, closed=True, viewport={"width": 1440, "height": 900})
    first, second = (page.get_by_role("region", name=name, exact=True) for name in ("first", "second"))
    expect(page.locator(".sides.unequal")).to_have_count(1)
    left, top, right, bottom = plot(page)
    width, height = (right - left + 1) / 8, (bottom - top + 1) / 8
    at = {"x": left + 11.1 * width, "y": top + 10.9 * height}  # the last column and the last but one row of 12
    second.get_by_role("application").hover(position=at)
    expect(second.locator(".tip")).to_have_text(re.compile("^“ran” → “</s>” "))
    tops = [one.get_by_role("application").bounding_box()["y"] for one in (first, second)]
    assert tops[0] == tops[1]
    assert page.evaluate("document.documentElement.scrollHeight") <= 900
    second.get_by_role("application").click(position=at)
    expect(second.locator(".selection b")).to_have_text("“ran”")
    assert page.evaluate("document.documentElement.scrollHeight") <= 900


def test_numbers_grow_with_their_cells(open_page):
    """Of 12 tokens in three maps, beside each other in a wide window."""
    text = "the cat sat on the mat and the dog ran"
    fragment = f"model=bert&text={text.replace(' ', '+')}&view=compare"
    page = open_page(fragment, closed=True, viewport={"width": 2000, "height": 1300})
    expect(page.locator(".sides.row")).to_have_count(1)
    left, top, right, bottom = plot(page)
    assert 40 < min((right - left) / 12, (bottom - top) / 12) < 48
    page.evaluate(
        """() => {
            const { fillText } = CanvasRenderingContext2D.prototype;
            window.fonts = [];
            CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
                if (/\\d/.test(text)) window.fonts.push(parseFloat(this.font));
                return fillText.call(this, text, ...at);
            };
        }"""
    )
    page.get_by_role("region", name="first").get_by_role("application").press("ArrowDown")  # pins a cell
    expect(page.locator(".selection b")).to_have_count(2)
    until(lambda: page.evaluate("window.fonts.length") >= 3 * 50)
    assert set(page.evaluate("window.fonts")) <= {12, 13, 14}


def test_a_word_that_only_the_second_has_is_pinned_there(open_page):
    page = open_page(
        "model=bert&text=the+sat&view=compare&other={%22text%22:%22the+cat+sat%22,%22query%22:2,%22key%22:1}"
    )
    first, second = (page.get_by_role("region", name=name, exact=True) for name in ("first", "second"))
    expect(second.locator(".selection b")).to_have_text("“cat”")
    expect(first.locator(".selection")).to_have_text("")
    second.get_by_role("application").press("ArrowDown")  # "sat", which both have
    expect(first.locator(".selection b")).to_have_text("“sat”")
    expect(second.locator(".selection b")).to_have_text("“sat”")
    assert "query=2&" in fragment(page)


@pytest.mark.parametrize(
    ("one", "other", "pairs"),
    [
        ("a b c", "a b c", [0, 1, 2]),
        ("a b c", "a x c", [0, 1, 2]),
        ("a b c", "a x y c", [0, -1, 3]),
        ("a b c d", "b c d e", [-1, 0, 1, 2]),
        ("a b c d", "c d a b", [-1, -1, 0, 1]),
        ("", "a", []),
    ],
)
def test_counterparts(open_page, one, other, pairs):
    page = open_page(PAGE)
    script = "async ([one, other]) => (await import('heed/data/alignment.js')).counterparts(one, other)"
    assert page.evaluate(script, [one.split(), other.split()]) == pairs


def test_tensors_of_the_first_model_are_not_those_of_another(open_page):
    page = open_page("model=scaled_dot_product&view=compare")
    paste(page, query=[[1, 2]], key=[[1, 2], [3, 4]])
    second = page.get_by_role("region", name="what to compare with")
    second.get_by_role("button", name="Tensors and options").click()
    expect(second.get_by_role("radio", name="file or JSON")).to_be_checked()
    second.get_by_role("combobox", name="second model").select_option("additive")
    expect(second.get_by_role("radio", name="example")).to_be_checked()
    expect(page.get_by_role("region", name="second", exact=True).locator("canvas").first).to_be_visible()


def test_both_sides_have_one_scale_and_one_layout(open_page, heed):
    page = open_page(PAGE + "&head=0&other={%22head%22:99,%22layer%22:99}")
    expect(page.get_by_role("combobox", name="second head")).to_have_value("3")  # the last one
    largest = heed.attend("bert", text="the cat sat").weights[0, [0, 3]].max()
    legends = page.locator(".sides .legend")
    expect(legends).to_have_count(3)
    for side in (0, 1):
        label = f"colours from 0 to {percent(largest)}, linear scale"
        expect(legends.nth(side)).to_have_attribute("aria-label", label)

    def sizes(*names):
        drawn(page)
        boxes = (page.locator(".sides .heat-map [role=application]").nth(side).bounding_box() for side in (0, 1))
        return [[box[name] for name in names] for box in boxes]

    first, second = before = sizes("y", "width", "height")
    assert first == second
    second_text(page).fill("the animal sat")
    difference = page.get_by_role("region", name="difference")
    title = "Difference: “the animal sat”, head 3 minus “the cat sat”, head 0"
    expect(difference.get_by_role("heading")).to_have_text(title)
    expect(page.get_by_role("region", name="second", exact=True)).not_to_contain_text("…")
    first, second = sizes("y", "height")
    assert first == second
    assert first[0] == before[0][0]
    page.get_by_role("region", name="what to compare with").get_by_role("button", name="Options").click()
    panel = page.locator(".compared").bounding_box()
    assert panel["y"] + panel["height"] < page.locator(".sides").bounding_box()["y"]  # covers nothing
    assert violations(page) == []
    page.get_by_role("combobox", name="colour range").select_option("each row")
    expect(legends.nth(0)).to_contain_text("of the row’s largest")


def test_the_request_of_the_second_side_is_copied(open_page, heed):
    page = open_page(PAGE + "&head=1")
    second_text(page).fill("the dog ran")
    page.get_by_role("combobox", name="second head").select_option("3")
    expect(page.locator(".sides h2").nth(1)).to_have_text("Second: “the dog ran”, head 3")
    curl = shlex.split(copied(page, "second as curl").replace("\\\n", ""))
    done = subprocess.run([*curl, "--silent"], capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(done.stdout)
    expected = heed.attend("bert", text="the dog ran", outputs=["weights"]).weights[:1, 3:4]
    np.testing.assert_allclose(np.squeeze(answer["weights"]), np.squeeze(expected), atol=1e-6)
    assert '"the dog ran"' in copied(page, "second as Python")
    page.get_by_role("tab", name="Head").click()
    expect(page.get_by_role("button", name="copy second as curl")).to_have_count(0)


@pytest.mark.parametrize("other", ['{"text":"the dog ran on the mat"}', '{"head":3}', '{"model":"multi_head"}'])
def test_a_saved_page_has_both_sides(other, open_page, open_file, tmp_path):
    page = open_page(f"{PAGE}&head=1&other={quote(other)}", closed=True, viewport={"width": 1280, "height": 900})
    expect(page.get_by_role("region", name="difference").locator("canvas").first).to_be_visible()
    parts = ".sides h2, .headline, [aria-label='largest differences'], .sides .legend"
    expect(page.locator(".sides .legend")).to_have_count(2 if '"head"' in other else 3)  # of maps of the same words
    expected = page.locator(parts).all_text_contents()
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    expect(open_file(tmp_path / "saved.html").locator(parts)).to_have_text(expected)
    assert len(expected) >= 6
