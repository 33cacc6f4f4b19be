"""The view Lens: each layer's most likely tokens are those of the API."""

import csv
import io
import json
import subprocess
from urllib.parse import urlencode
from xml.etree import ElementTree

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.support.waiting import until
from tests.viewer.pages import copied, fragment, percent, take, violations

TEXT = "the animal did not cross"
WORDS = ["<s>", *TEXT.split(), "</s>"]


@pytest.fixture(scope="module")
def url(shared_server, generating):
    return shared_server(generating / "models").url


@pytest.fixture
def lens(url):
    """The API's answer."""
    return httpx.post(f"{url}/v1/lens/gpt", json={"text": TEXT, "lens_top_k": 5}, timeout=60).json()


@pytest.fixture
def page(open_page, url):
    page = open_page(urlencode({"model": "gpt", "text": TEXT, "view": "lens"}), url=url)
    expect(page.get_by_role("gridcell")).to_have_count(21)
    return page


def named(lens, layer, position) -> list[str]:
    ids, tokens = (lens["lens"][name][layer][position] for name in ("indices", "tokens"))
    return [token or f"#{id}" for id, token in zip(ids, tokens, strict=True)]


def guesses(page: Page) -> list[list[str]]:
    rows = page.get_by_role("region", name="most likely tokens").locator("tbody tr")
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def test_a_sentence_says_from_which_layer_on_the_output_is_known(page, lens):
    for column in range(len(WORDS)):
        page.get_by_role("gridcell").nth(2 * len(WORDS) + column).click()
        likeliest = [named(lens, layer, column)[0] for layer in range(3)]
        first = next(layer for layer in range(3) if set(likeliest[layer:]) == {likeliest[-1]})
        word = f"“{likeliest[-1]}”"
        sentence = [
            f"from the embeddings on, the prediction is {word}.",
            f"from layer 0 on, the prediction is {word}.",
            f"{word} becomes the prediction only in the last layer.",
        ][first]
        if (before := likeliest.index(likeliest[-1])) < first:
            where = ["the embeddings", "layer 0"][before]
            sentence = f"{word} is the most likely token of {where}, but the prediction settles only in the last layer."
        expect(page.locator(".headline")).to_have_text(f"After “{WORDS[column]}”: {sentence}")
    table, details = (page.locator(name).bounding_box() for name in (".lens-frame", ".guesses"))
    assert details["x"] >= table["x"] + table["width"]  # beside it, not below an empty half


def test_cells_and_details_are_those_of_the_api(page, lens):
    cells = page.get_by_role("gridcell").all_inner_texts()
    assert cells == [named(lens, layer, position)[0] for layer in range(3) for position in range(7)]
    expect(page.get_by_role("columnheader")).to_have_text(["token", *WORDS])
    page.get_by_role("gridcell").nth(7 + 2).click()
    frame = "(cell) => [getComputedStyle(cell).outlineColor, getComputedStyle(cell).boxShadow]"
    dark, light = page.get_by_role("gridcell").nth(7 + 2).evaluate(frame)  # one is seen on any colour
    assert dark == page.evaluate("getComputedStyle(document.body).color")
    assert dark in light
    assert "255, 255, 255" in light
    shown = guesses(page)
    assert [name for name, _ in shown] == named(lens, 1, 2)
    assert [text for _, text in shown] == [percent(share) for share in lens["lens"]["probabilities"][1][2]]
    region = page.get_by_role("region", name="most likely tokens")
    expect(region.get_by_role("heading")).to_have_text("after layer 0, at “animal”")
    expect(region).to_contain_text(f"The next token, “did”, has rank {lens['ranks'][1][2]} of 60.")
    page.get_by_role("gridcell").nth(7 + 6).hover()
    expect(region).to_contain_text("The text ends here: no token to compare with.")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("gridcell").nth(14 + 3)).to_be_focused()
    assert [name for name, _ in guesses(page)] == named(lens, 2, 3)
    assert violations(page) == []


def test_the_scale_ends_at_the_largest_probability_of_the_layers(page, lens):
    cells, scale = page.get_by_role("gridcell"), page.locator(".legend")
    largest = np.array(lens["lens"]["probabilities"])[..., 0]
    top = largest[1:].max()
    assert scale.locator("small").all_inner_texts() == ["0", percent(top / 2), percent(top)]
    backs = [cell.evaluate("(cell) => cell.style.backgroundColor") for cell in cells.all()]
    assert set(backs[:7]) == {""}  # the embeddings
    strongest = scale.locator(".scale").evaluate("(box) => box.style.backgroundImage.match(/rgb[^)]*[)]/g).at(-1)")
    assert backs[7:][largest[1:].argmax()] == strongest
    note = page.get_by_text("No colour: the embeddings")
    expect(note).to_be_visible()
    saved = "".join(ElementTree.fromstring(take(page, "SVG").path().read_text()).itertext())
    assert percent(top) in saved
    assert "No colour: the embeddings" in saved
    page.get_by_role("combobox", name="colour").select_option("rank of the token that comes next")
    expect(note).to_have_count(0)
    assert cells.first.evaluate("(cell) => cell.style.backgroundColor") != ""


def test_lines_over_the_layers_show_the_outputs_token_and_the_next_one(page, lens):
    region = page.get_by_role("region", name="most likely tokens")
    names = ["embeddings", "after layer 0", "after layer 1"]
    for column in range(len(WORDS) - 1):
        page.get_by_role("gridcell").nth(len(WORDS) + column).click()
        shares = [row[column] for row in lens["lens"]["output_probabilities"]]
        texts = [percent(share) if share >= 5e-4 else f"{float(f'{100 * share:.2g}'):g}\u00a0%" for share in shares]
        ranks = [row[column] for row in lens["ranks"]]
        chances, places = (region.get_by_role("img").nth(i) for i in range(2))
        title = f"Probability of the output’s token, “{named(lens, 2, column)[0]}”: "
        probable = ", ".join(f"{name} {text}" for name, text in zip(names, texts, strict=True))
        expect(chances).to_have_attribute("aria-label", title + probable)
        title = f"Rank of the token that comes next, “{WORDS[column + 1]}”: "
        ranked = ", ".join(f"{name} {rank}" for name, rank in zip(names, ranks, strict=True))
        expect(places).to_have_attribute("aria-label", title + ranked)
        assert chances.locator("circle").count() == 3
        assert chances.locator(".line").get_attribute("d").count("M") == 1  # without a gap
        is_wide = max(shares) / min(shares) > 20
        marks = chances.locator("text[text-anchor=end]").all_text_contents()
        tens = {"100\u00a0%", "10\u00a0%", "1\u00a0%", "0.1\u00a0%", "0.01\u00a0%", "0.001\u00a0%"}
        assert {*marks} <= tens if is_wide else marks == ["0", percent(max(shares))]
        assert places.locator("text[text-anchor=end]").all_text_contents() == ["1", "10"]
        axis, first = (places.get_by_text(text, exact=True).bounding_box() for text in ("layer", "emb."))
        assert first["x"] - axis["x"] - axis["width"] > 12
        assert places.locator(".value").all_text_contents() == [str(ranks[1]), "0"]  # of the selected layer
    page.get_by_role("gridcell").last.click()
    expect(region.get_by_role("img")).to_have_count(1)  # no token comes next


def test_a_text_that_ends_opens_with_the_token_before_the_last(open_page, url):
    def end(route):
        answer = route.fetch().json()
        answer["lens"]["tokens"][-1][-1][0] = "</s>"
        route.fulfill(json=answer)

    page = open_page(urlencode({"model": "gpt", "text": TEXT, "view": "head"}), url=url)
    page.route("**/v1/lens/gpt", end)
    page.get_by_role("tab", name="Lens").click()
    expect(page.locator(".lens > .headline")).to_contain_text(f"After “{TEXT.split()[-1]}”: ")


def test_a_pinned_change_is_seen_in_every_layer(open_page, url, lens):
    patch = {"source": "the street did not cross", "at": "hidden", "cell": [0, 2]}
    page = open_page(urlencode({"model": "gpt", "text": TEXT, "view": "lens", "patch": json.dumps(patch)}), url=url)
    page.get_by_role("checkbox", name="residual stream, into layer 0, “animal”").check()
    change = {"at": "hidden", "layers": 0, "positions": 2, "from": {"text": patch["source"]}}
    body = {"text": TEXT, "lens_top_k": 5, "interventions": [change]}
    changed = httpx.post(f"{url}/v1/lens/gpt", json=body, timeout=60).json()
    cells = page.get_by_role("gridcell")
    places = [(layer, position) for layer in range(3) for position in range(7)]
    expect(cells).to_have_text([named(changed, *place)[0] for place in places])
    is_other = [named(changed, *place)[0] != named(lens, *place)[0] for place in places]
    assert [("differs" in (cell.get_attribute("class") or "")) for cell in cells.all()] == is_other
    assert any(is_other)
    head, line, *_ = csv.reader(io.StringIO(take(page, "CSV").path().read_text()))
    assert dict(zip(head, line, strict=True))["change"].startswith("residual stream, into layer 0, “animal”")
    saved = json.loads(take(page, "JSON").path().read_text())
    assert (len(saved["without_change"]), saved["change"]) == (3, line[-1])
    assert line[-1] in take(page, "SVG").path().read_text()


def test_a_small_window_shows_that_tokens_are_beyond_its_edges(open_page, url):
    page = open_page(
        urlencode({"model": "gpt", "text": TEXT, "view": "lens"}), url=url, viewport={"width": 390, "height": 844}
    )
    frame, name = page.locator(".lens-frame"), page.get_by_role("rowheader").first
    fades = "(th) => Number(getComputedStyle(th, '::after').opacity)"
    edge = "(box) => parseFloat(getComputedStyle(box).getPropertyValue('--fade'))"
    until(lambda: (name.evaluate(fades), frame.evaluate(edge)) == (1, 0))  # it begins with the last token
    left = name.bounding_box()["x"]
    frame.evaluate("(box) => (box.scrollLeft = 0)")
    until(lambda: name.evaluate(fades) == 0 and frame.evaluate(edge) > 0)
    assert abs(name.bounding_box()["x"] - left) <= 1  # it stays in sight
    assert name.evaluate("(th) => parseFloat(getComputedStyle(th, '::after').width)") <= 4  # not as far as a word
    assert float(frame.evaluate("(box) => getComputedStyle(box).getPropertyValue('--faded')")) * 48 < 8
    expect(page.locator(".guesses th").first).to_have_attribute("title", page.locator(".guesses th").first.inner_text())


def test_many_tokens_have_wide_columns_and_a_small_window_shows_whole_ones(open_page, url):
    text = " ".join(["the animal did not cross"] * 8)
    page = open_page(urlencode({"model": "gpt", "text": text, "view": "lens"}), url=url)
    frame, cells = page.locator(".lens-frame"), page.get_by_role("gridcell")
    expect(cells).to_have_count(3 * 42)
    assert cells.first.bounding_box()["width"] >= 84
    assert cells.first.evaluate("(cell) => cell.scrollWidth <= cell.clientWidth")  # no word is cut
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    expect(cells.nth(41)).to_be_in_viewport()
    name, first, last = page.get_by_role("rowheader").first, cells.nth(37), cells.nth(41)
    ends = "(cell) => ['left', 'right'].map((side) => cell.getBoundingClientRect()[side])"
    until(lambda: 0 <= first.evaluate(ends)[0] - name.evaluate(ends)[1] <= 2.5)
    assert 0 <= frame.evaluate(ends)[1] - last.evaluate(ends)[1] <= 3
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_role("textbox", name="text").fill("the animal did not cross the street because")
    expect(cells).to_have_count(3 * 10)  # which fit beside the settings
    widths = "(box) => [box.scrollWidth, box.clientWidth]"
    until(lambda: len({*frame.evaluate(widths)}) == 1)


def test_a_large_window_has_large_cells_and_bars(page):
    sizes = []
    for width, height in ((1440, 900), (2560, 1440)):  # of two layers, whose rows are no taller than three lines
        page.set_viewport_size({"width": width, "height": height})
        cell, row = (page.locator(name).bounding_box() for name in (".lens-table td >> nth=-1", ".guesses tr >> nth=0"))
        bar, number = page.locator(".guesses .chance").first.bounding_box(), page.locator(".guesses td").first
        assert row["width"] >= 0.95 * page.locator(".guesses").bounding_box()["width"]
        assert bar["x"] + bar["width"] <= number.bounding_box()["x"] + number.bounding_box()["width"]
        assert page.evaluate("document.documentElement.scrollHeight") <= height
        sizes.append((cell["height"], bar["width"]))
    assert cell["width"] >= 175
    assert [cell_height for cell_height, _ in sizes] == [pytest.approx(48, abs=1), pytest.approx(54, abs=1)]
    assert sizes[1][1] > 1.5 * sizes[0][1]


@pytest.mark.parametrize(("column", "is_cut"), [("2.5rem", False), ("1.5rem", True)])
def test_a_long_word_is_small_and_if_that_is_not_enough_cut(page, column, is_cut):
    page.locator(".lens-frame").evaluate("(frame, width) => frame.style.setProperty('--column', width)", column)
    words = page.get_by_role("gridcell").locator("span")
    lengths = words.evaluate_all("(words) => words.map((word) => word.textContent.length)")
    assert max(lengths) >= 6
    longest = words.nth(lengths.index(max(lengths)))
    assert longest.evaluate("(word) => parseFloat(getComputedStyle(word).fontSize)") == pytest.approx(
        9.5 if is_cut else 11, abs=0.3
    )
    assert longest.evaluate("(word) => word.scrollWidth > word.clientWidth") == is_cut
    heights = words.evaluate_all(
        "(words) => words.map((word) => word.clientHeight / parseFloat(getComputedStyle(word).fontSize))"
    )
    assert max(heights) < 2  # in one line
    longest.hover()
    expect(longest).to_have_attribute("title", longest.text_content() if is_cut else "")


def test_link_numbers_and_saved_page(page, open_page, open_file, url, lens, tmp_path):
    page.get_by_role("combobox", name="colour").select_option("rank of the token that comes next")
    page.get_by_role("gridcell").nth(7 + 1).click()
    head, *lines = csv.reader(io.StringIO(take(page, "CSV").path().read_text()))
    assert head[:6] == ["layer", "after", "position", "token", "rank_of_next", "token_1"]
    assert [line[1] for line in lines[::7]] == ["embeddings", "after layer 0", "after layer 1"]
    assert [int(line[4]) if line[4] else None for line in lines] == [rank for row in lens["ranks"] for rank in row]
    probabilities = np.array([line[6::2] for line in lines], float).reshape(3, 7, 5)
    np.testing.assert_allclose(probabilities, lens["lens"]["probabilities"], rtol=1e-6)
    answer = json.loads(subprocess.run(["bash", "-c", copied(page, "curl")], capture_output=True, check=True).stdout)
    assert answer["lens"] == lens["lens"]
    assert head[-1] == "probability_of_output"
    of_output = lens["lens"]["output_probabilities"]
    assert [float(line[-1]) for line in lines] == pytest.approx([share for row in of_output for share in row])
    assert json.loads(take(page, "JSON").path().read_text())["output_probabilities"] == of_output
    svg = ElementTree.fromstring(take(page, "SVG").path().read_text())
    assert len(svg.findall(".//{*}rect")) == 1 + 21 + 64  # with the background and the scale
    texts = svg.findall(".//{*}text")
    assert [text.text for text in texts[-5:-2]] == ["60", "8", "1"]
    underlined = [rank == 1 for row in lens["ranks"] for rank in row]
    assert texts[-1].text.endswith("Underlined: the token that comes next.") == any(underlined)
    settled = [named(lens, i, j)[0] == named(lens, 2, j)[0] for i in range(3) for j in range(7)]
    cells = [text for text in texts if text.get("font-size") == "11" and text.get("fill")]
    assert [text.get("text-decoration") == "underline" for text in cells] == underlined
    assert [text.get("font-weight") == "700" for text in cells] == settled
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    for other in (open_page(fragment(page).removeprefix("#"), url=url), open_file(tmp_path / "saved.html")):
        expect(other.get_by_role("gridcell").nth(7 + 1)).to_have_attribute("aria-selected", "true")
        expect(other.get_by_role("combobox", name="colour")).to_have_value("rank")
        assert guesses(other) == guesses(page)


def test_a_saved_page_draws_what_it_knows(page, open_file, tmp_path):
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    text = (tmp_path / "saved.html").read_text()
    start = text.index('id="data">') + len('id="data">')
    data, end = json.JSONDecoder().raw_decode(text[start:])
    assert np.shape(data["lens"]["outputProbabilities"]) == (3, 7)
    *_, shown = page.get_by_role("region", name="most likely tokens").get_by_role("img").all()
    assert "<" not in shown.get_attribute("aria-label")
    for layer in data["lens"]["guesses"][:2]:
        layer[-1] = [guess | {"id": -1} for guess in layer[-1]]  # the output's token is not among them
    for is_old in (False, True):
        if is_old:
            del data["lens"]["outputProbabilities"]
        content = json.dumps(data).replace("<", "\\u003c")
        (tmp_path / "changed.html").write_text(text[:start] + content + text[start + end :])
        chart = open_file(tmp_path / "changed.html").get_by_role("region", name="most likely tokens").get_by_role("img")
        expect(chart.locator("circle")).to_have_count(1 if is_old else 3)
        label = chart.get_attribute("aria-label")
        assert (label == shown.get_attribute("aria-label")) != is_old
        assert label.count(" <\u00a0") == (2 if is_old else 0)
