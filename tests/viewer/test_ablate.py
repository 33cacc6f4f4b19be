"""The view Ablate: heads are switched off, and what changes is compared with the server's own answers."""

import io
import json
import re
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.support.language_model import LOGITS, VOCABULARY, write_language_model
from tests.support.texts import SPECIAL, WORDS
from tests.support.waiting import until
from tests.viewer.pages import choose, percent, softmax, take, violations

MODEL = "model=encoder&view=ablate"


@pytest.fixture(scope="module")
def answers(heed):
    """Weights [layers, heads, n, n] and output [n, d] of the whole model, and of it without head 1 of layer 0."""
    request = {**heed.describe("encoder").example, "outputs": ["weights", "output"]}
    answers = [heed.attend("encoder", **request, head_mask=[[1, on, 1, 1], [1] * 4]) for on in (1, 0)]
    return [(answer.weights[:, 0].astype(float), answer.output[0].astype(float)) for answer in answers]


def off(page, layer, head):
    return page.get_by_role("button", name=f"switch off layer {layer}, head {head}")


def change_of(row, column, before, after) -> str:
    """A change in words, as percentages that add up; with four digits if these are alike."""
    weights = [before[row, column], after[row, column]]
    said = [percent(weight, 1) for weight in weights]
    by = points(round(weights[1], 3) - round(weights[0], 3), decimals=1)
    if said[0] == said[1]:
        said = [f"{float(f'{100 * weight:.4g}'):g} %" for weight in weights]
        by = points(weights[1] - weights[0])
    how = "more" if weights[1] > weights[0] else "less"
    return f"“{row}” looks {how} at “{column}”: {said[0]} → {said[1]}, {by}"


def points(change, plus="+", decimals=0) -> str:
    """A difference of weights as the page has it."""
    sign = "" if abs(change) < 0.0005 else plus if change > 0 else "−"
    return f"{sign}{percent(abs(change), decimals)[:-2]}\u00a0points"


def test_what_a_head_changes(open_page, answers):
    (before, output), (after, other) = answers
    page = open_page(f"{MODEL}&layer=0&head=1")
    expect(page.locator(".heads-tools")).to_contain_text("all 8 heads on")
    expect(page.get_by_role("button", name="switch all on")).to_be_disabled()
    expect(page.get_by_role("region", name="selected head")).to_have_count(0)
    off(page, 0, 1).click()
    expect(off(page, 0, 1)).to_have_attribute("aria-pressed", "true")
    change = np.abs(after - before).max((-1, -2))
    expect(page.locator(".heads-tools")).to_contain_text("1 of 8 heads off")
    head, row, column = np.unravel_index(np.abs(after - before)[1].argmax(), before[1].shape)
    said = change_of(row, column, before[1, head], after[1, head])
    expect(page.locator(".ablate > .headline")).to_have_text(f"layer 1, head {head} changes most: {said}")
    for (layer, head), largest in np.ndenumerate(change):
        what = "is off" if (layer, head) == (0, 1) else f"changes by at most {points(largest, '')}"
        picture = page.locator(f"[data-kind=change][data-place='{layer}.{head}']")
        expect(picture).to_have_attribute("aria-label", f"layer {layer}, head {head}: {what}")
        expect(picture).to_be_visible()
        expect(picture).to_have_text("" if layer == 0 else percent(largest)[:-2])
    chips = page.get_by_role("region", name="change of the output").get_by_role("listitem")
    expect(chips).to_have_count(len(output))
    for chip, one, two in zip(chips.all(), output, other, strict=True):
        cosine = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
        assert float(chip.get_attribute("title").split(": ")[1]) == pytest.approx(cosine, abs=6e-5)
        assert chip.inner_text().endswith(f" {percent(np.linalg.norm(two - one) / np.linalg.norm(one))}")
    expect(page).to_have_url(re.compile("ablated=%5B%5B0%2C1%5D%5D"))
    most = int(change[1].argmax())  # not the selected head, which is off
    assert_maps(page, 1, most, before[1, most], after[1, most])
    page.set_viewport_size({"width": 1440, "height": 900})
    grid, maps = (page.locator(name).bounding_box() for name in (".grid-of-heads", ".results .sides"))
    assert grid["x"] + grid["width"] < maps["x"]
    outputs = page.get_by_role("region", name="change of the output").bounding_box()
    assert outputs["y"] >= grid["y"] + grid["height"]
    assert outputs["x"] + outputs["width"] < maps["x"]
    page.mouse.move(5, 5)  # a picture under the pointer has its maps
    page.set_viewport_size({"width": 1320, "height": 900})
    names = ("[aria-label=difference]", "[aria-label=first]", "[aria-label=second]", ".changes")
    drawn, first, _, listed = (page.locator(f".results {name}").bounding_box() for name in names)
    assert drawn["y"] + drawn["height"] <= first["y"]
    assert listed["x"] > drawn["x"] + drawn["width"]  # 2 x 2
    page.set_viewport_size({"width": 1800, "height": 900})
    drawn, *sides, listed = (page.locator(f".results {name}").bounding_box() for name in names)
    assert drawn["x"] + drawn["width"] < sides[0]["x"] < sides[1]["x"]
    assert listed["y"] >= sides[0]["y"] + sides[0]["height"]  # below three maps in a row
    ranked = page.locator(".ranking button")
    expect(ranked).to_have_count(4)  # heads of the same layer do not change
    expect(ranked.first).to_have_text(f"layer 1, head {most} {points(change[1, most], '')}")
    least = int(change[1].argmin())
    ranked.last.click()
    assert_maps(page, 1, least, before[1, least], after[1, least])
    assert violations(page) == []


def open_words(open_page, heed, tmp_path, words):
    """The example's tensors with words in place of numbers, without head 1 of layer 0."""
    fields = {name: np.asarray(value).tolist() for name, value in heed.describe("encoder").example.items()}
    (tmp_path / "request.json").write_text(json.dumps({"words": words, **fields}))
    page = open_page(f"{MODEL}&ablated=[[0,1]]")
    choose(page, tmp_path / "request.json")
    expect(page.get_by_role("region", name="change of the output").get_by_role("listitem").first).to_contain_text(
        words[0]
    )
    return page


def test_sentences_and_squares_ignore_punctuation(open_page, heed, tmp_path, answers):
    (before, output), (after, _) = answers
    change = np.abs(after - before)[1]
    _, row, column = np.unravel_index(change.argmax(), change.shape)
    words = [f"w{place}" for place in range(len(output))]
    words[row] = words[column] = "."  # the largest change of all is ignored
    named = [place for place, word in enumerate(words) if word != "."]
    page = open_words(open_page, heed, tmp_path, words)
    largest = change[:, named][:, :, named].max((1, 2))
    head = int(largest.argmax())
    expect(page.locator(".ablate > .headline")).to_have_text(
        re.compile(rf"^layer 1, head {head} changes most: “w.*“w.* \(ignoring special tokens and punctuation\)$")
    )
    square = page.locator(f"[data-kind=change][data-place='1.{head}']")
    said = f"layer 1, head {head}: changes by at most {points(largest[head], '')}"
    expect(square).to_have_attribute("aria-label", said)
    ranked = [f"layer 1, head {at} {points(largest[at], '')}" for at in np.argsort(-largest)]
    expect(page.locator(".results .ranking button")).to_have_text(ranked)
    changes = page.get_by_role("list", name="largest changes").get_by_role("listitem")
    expect(changes).to_have_text([re.compile("^“w.*at “w")] * min(4, len(named) ** 2))
    off(page, 0, 1).click()
    off(page, 1, 2).click()
    most = page.locator(".ablate > .headline")
    expect(most).to_contain_text(re.compile("most at “w.*: [0-9.]+ % \\(ignoring special tokens and punctuation\\)"))


def test_all_tokens_count_where_there_are_no_others(open_page, heed, tmp_path, answers):
    (before, output), (after, _) = answers
    largest = np.abs(after - before)[1].max((1, 2))
    page = open_words(open_page, heed, tmp_path, ["."] * len(output))
    ranked = [f"layer 1, head {at} {points(largest[at], '')}" for at in np.argsort(-largest)]
    expect(page.locator(".results .ranking button")).to_have_text(ranked)


def assert_maps(page, layer, head, before, after):
    """The head's maps have words and scales; its largest change is said."""
    change = after - before
    region = page.get_by_role("region", name="selected head")
    headings = [f"layer {layer}, head {head}: change", "Before: all heads on", "After: layer 0, head 1 off"]
    for heading in headings:
        expect(region.get_by_role("heading", name=heading)).to_be_visible()
    expect(region.get_by_role("application")).to_have_count(3)
    top = max(before.max(), after.max())
    expect(region.get_by_text("same scale")).to_be_visible()
    ends = [region.locator(".legend small").nth(3 * place + 2).inner_text() for place in range(2)]
    assert ends == [percent(np.abs(change).max())[:-2], percent(top)]
    row, column = np.unravel_index(np.abs(change).argmax(), change.shape)
    listed = region.get_by_role("list", name="largest changes").get_by_role("listitem")
    expect(listed.first).to_contain_text(change_of(row, column, before, after))


def test_twelve_heads_fit_a_phone(open_page):
    page = open_page(MODEL, closed=True, viewport={"width": 390, "height": 844})
    grid = page.locator(".grid-of-heads")
    expect(grid.locator(".toggle").first).to_be_visible()
    page.get_by_role("button", name="measure every head").click()
    expect(page.locator(".effects")).to_be_visible()
    page.locator(".ablation").evaluate("(grid) => grid.style.setProperty('--heads', 12)")
    assert grid.evaluate("(grid) => grid.scrollWidth <= grid.clientWidth")
    fits = "(number) => {number.textContent = '<0.1'; return number.scrollWidth <= number.clientWidth;}"
    assert all(number.evaluate(fits) for number in grid.locator(".head-effect").all())
    for switch in grid.locator("button").all():
        assert min(switch.bounding_box()["width"], switch.bounding_box()["height"]) >= 24


def test_the_squares_are_larger_where_there_is_room(open_page):
    page = open_page(MODEL, closed=True, viewport={"width": 1440, "height": 900})
    table, square = page.locator(".ablation"), page.locator(".heads .thumbnail").first
    expect(square).to_be_visible()
    sizes = {}
    for layers in (6, 12):  # the grid of twelve layers is as high as the window
        table.evaluate(
            "(one, n) => ['--heads', '--layers'].forEach((of, i) => one.style.setProperty(of, [12, n][i]))", layers
        )
        sizes[layers] = table.evaluate("(one) => parseFloat(getComputedStyle(one.querySelector('.heads')).minWidth)")
    np.testing.assert_allclose([sizes[6], sizes[12]], [12 * 35 + 76, 12 * 30 + 76])


@pytest.mark.parametrize("width", [390, 1440])
def test_the_first_line_is_where_other_views_have_it(open_page, width):
    page = open_page(MODEL, viewport={"width": width, "height": 900}, closed=True)
    expect(page.locator(".ablate > .note").first).to_be_visible()
    gap = "(view) => view.firstElementChild.getBoundingClientRect().top - view.getBoundingClientRect().top"
    assert page.eval_on_selector(".view.ablate", gap) < 1
    expect(page.locator("[data-kind=switch]").first).to_have_css("border-top-color", "rgba(0, 0, 0, 0)")  # it is on


@pytest.mark.parametrize(("width", "least", "most"), [(390, 0, 8), (412, 0, 8), (600, -36, 0)])
def test_a_narrow_window_has_no_gaps_above_the_headline_and_below_the_map(open_page, width, least, most):
    """The text below a map is in the room of its bars, which a map narrower than 480 px does not have."""
    page = open_page(f"{MODEL}&ablated=[[0,1]]", viewport={"width": width, "height": 844}, closed=True)
    note = page.locator(".ablate > .note").first
    expect(page.locator(".results .changes")).to_be_visible()
    assert note.evaluate("(note) => note.clientHeight / parseFloat(getComputedStyle(note).lineHeight)") < 2.1
    below = "(text, map) => text.getBoundingClientRect().top - map.getBoundingClientRect().bottom"
    for name, text in (("difference", ".changes"), ("first", "[aria-label=first] .hint")):
        canvas = page.locator(f".results [aria-label={name}] canvas").first
        until(
            lambda c=canvas, t=text: (
                least <= page.locator(f".results {t}").last.evaluate(below, c.element_handle()) < most
            )
        )


def test_the_numbers_are_saved(open_page, answers):
    (before, output), (after, other) = answers
    page = open_page(f"{MODEL}&ablated=[[0,1]]")
    expect(page.locator(".headline").first).to_contain_text("changes most")
    header, *lines = take(page, "CSV").path().read_text().split()
    assert header == "layer,head,off,largest_change,effect"
    change = np.abs(after - before).max((-1, -2))
    for line, (layer, head) in zip(lines, np.ndindex(2, 4), strict=True):
        is_off = (layer, head) == (0, 1)
        *names, largest, effect = line.split(",")
        assert (names, effect) == ([str(layer), str(head), str(is_off).lower()], "")
        assert largest == "" if is_off else float(largest) == pytest.approx(change[layer, head], abs=1e-6)
    saved = json.loads(take(page, "JSON").path().read_text())
    assert (saved["model"], saved["ablated"], saved["next_tokens"]) == ("encoder", [[0, 1]], None)
    assert [(head["layer"], head["head"]) for head in saved["heads"] if head["off"]] == [(0, 1)]
    found = [(token["cosine"], token["relative_change"]) for token in saved["tokens"]]
    cosines = (output * other).sum(-1) / np.linalg.norm(output, axis=-1) / np.linalg.norm(other, axis=-1)
    shares = np.linalg.norm(other - output, axis=-1) / np.linalg.norm(output, axis=-1)
    np.testing.assert_allclose(found, np.stack([cosines, shares], -1), atol=1e-6)


def test_a_saved_page_says_which_heads_are_off(open_page, open_file, tmp_path):
    page = open_page(MODEL.replace("ablate", "matrix") + "&ablated=[[0,1]]")
    button = page.get_by_role("note").get_by_role("button", name="switch all on")
    expect(button).to_be_visible()
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    note = open_file(tmp_path / "saved.html").get_by_role("note")
    expect(note).to_have_text("1 of 8 heads is switched off.")  # it has no other run
    button.click()
    expect(button).to_have_count(0)


@pytest.mark.parametrize("view", ["ablate", "model"])
def test_no_cell_is_lost_in_a_picture_smaller_than_its_cells(open_page, view):
    """Each head has one weight of nearly 1, all others are 1 / 63 or less."""
    heads, length = 12, 63
    scores = np.zeros((heads, length, length))
    places = [(5 * head, 62 - 5 * head - head % 3) for head in range(heads)]
    for head, place in enumerate(places):
        scores[head][place] = 30
    query, key = scores * np.sqrt(length), np.broadcast_to(np.eye(length), scores.shape)
    fields = {"query": query, "key": key, "value": key}
    tensors = {"words": [f"w{i}" for i in range(length)], **{name: one[None].tolist() for name, one in fields.items()}}
    page = open_page(f"model=scaled_dot_product&sentence=true&view={view}&palette=greys", tensors=tensors)
    canvas = page.locator(".thumbnail canvas")
    expect(canvas).to_have_count(heads)
    for width in (390, 1280):  # the pictures are drawn again
        page.set_viewport_size({"width": width, "height": 900})
        size = canvas.first.bounding_box()["width"]
        pooled = f"(all) => all.every(({{ width }}) => width <= {min(size + 1, length)})"
        until(partial(canvas.evaluate_all, pooled))
        for head, (row, column) in enumerate(places):
            grey = np.asarray(Image.open(io.BytesIO(canvas.nth(head).screenshot())).convert("L"))
            found = np.argwhere(grey < 64)
            assert len(found)
            centre = (np.array([row, column]) + 0.5) / length
            np.testing.assert_allclose((found.mean(0) + 0.5) / len(grey), centre, atol=2 / size)


def test_rounding_of_weights_of_a_long_text_is_no_change(open_page, heed, tmp_path):
    """Small pictures of more than 64 tokens have 8 bits."""
    vocabulary = heed.describe("encoder").config["vocab_size"]
    mask = np.array([[1, 0, 1, 1], [1] * 4])
    for seed in range(20):
        ids = np.random.default_rng(seed).integers(vocabulary, size=(1, 80))
        one, other = (heed.attend("encoder", input_ids=ids, head_mask=on).weights for on in (np.ones((2, 4)), mask))
        if one.max() != other.max():  # they have different steps
            break
    np.save(tmp_path / "input_ids.npy", ids)
    page = open_page(f"{MODEL}&ablated=[[0,1]]")
    choose(page, tmp_path / "input_ids.npy")
    expect(page.get_by_role("region", name="change of the output").get_by_role("listitem")).to_have_count(80)
    names = page.locator(".results .ranking button")
    expect(names).to_have_text([re.compile("^layer 1, ")] * 4)


def test_with_the_keyboard_and_by_layer(open_page):
    page = open_page(MODEL)
    table = page.locator(".heads-tools")
    off(page, 0, 0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(off(page, 1, 1)).to_be_focused()
    page.keyboard.press("Space")
    expect(off(page, 1, 1)).to_have_attribute("aria-pressed", "true")
    expect(off(page, 1, 1)).to_be_focused()
    for kind in ("change", "switch"):  # Tab reaches one of each
        expect(page.locator(f"[data-kind={kind}][tabindex='0']")).to_have_attribute("data-place", "1.1")
    page.get_by_role("button", name="layer 0: all off").click()
    expect(table).to_contain_text("5 of 8 heads off")
    page.get_by_role("button", name="layer 0: all on").click()
    expect(table).to_contain_text("1 of 8 heads off")
    expect(off(page, 1, 1)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="switch all on").click()
    expect(table).to_contain_text("all 8 heads on")


def test_only_answers_of_the_same_heads_are_compared(open_page):
    page = open_page(f"{MODEL}&ablated=[[0,1]]")
    table = page.locator(".heads-tools")
    expect(page.locator(".ablate > .headline")).to_contain_text("changes most")
    chips = page.get_by_role("region", name="change of the output")
    expect(chips).to_be_visible()
    page.route("**/infer", lambda _: None)  # never answered
    off(page, 0, 2).click()
    off(page, 0, 3).click()
    expect(table).to_contain_text("3 of 8 heads off")
    expect(page.locator(".ablate > .headline")).to_be_empty()
    expect(chips).to_be_hidden()


def test_a_block_of_one_layer(open_page):
    page = open_page("model=multi_head&view=ablate")
    for head in range(8):
        off(page, 0, head).click()
    expect(page.locator(".heads-tools")).to_contain_text("8 of 8 heads off")
    chips = page.get_by_role("region", name="change of the output").get_by_role("listitem")
    expect(chips.first).to_contain_text("%")
    expect(chips.first).not_to_contain_text(" 0.0")


def test_the_next_tokens_of_a_language_model(open_page, shared_server, tmp_path_factory):
    """Without its head, the logits of the model are 0: all tokens are alike."""
    folder = tmp_path_factory.mktemp("words")
    write_language_model(folder / "words" / "1")
    tokens = [*SPECIAL, *WORDS]
    page = open_page("model=words&text=the+cat&view=ablate", url=shared_server(folder).url)
    off(page, 0, 0).click()
    rows = page.get_by_role("region", name="next tokens").locator("tbody tr")
    alike = rows.locator("td:last-child", has_text=re.compile(rf"^\s*{percent(1 / VOCABULARY)}"))
    expect(alike.nth(4)).to_be_visible()  # the first five of this list
    chances = softmax(LOGITS[tokens.index("</s>")].astype(np.float64))
    names = [*tokens, *(f"#{index}" for index in range(len(tokens), VOCABULARY))]
    likely = np.argsort(-chances)[:5]
    shown = {row.get_by_role("rowheader").inner_text(): row.locator("td").first for row in rows.all()}
    likeliest = [shown.pop(names[index]) for index in likely]
    for cell, index in zip(likeliest, likely, strict=True):
        assert cell.inner_text() == percent(chances[index])
    widths = [cell.locator(".chance").bounding_box()["width"] for cell in likeliest]
    np.testing.assert_allclose(np.array(widths) / widths[0], chances[likely] / chances[likely[0]], atol=0.02)
    assert 0 < len(shown) <= 5
    exact = {name: percent(chances[names.index(name)]) for name in shown}  # no bounds
    assert {name: cell.inner_text() for name, cell in shown.items()} == exact
    expect(page.get_by_role("region", name="next tokens").locator(".note")).to_have_count(0)


def test_the_picture_shows_the_head_that_changes_most(open_page, answers):
    (before, _), (after, _) = answers
    page = open_page(f"{MODEL}&layer=0&head=1&ablated=[[0,1]]")
    expect(page.locator(".headline").first).to_contain_text("changes most")
    svg = ElementTree.fromstring(take(page, "SVG").path().read_text())
    most = int(np.abs(after - before)[1].max((-1, -2)).argmax())
    assert ["".join(panel.find("{*}text").itertext()) for panel in svg.findall("{*}g")] == [
        f"Layer 1, head {most}, {title}"
        for title in ("change: after minus before", "before: all heads on", "after: layer 0, head 1 off")
    ]
