"""Tokens as they are made, with what they looked at and their alternatives: the numbers are those of the API."""

import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from urllib.parse import unquote, urlencode
from xml.etree import ElementTree

import httpx
import numpy as np
import pytest
from PIL import Image, ImageColor
from playwright.sync_api import Locator, Page, expect

from tests.support.waiting import until
from tests.viewer.generate.words import LISTED, PROMPT, TEXT, expect_end, expect_words, row, shown, tokens
from tests.viewer.pages import copied, drawn, expect_row, fragment, percent, take, violations


def darkness(page: Page, words: str) -> np.ndarray:
    """How dark each word is, from 0 to 1, as the browser painted it: a pixel in its corner."""
    drawn(page)
    grey = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"))
    boxes = "(words) => words.map((word) => word.getBoundingClientRect()).map(({ left, top }) => [left + 3, top + 4])"
    places = np.array(page.eval_on_selector_all(words, boxes), int)
    return np.array([1 - grey[y, x] / 255 for x, y in places])


def heads_by_weight(page: Page) -> Locator:
    return page.get_by_role("region", name="heads by weight").get_by_role("button")


def test_tokens_weights_and_alternatives_are_those_of_the_api(open_text, generate):
    answer = generate(outputs=["weights"], layers=1, heads=2)
    page = open_text(layer=1, head=2, token=4)
    expect_words(page, tokens(answer))
    expect(page.locator(".word.prompt")).to_have_text(PROMPT)
    expect_row(page, row(answer["generated"][4]))
    items = page.get_by_role("region", name="next tokens").get_by_role("listitem")
    expect(items).to_have_count(LISTED)
    for item, token in zip(items.all(), answer["generated"][4]["next_tokens"], strict=True):
        name, percent = item.locator(".name").inner_text(), item.locator("b").inner_text()
        assert name == (token["token"] or f"#{token['id']}")
        assert float(percent.removesuffix("\u00a0%")) == pytest.approx(100 * token["probability"], abs=0.06)
    own = page.get_by_role("region", name="next tokens").locator("[aria-current=true] .name")
    expect(own).to_have_text(tokens(answer)[4])


@pytest.mark.parametrize(
    ("choices", "options"),
    [
        ({"head": "3"}, {"layers": 0, "heads": 3}),
        ({"layer": "1"}, {"layers": 1, "heads": 0}),
        ({"show": "mean of heads"}, {"layers": 0, "reduce_heads": "mean"}),
        ({"show": "max. of layers"}, {"heads": 0, "reduce_layers": "max"}),
    ],
    ids=str,
)
def test_other_heads_are_asked_for_when_they_are_looked_at(open_text, generate, choices, options):
    """The stream has one head; another comes from a run over the text, within the rounding of float32."""
    page = open_text(token=7)
    expect(heads_by_weight(page)).to_have_count(8)  # both layers have four
    asked = []
    page.on("request", lambda request: request.method == "POST" and asked.append(request.url.split("/")[-1]))
    for name, value in choices.items():
        page.get_by_role("combobox", name=name, exact=True).select_option(value)
    expect_row(page, row(generate(outputs=["weights"], **options)["generated"][7]))
    assert asked == ["infer"]


def test_a_generated_word_colours_what_it_looked_at(open_text, generate):
    answer = generate(outputs=["weights"], layers=0, heads=0)
    page = open_text()
    rows = [row(token) for token in answer["generated"]]
    top = max(weights.max() for weights in rows)
    for place in (2, 9):
        page.locator(".word.new").nth(place).hover()
        dark = darkness(page, ".word")
        seen = len(PROMPT) + place
        strong = np.flatnonzero(rows[place] > 0.1 * top)  # lower levels fade into the page
        assert np.argmax(dark) == np.argmax(rows[place])
        np.testing.assert_array_equal(np.argsort(dark[strong]), np.argsort(rows[place][strong]))
        assert not dark[seen:].any()  # later words
    page.locator(".word.prompt").nth(1).hover()  # by which generated words it was looked at
    weights = np.array([weights[1] for weights in rows])
    assert np.argmax(darkness(page, ".word.new")) == np.argmax(weights)


def test_a_link_without_a_head_opens_the_one_that_looks_most_from_the_last_word(open_page, url):
    page = open_page(urlencode({"model": "gpt", "text": TEXT, "view": "generate"}), url=url)
    expect_end(page)
    first = heads_by_weight(page).first
    expect(first).to_have_attribute("aria-current", "true")
    layer, head = re.match(r"layer (\d), head (\d)", first.inner_text()).groups()
    assert f"&layer={layer}&head={head}" in fragment(page)


def test_an_alternative_goes_on_from_its_place(open_text, generate):
    first = generate()
    page = open_text(token=3)
    (before, instead) = first["generated"][:3], first["generated"][3]["next_tokens"][1]
    prompt = [*first["input_ids"], *(token["id"] for token in before), instead["id"]]
    page.get_by_role("region", name="next tokens").get_by_role("button").nth(1).click()
    rest = generate(input_ids=prompt, outputs=["weights"], layers=0, heads=0)
    words = [*tokens(first)[:3], instead["token"] or f"#{instead['id']}", *tokens(rest)]
    expect_words(page, words)
    expect(page.locator(".word.chosen")).to_have_text([words[3]])
    expect_end(page)
    expect(page.locator(".ending")).to_contain_text(f"{len(words)} tokens, 4 of them kept")
    own = page.get_by_role("region", name="next tokens").locator("[aria-current=true]")
    expect(own.locator(".name")).to_have_text(words[3])  # it stays selected,
    expect(own).to_be_focused()  # and keys go on from it
    page.get_by_role("button", name="Generate", exact=True).click()
    expect_words(page, words)
    page.locator(".word.new").nth(6).click()
    expect_row(page, row(rest["generated"][2]))
    page.locator(".word.new").nth(1).click()  # a word before it keeps its alternatives
    expect(page.get_by_role("region", name="next tokens").get_by_role("listitem")).to_have_count(LISTED)
    body = json.loads(shlex.split(copied(page, "curl").replace("\\\n", ""))[-1])
    assert body["input_ids"] == prompt
    page.reload()
    expect_words(page, words)  # as the link says
    expect_end(page)
    expect_row(page, row(generate(outputs=["weights"], layers=0, heads=0)["generated"][1]))
    expect(page.get_by_role("region", name="next tokens").get_by_role("button")).to_have_count(LISTED)
    page.get_by_role("button", name="undo the choice").click()
    expect_words(page, tokens(first))


def test_temperature_seed_and_length_are_in_the_link_and_in_the_command(open_text, generate):
    page = open_text()
    page.get_by_role("spinbutton", name="length").fill("9")
    page.get_by_role("spinbutton", name="temperature").fill("1.5")
    page.get_by_role("spinbutton", name="seed").fill("7")
    answer = generate(max_new_tokens=9, temperature=1.5, seed=7)
    expect_words(page, tokens(answer))
    expect_end(page)
    assert {"length=9", "temperature=1.5", "seed=7"} <= {*unquote(fragment(page)).removeprefix("#").split("&")}
    page.reload()
    expect_words(page, tokens(answer))
    curl = shlex.split(copied(page, "curl").replace("\\\n", ""))
    done = subprocess.run([*curl, "--silent"], capture_output=True, text=True, timeout=60, check=True)
    same = json.loads(done.stdout)
    assert tokens(same) == tokens(answer)
    assert np.shape(same["generated"][0]["weights"]) == (1, 1, 1, len(PROMPT))
    done = subprocess.run([sys.executable, "-c", copied(page, "Python")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, answer["text"]), done.stderr
    page.keyboard.press("Escape")  # the menu is above the parameters
    page.get_by_role("button", name="another seed").click()
    until(lambda: shown(page) != tokens(answer))


def test_options_of_drawing_are_in_the_link_and_in_the_command(open_text, generate):
    page = open_text(temperature=1.5, seed=3)
    page.get_by_role("spinbutton", name="top_k").fill("3")
    expect_words(page, tokens(generate(temperature=1.5, seed=3, top_k=3)))
    page.get_by_role("spinbutton", name="top_k").fill("")
    page.get_by_role("spinbutton", name="top_p").fill("0.5")
    whole = generate(temperature=1.5, seed=3, top_p=0.5)
    expect_words(page, tokens(whole))
    stop = next(token["token"] for token in whole["generated"][4:] if token["text"])
    page.get_by_role("textbox", name="stop").fill(f"{stop}\nno\\nsuch text")
    answer = generate(temperature=1.5, seed=3, top_p=0.5, stop=[stop, "no\nsuch text"])
    assert answer["finish_reason"] == "stop"
    expect_end(page, ", then a stop text")
    expect_words(page, tokens(answer))
    expect(page.locator(".more")).to_have_text(f'top_p 0.5, stop "{stop}" "no\\nsuch text"')
    page.reload()
    expect_words(page, tokens(answer))
    expect(page.get_by_role("textbox", name="stop")).to_have_value(f"{stop}\nno\\nsuch text")
    body = json.loads(shlex.split(copied(page, "curl").replace("\\\n", ""))[-1])
    assert {name: body[name] for name in ("top_p", "stop")} == {"top_p": 0.5, "stop": [stop, "no\nsuch text"]}
    assert "top_k" not in body


def test_heads_are_ranked_by_what_the_pinned_word_looked_at(open_text, generate):
    """Without special tokens, as in the other views; below, every head of the layer in full."""
    token = generate(outputs=["weights"])["generated"][6]
    weights = np.array(token["weights"])[:, :, 0]  # [layers, heads, keys]
    page = open_text(token=6, layer=1)
    words = [*PROMPT, *tokens(generate())][: weights.shape[-1]]
    special = [place for place, word in enumerate(words) if re.fullmatch("<.*>", word)]
    largest = np.delete(weights, special, -1).max(-1)
    expect(heads_by_weight(page)).to_have_count(largest.size)
    for button, at in zip(heads_by_weight(page).all(), np.argsort(-largest, axis=None), strict=True):
        layer, head = divmod(int(at), largest.shape[1])
        percent = float(re.search(r"([\d.]+)\s%", button.inner_text())[1])
        assert button.inner_text().startswith(f"layer {layer}, head {head} ")
        assert percent == pytest.approx(100 * largest[layer, head], abs=0.51)
    expect(page.get_by_text("its weights in every head of layer 1 are below")).to_be_visible()
    every = page.get_by_role("region", name="every head")
    expect(every.get_by_role("application")).to_have_attribute(
        "aria-label", re.compile(rf"^weights of {largest.shape[1]} .* and {weights.shape[-1]} keys")
    )
    heads_by_weight(page).first.click()
    layer, head = divmod(int(largest.argmax()), largest.shape[1])
    expect_row(page, weights[layer, head])


def test_without_a_pinned_word_the_last_one_is_shown(open_text, generate):
    answer = generate(outputs=["weights"], layers=0, heads=0)
    page = open_text()
    last = answer["generated"][-1]
    expect(page.locator(".word.active")).to_have_text([tokens(answer)[-1]])
    assert np.argmax(darkness(page, ".word")[:-1]) == np.argmax(row(last))
    expect(page.get_by_role("region", name="next tokens").get_by_role("listitem")).to_have_count(LISTED)
    words = [*PROMPT, *tokens(answer)][: len(row(last))]
    plain = np.where([re.fullmatch("<.*>", word) is None for word in words], row(last), 0)
    ignoring = " (ignoring special tokens" if plain.argmax() != np.argmax(row(last)) else ""
    expect(page.locator(".readout")).to_contain_text(percent(plain.max()) + ignoring)
    chances = [
        float(word.evaluate("(word) => word.style.getPropertyValue('--chance')").rstrip("%"))
        for word in page.locator(".word.new").all()
    ]
    expected = np.exp([token["logprob"] for token in answer["generated"]])
    np.testing.assert_allclose(chances, 100 * expected / expected.max(), rtol=1e-6)
    ranked = page.get_by_role("region", name="heads by weight").get_by_role("heading")
    expect(ranked).to_contain_text(f"Heads ranked by their largest weight from “{tokens(answer)[-1]}”")
    expect(heads_by_weight(page).first).to_be_visible()
    place = heads_by_weight(page).first.bounding_box()
    page.locator(".word.new").first.hover()  # the ranking is not that of a pointed word
    expect(ranked).to_contain_text(f"from “{tokens(answer)[-1]}”")
    expect(page.locator(".ranked")).to_have_css("opacity", "0.4")
    heads_by_weight(page).first.hover()
    expect(page.locator(".ranked")).to_have_css("opacity", "1")
    expect(page.locator(".word.active")).to_have_text([tokens(answer)[-1]])
    page.locator(".word.new").first.click()
    expect(ranked).to_contain_text(f"from “{tokens(answer)[0]}”")
    expect(heads_by_weight(page).first).to_be_visible()
    assert heads_by_weight(page).first.bounding_box()["y"] == place["y"]


def test_a_saved_page_has_the_text_its_weights_and_alternatives(open_text, open_file, generate, tmp_path):
    answer = generate(outputs=["weights"], layers=1, heads=3)
    page = open_text(token=5)
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    saved = open_file(tmp_path / "saved.html")
    expect(saved.locator(".passages")).to_be_visible()
    controls, text = (saved.locator(one).bounding_box() for one in (".workspace > .tools", ".passages"))
    assert text["x"] == controls["x"]  # below, not beside the controls of the head
    expect(saved.get_by_role("tab", name="Generate")).to_have_attribute("aria-selected", "true")
    expect_words(saved, tokens(answer))
    saved.get_by_role("combobox", name="layer").select_option("1")
    saved.get_by_role("combobox", name="head", exact=True).select_option("3")
    expect_row(saved, row(answer["generated"][5]))
    expect(saved.get_by_role("region", name="next tokens").get_by_role("listitem")).to_have_count(LISTED)
    expect(saved.get_by_role("region", name="next tokens").get_by_role("button")).to_have_count(0)
    expect(saved.get_by_role("button", name="Generate", exact=True)).to_have_count(0)
    take(saved, "HTML page").save_as(tmp_path / "again.html")
    expect_words(open_file(tmp_path / "again.html"), tokens(answer))
    assert violations(saved) == []


def test_a_page_saved_from_a_link_has_the_alternatives_of_its_chosen_tokens(open_text, open_file, generate, tmp_path):
    answer = generate()["generated"]
    page = open_text(chosen=json.dumps([[token["id"], token["token"]] for token in answer[:3]]))
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    saved = open_file(tmp_path / "saved.html")
    for place, token in enumerate(answer[:3]):
        saved.locator(".word.new").nth(place).click()
        names = [one["token"] or f"#{one['id']}" for one in token["next_tokens"]]
        expect(saved.get_by_role("region", name="next tokens").locator(".name")).to_have_text(names)


def test_the_picture_has_the_words_in_the_colours_of_the_weights(open_text, generate):
    answer = generate(outputs=["weights"], layers=0, heads=0)
    page = open_text(token=5)
    svg = ElementTree.fromstring(take(page, "SVG").path().read_text())
    words = [*PROMPT, *tokens(answer)]
    texts = [text.text for text in svg.findall("{*}text")]
    assert texts[: len(words)] == words
    assert texts[-1] == f"gpt, layer 0, head 0: what “{words[len(PROMPT) + 5]}” looks at"
    boxes = svg.findall("{*}rect")[1 : 1 + len(words)]
    chances = np.array([token["next_tokens"][0]["probability"] for token in answer["generated"]])
    lines = [float(line.get("stroke-opacity")) for line in svg.findall("{*}line")]
    np.testing.assert_allclose(lines, chances / chances.max(), atol=0.006)
    fills = [rect.get("fill") for rect in boxes]
    greys = np.array([ImageColor.getrgb(fill.replace(" ", ","))[0] for fill in fills])
    weights = row(answer["generated"][5])
    assert np.argmin(greys) == np.argmax(weights)
    assert {rect.get("fill-opacity") for rect in boxes[len(weights) :]} == {"0"}  # later words
    assert len(take(page, "PNG").path().read_bytes()) > 1000
    page.get_by_role("button", name="clear").click()
    *_, scale, bold, last = (
        text.text for text in ElementTree.fromstring(take(page, "SVG").path().read_text()).findall("{*}text")
    )
    assert bold == "bold: generated; no box: weight near 0, or a later word"
    assert scale == "weights, linear scale"  # the last word looks at all that are drawn
    assert last == f"gpt, layer 0, head 0: what “{words[-1]}” looks at"  # as in the view


def test_keys_move_through_the_words(open_text):
    page = open_text()
    words = page.locator(".word.new")
    words.nth(4).click()
    page.keyboard.press("ArrowRight")
    expect(words.nth(5)).to_be_focused()
    assert "token=5" in fragment(page)
    expect(page.locator(".selection")).to_contain_text(
        f"“{words.nth(5).inner_text()}” (12) looks at"
    )  # counted from <s>
    page.keyboard.press("Home")
    expect(page.locator(".word").first).to_be_focused()
    expect(page.locator(".selection")).to_contain_text("“<s>” (0) is looked at by")
    page.keyboard.press("Escape")
    assert "token" not in fragment(page)
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert "token=19" in fragment(page)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    buttons = page.get_by_role("region", name="next tokens").get_by_role("button")
    expect(buttons.nth(1)).to_be_focused()


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_all_and_fits(open_text, width, scheme):
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "closed": True}
    page = open_text("bart", options=options, token=3, temperature=1)
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_text_stays_while_other_views_are_open(open_text):
    page = open_text()
    words = shown(page)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("tab", name="Tokens").click()
    expect(page.locator(".chip")).to_have_text(PROMPT)
    page.get_by_role("tab", name="Generate").click()
    expect_words(page, words)
    assert not [one for one in asked if "/generate/" in one]


def test_another_prompt_forgets_the_choice(open_text, generate):
    page = open_text(token=3)
    page.get_by_role("region", name="next tokens").get_by_role("button").nth(1).click()
    expect(page.locator(".word.new")).to_have_count(4 + 20)
    page.get_by_role("textbox", name="text", exact=True).fill("the cat sat")
    expect_words(page, tokens(generate(text="the cat sat")))
    assert "chosen" not in fragment(page)
    assert "token" not in fragment(page)


def test_a_model_that_takes_ids(open_page, shared_server, generators, tmp_path_factory):
    models = tmp_path_factory.mktemp("ids")
    shutil.copytree(generators / "gpt", models / "gpt")
    for file in (models / "gpt").glob("*/tokenizer*"):
        file.unlink()
    url = shared_server(models).url
    page = open_page("model=gpt&view=generate&token=2&head=1", url=url)
    expect_end(page)
    ids = httpx.get(f"{url}/v1/attention/gpt").json()["example"]["input_ids"][0]
    body = {"input_ids": ids, "outputs": ["weights"], "layers": 0, "heads": 1}
    answer = httpx.post(f"{url}/v1/generate/gpt", json=body, timeout=60).json()
    expect_words(page, [f"#{token['id']}" for token in answer["generated"]])
    expect(page.locator(".word.prompt")).to_have_text([f"#{one}" for one in ids])
    expect_row(page, row(answer["generated"][2]))


def test_only_models_that_generate_have_the_view(open_page):
    page = open_page("model=bert&view=generate")
    expect(page.get_by_role("tab", name="Model")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tab", name="Generate")).to_have_count(0)
