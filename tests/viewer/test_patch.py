"""The view Patch: the grid, the click on a cell and what is saved are those of the API."""

import csv
import io
import json
import re
import subprocess
import sys
from urllib.parse import urlencode
from xml.etree import ElementTree

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.support.waiting import until
from tests.viewer.pages import HEAT_MAP, IN_PARTS, copied, drawn, fragment, percent, plot, take, violations

TEXT, OTHER = "the animal did not cross", "the street did not cross"
WORDS = ["<s>", *TEXT.split(), "</s>"]
PATCHED = {"at": "hidden", "from": {"text": OTHER}}
HIDDEN = "The vectors that enter a layer."
BOTH = {"layers": "all", "positions": "all"}
DIFFERENCE = {"metric": "logit_difference", "tokens": ["street", "animal"]}


@pytest.fixture(scope="module")
def url(shared_server, generating):
    return shared_server(generating / "models").url


@pytest.fixture(scope="module")
def ask(url):
    """The API's answer."""
    with httpx.Client(base_url=url, timeout=60) as client:

        def post(path="sweep", model="gpt", **body):
            response = client.post(f"/v1/{path}/{model}", json={"text": TEXT, **body})
            assert response.status_code == 200, response.text
            return response.json()

        yield post


@pytest.fixture
def open_patch(open_page, url):
    """Opens the view on TEXT and OTHER; ``choices`` are those of the link."""

    def open_(model="gpt", *, text=TEXT, expected="no error", **choices) -> Page:
        patch = json.dumps({"source": OTHER, "at": "hidden", **choices})
        query = urlencode({"model": model, "text": text, "view": "patch", "patch": patch})
        return open_page(query, url=url, expected=expected)

    return open_


def expect_measured(page: Page, count: int) -> None:
    expect(page.locator(".ending[role=status]")).to_have_text(f"{count} places measured")


def table(page: Page) -> tuple[list[str], list[str], np.ndarray]:
    """Names of rows and columns, and the numbers of the exported table."""
    head, *lines = csv.reader(io.StringIO(take(page, "CSV").path().read_text()))
    return [line[0] for line in lines], head[1:], np.array([line[1:] for line in lines], float)


def click_cell(page: Page, row: int, column: int, shape: tuple[int, int]) -> None:
    left, top, right, bottom = np.array(plot(page)) / page.evaluate("devicePixelRatio")
    x, y = ((place + 0.5) / count for place, count in zip((column, row), shape[::-1], strict=True))
    position = {"x": left + x * (right - left), "y": top + y * (bottom - top)}
    page.locator(HEAT_MAP).click(position=position)


def next_tokens(page: Page) -> list[list[str]]:
    """The rows of the table of next tokens."""
    region = page.get_by_role("region", name="next tokens")
    expect(region).to_be_visible()
    return [row.locator("th, td").all_inner_texts() for row in region.locator("tbody tr").all()]


def test_the_grid_has_the_numbers_of_the_api(open_patch, ask):
    metric = {"logit_difference": DIFFERENCE["tokens"]}
    answer = ask(intervention=PATCHED, over=BOTH, metric=metric)
    page = open_patch(**DIFFERENCE)
    expect_measured(page, 14)
    rows, columns, numbers = table(page)
    assert (rows, columns) == (["into layer 0", "into layer 1"], WORDS)
    np.testing.assert_allclose(numbers, answer["values"], rtol=1e-6, atol=1e-7)
    legend = page.locator(".legend")
    for name in ("unchanged", "source"):
        expect(legend).to_contain_text(f"{answer[name]:.4g}".replace("-", "−"))
    known = [answer["unchanged"], *np.ravel(answer["values"])]
    for end, value in ((legend.locator("small").nth(0), min(known)), (legend.locator("small").nth(1), max(known))):
        expect(end).to_have_text(f"{float(f'{value:.3g}'):g}".replace("-", "−"))
    change = np.abs(np.array(answer["values"]) - answer["unchanged"])
    layer, position = np.unravel_index(change.argmax(), change.shape)
    said = f"Largest change at the input of layer {layer}, “{WORDS[position]}”"
    ends = answer["unchanged"], answer["values"][layer][position]
    before, after = (f"{value:.4g}".replace("-", "−") for value in ends)
    expect(page.locator(".strongest")).to_contain_text(f"{said}: {before} → {after}")
    meaning = page.locator(".meaning")
    expect(meaning).to_have_text("One place at a time is replaced by the other text’s activation.")
    for name, text in (("at", HIDDEN), ("measure", "The logit of the first token minus that of the second.")):
        page.get_by_role("combobox", name=name, exact=True).focus()
        expect(meaning).to_contain_text(text)
    aligned = page.get_by_role("list", name="what is put in their place").get_by_role("listitem")
    expect(aligned).to_have_count(7)
    expect(aligned.nth(2)).to_have_text("animal in its place street")
    expect(aligned.nth(3)).to_have_text("did the same, did")
    places = page.get_by_role("list", name="places by change").get_by_role("button")
    expect(places.first).to_contain_text(f"into layer {layer}, “{WORDS[position]}”")
    click_cell(page, 1, 2, (2, 7))
    expect(page.locator(".effect .headline")).to_contain_text(f"{answer['values'][1][2]:.4g}".replace("-", "−"))
    assert violations(page) == []


def test_a_text_without_another_one_has_a_grid_at_once(open_page, url, ask):
    page = open_page(urlencode({"model": "gpt", "text": TEXT, "view": "patch"}), url=url)
    expect_measured(page, 8)
    expect(page.get_by_role("combobox", name="change")).to_have_value("scale")
    over = {"layers": "all", "heads": "all"}
    answer = ask(intervention={"at": "head_output", "scale": 0}, over=over, metric="kl")
    np.testing.assert_allclose(table(page)[2], answer["values"], rtol=1e-5, atol=1e-7)
    expect(page.locator(".strongest")).to_contain_text("KL divergence is largest at layer ")
    expect(page.locator(".strongest b")).to_have_text(f"{np.max(answer['values']):.4g}")


def test_a_large_window_has_high_rows(open_page, url):
    heights = []
    for width, height in ((390, 844), (1440, 900), (2560, 1440), (3840, 2160)):
        link = urlencode({"model": "gpt", "text": TEXT, "view": "patch", "patch": json.dumps({"at": "hidden"})})
        page = open_page(link, url=url, viewport={"width": width, "height": height})
        expect_measured(page, 14)
        drawn(page)
        heights.append(page.locator(HEAT_MAP).bounding_box()["height"])
    assert heights[0] < 2 * 95 < heights[1] < heights[2] == pytest.approx(heights[3], rel=0.1), heights


def test_a_pinned_cell_is_told_beside_the_grid_which_stays_in_its_place(open_page, url):
    link = urlencode({"model": "gpt", "text": TEXT, "view": "patch", "patch": json.dumps({"at": "hidden"})})
    page = open_page(link, url=url, viewport={"width": 1600, "height": 900})
    expect_measured(page, 14)
    expect(page.get_by_role("region", name="next tokens")).to_be_visible()  # of the strongest place
    drawn(page)
    before = page.locator(HEAT_MAP).bounding_box()
    click_cell(page, 1, 2, (2, 7))
    expect(page.get_by_role("region", name="next tokens")).to_be_visible()
    after, pinned = page.locator(HEAT_MAP).bounding_box(), page.locator(".effect").bounding_box()
    assert after == before
    assert pinned["x"] >= after["x"] + after["width"]
    unpin = page.get_by_role("button", name="unpin").bounding_box()
    assert unpin["y"] == pytest.approx(page.locator(".effect .headline").bounding_box()["y"], abs=2)
    chips = [chip.bounding_box()["width"] for chip in page.locator(".place .ranking button").all()]
    assert len(set(chips)) == 1
    assert page.evaluate("document.documentElement.scrollHeight") <= 900


def test_texts_with_the_same_tokens_are_not_measured(open_patch):
    """Words outside of the vocabulary are one token."""
    page = open_patch(text="the animal zyx", source="the animal qwv")
    expect(page.locator(".ending[role=status]")).to_have_text(
        "Both texts have the same tokens: “<unk> zyx” and “<unk> qwv” are one to the model."
    )
    expect(page.get_by_role("button", name="Measure")).to_be_disabled()
    expect(page.locator(HEAT_MAP)).to_have_count(0)
    other = page.get_by_role("textbox", name="other text")
    other.fill("the street zyx")
    expect_measured(page, 10)
    other.fill("the animal zyx")
    expect(page.locator(".ending[role=status]")).to_have_text("Both texts have the same tokens: write another text.")
    expect(page.locator(".stale-grid")).to_have_count(1)


def test_the_page_opens_with_a_change_that_has_an_effect(open_page, url):
    """The other text of the page has the same tokens, as both of its last words are unknown."""
    page = open_page("model=gpt&view=patch", url=url)
    change = page.get_by_role("combobox", name="change")
    expect(page.locator(".ending[role=status]")).to_contain_text("places measured")
    expect(change.locator("option:checked")).to_have_text("remove")
    expect(page.get_by_role("textbox", name="other text")).to_be_visible()  # to write one
    change.select_option("insert the other text’s activation")
    expect(page.locator(".ending[role=status]")).to_contain_text("Both texts have the same tokens")


def test_other_choices_are_sent(open_patch, ask):
    """Heads without their weights, and positions of which the other text has a counterpart."""
    page = open_patch()
    expect_measured(page, 14)
    page.get_by_role("combobox", name="at", exact=True).select_option("weights")
    page.get_by_role("combobox", name="change").select_option("remove")
    page.get_by_role("checkbox", name="renormalise").check()
    page.get_by_role("combobox", name="queries").select_option("4")
    page.get_by_role("combobox", name="keys").select_option("2")
    expect_measured(page, 8)
    removed = {"at": "weights", "queries": 4, "keys": 2, "scale": 0, "renormalize": True}
    until(lambda: table(page)[0] == ["layer 0", "layer 1"] and table(page)[1][0] == "head 0", 20)
    answer = ask(intervention=removed, over={"layers": "all", "heads": "all"})
    np.testing.assert_allclose(table(page)[2], answer["values"], rtol=1e-4, atol=1e-9)
    page.get_by_role("combobox", name="at", exact=True).select_option("mlp_output")
    page.get_by_role("combobox", name="change").select_option("insert the other text’s activation")
    page.get_by_role("textbox", name="other text").fill("the animal cross")
    expect_measured(page, 10)
    assert table(page)[1] == ["<s>", "the", "animal", "cross", "</s>"]
    places = {"layers": "all", "positions": [0, 1, 2, 5, 6]}
    patched = {"at": "mlp_output", "from": {"text": "the animal cross", "positions": [0, 1, 2, 3, 4]}}
    answer = ask(intervention=patched, over=places)
    np.testing.assert_allclose(table(page)[2], answer["values"], rtol=1e-4, atol=1e-9)
    expect(page.get_by_role("tabpanel")).to_contain_text("2 tokens have no counterpart")


def test_a_click_shows_the_changed_next_tokens(open_patch, ask):
    page = open_patch(**DIFFERENCE)
    expect_measured(page, 14)
    click_cell(page, 1, 2, (2, 7))
    changed = [{**PATCHED, "layers": 1, "positions": 2}]
    before, after = (
        {token["id"]: token for token in ask("text", outputs=[], next_tokens=8, **more)["next_tokens"]}
        for more in ({}, {"interventions": changed})
    )
    rows = next_tokens(page)
    ids = [*dict.fromkeys([*list(before)[:5], *list(after)[:5]])]
    assert [row[0] for row in rows] == [(before | after)[id]["token"] or f"#{id}" for id in ids]
    for (_, *shown), id in zip(rows, ids, strict=True):
        for number, known in zip(shown, (before, after), strict=True):
            assert number == percent(known[id]["probability"]) if id in known else number.startswith("<")
    assert json.loads(take(page, "JSON").path().read_text())["cell"] == [1, 2]
    page.locator(HEAT_MAP).focus()
    page.keyboard.press("Escape")
    strongest = page.get_by_role("list", name="places by change").get_by_role("button").first.inner_text()
    at = re.match("into layer .*”", strongest)[0]
    expect(page.get_by_role("region", name="strongest place")).to_contain_text(at)
    expect(page.get_by_role("button", name="unpin")).to_have_count(0)
    layer, place = int(re.search(r"\d", at)[0]), WORDS.index(re.search("“(.+)”", at)[1])
    changed = [{**PATCHED, "layers": layer, "positions": place}]
    likely = ask("text", outputs=[], next_tokens=8, interventions=changed)["next_tokens"]
    expect(page.get_by_role("region", name="next tokens")).to_contain_text(percent(likely[0]["probability"]))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".effect .headline")).to_contain_text("into layer 0, “the”")


def test_another_position_is_measured(open_patch, ask):
    page = open_patch(position=3, cell=[1, 3], metric="probability", tokens=["street"])
    expect_measured(page, 14)
    answer = ask(intervention=PATCHED, over=BOTH, metric={"probability": "street"}, position=3)
    np.testing.assert_allclose(table(page)[2], answer["values"], rtol=1e-6)
    changed = [{**PATCHED, "layers": 1, "positions": 3}]
    lens = ask("lens", lens_top_k=8, layers=-1, positions=3, interventions=changed)["lens"]
    expect(page.get_by_role("heading", name="Next token after “did”")).to_be_visible()
    changed = [row[2] for row in next_tokens(page)]
    assert all(percent(share) in changed for share in lens["probabilities"][0][0][:5])


def test_link_commands_and_saved_page_give_the_same(open_patch, open_page, open_file, url, tmp_path):
    choices = {"at": "head_output", "over": "heads,positions", "fixed": {"layers": 1}, "cell": [3, 2], **DIFFERENCE}
    page = open_patch(**choices)
    expect_measured(page, 28)
    numbers, rows = table(page), next_tokens(page)
    link = fragment(page)
    again = open_page(link.removeprefix("#"), url=url)
    expect_measured(again, 28)
    np.testing.assert_array_equal(table(again)[2], numbers[2])
    assert next_tokens(again) == rows
    command = subprocess.run(["bash", "-c", copied(page, "curl")], capture_output=True, check=True)
    answer = json.loads(command.stdout)
    np.testing.assert_allclose(numbers[2], answer["values"], rtol=1e-6)
    python = subprocess.run([sys.executable, "-c", copied(page, "Python")], capture_output=True, text=True, check=True)
    printed = np.array(re.findall(r"-?\d+\.\d*", python.stdout), float).reshape(4, 7)
    np.testing.assert_allclose(printed, answer["values"], atol=1e-6)
    svg = ElementTree.fromstring(take(page, "SVG").path().read_text())
    rects = 2 + 28 + 64 + 6  # with the background, the frame, the scale, and frames of the pinned row, column and cell
    assert len(svg.findall(".//{*}rect")) == rects
    texts = ["".join(text.itertext()) for text in svg.findall(".//{*}text")]
    assert "unchanged" not in texts[0]
    assert "unchanged" in texts[-1]
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    saved = open_file(tmp_path / "saved.html")
    expect(saved.get_by_role("tab", name="Patch")).to_have_attribute("aria-selected", "true")
    assert next_tokens(saved) == rows
    np.testing.assert_array_equal(table(saved)[2], numbers[2])
    click_cell(saved, 0, 1, (4, 7))
    expect(saved.locator(".effect .headline")).to_contain_text("head 0, “the”")


def test_stop_ends_the_stream(open_patch):
    page = open_patch()
    expect_measured(page, 14)
    whole = table(page)[2]
    page.evaluate(IN_PARTS, "/sweep/")
    page.get_by_role("button", name="Measure").click()
    expect(page.get_by_role("progressbar", name="measured rows")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".ending[role=status]")).to_have_text("stopped after 1 of 2 rows")
    lines = take(page, "CSV").path().read_text().splitlines()
    np.testing.assert_array_equal(np.array(lines[1].split(",")[1:], float), whole[0])
    assert lines[2] == '"into layer 1",,,,,,,'
    expect(page.locator(".legend")).to_contain_text("not measured")
    page.get_by_role("button", name="Measure").click()
    expect_measured(page, 14)


def test_a_large_grid_waits_for_a_click(open_patch):
    page = open_patch(text="the animal " * 23, action="scale", at="weights", over="queries,keys")
    asked = []
    page.on("request", lambda request: "/sweep/" in request.url and asked.append(request.url))
    button = page.get_by_role("button", name="Measure 2304 places")
    expect(button).to_be_visible()
    assert not asked
    button.click()
    expect_measured(page, 2304)
    assert len(asked) == 1
    strongest = page.get_by_role("list", name="places by change").get_by_role("button").first
    expect(strongest).to_have_text(re.compile(r"^(“</s>”|“\w+” \(\d+\)) → (“<s>”|“\w+” \(\d+\)|“</s>”) "))


def test_an_error_is_said_beside_its_field(open_patch):
    page = open_patch(expected="422", metric="probability", tokens=["the animal"])
    field = page.get_by_role("combobox", name="of", exact=True)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("alert")).to_contain_text("expected one token, got 'the animal', which has 2")
    field.fill("animal")
    field.press("Enter")
    expect_measured(page, 14)
    expect(page.get_by_role("alert")).to_have_count(0)
    page.evaluate(IN_PARTS, "/sweep/")
    page.get_by_role("button", name="Measure").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.evaluate("fail({ status: 503, detail: 'the server is stopping' })")
    expect(page.get_by_role("alert")).to_have_text("the server is stopping")
    page.get_by_role("textbox", name="other text").fill("")
    expect(page.locator(".ending[role=status]")).to_have_text(re.compile("^Type another text"))


def test_a_direction_is_added_and_its_strength_slides(open_patch, ask):
    page = open_patch(action="add", minus="the animal", cell=[1, 3])
    slider = page.get_by_role("slider", name="times")
    for scale in (2, 7.5):
        slider.fill(str(scale))
        added = {"at": "hidden", "add": {"text": OTHER, "minus": {"text": "the animal"}, "scale": scale}}
        answer = ask(intervention=added, over=BOTH)
        number = f"{answer['values'][1][3]:.4g}"
        expect(page.locator(".effect .headline b")).to_have_text(number)
        expect_measured(page, 14)
        np.testing.assert_allclose(table(page)[2], answer["values"], rtol=1e-4, atol=1e-9)
    changed = [{**added, "layers": 1, "positions": 3}]
    tokens = ask("text", outputs=[], next_tokens=8, interventions=changed)["next_tokens"]
    likeliest = page.get_by_role("region", name="next tokens").locator(
        "tbody tr", has_text=percent(tokens[0]["probability"])
    )
    expect(likeliest.locator("th")).to_have_text(tokens[0]["token"] or f"#{tokens[0]['id']}")


def test_an_edge_is_cut_from_the_view_that_shows_it(open_page, url, ask):
    settings = {"model": "gpt", "text": TEXT, "view": "matrix", "layer": 1, "head": 2, "query": 6, "key": 2}
    page = open_page(urlencode(settings), url=url, closed=True, viewport={"width": 1440, "height": 900})
    expect(page.get_by_role("button", name="cut this edge")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollHeight") <= 900  # no pin makes the page longer
    page.get_by_role("button", name="cut this edge").click()
    expect_measured(page, 8)
    expect(page.locator(".effect .headline")).to_contain_text("layer 1, head 2")
    cut = {"at": "weights", "queries": 6, "keys": 2, "scale": 0, "renormalize": True}
    answer = ask(intervention=cut, over={"layers": "all", "heads": "all"})
    np.testing.assert_allclose(table(page)[2], answer["values"], rtol=1e-4, atol=1e-9)


def test_an_encoder_shows_distances(open_page, heed):
    query = {
        "model": "bert",
        "text": TEXT,
        "view": "patch",
        "patch": json.dumps({"source": OTHER, "at": "hidden", "cell": [0, 2]}),
    }
    page = open_page(urlencode(query))
    expect_measured(page, 7)
    changed = [{**PATCHED, "layers": 0, "positions": 2}]
    answers = [
        heed.attend("bert", text=TEXT, outputs=["embedding", "output"], **more)
        for more in ({}, {"interventions": changed})
    ]
    before, after = (np.ravel(answer.embedding).astype(float) for answer in answers)
    distance = 1 - before @ after / np.linalg.norm(before) / np.linalg.norm(after)
    assert table(page)[2][0, 2] == pytest.approx(distance, abs=1e-6)
    before, after = (np.asarray(answer.output, float).reshape(7, -1) for answer in answers)
    shares = np.linalg.norm(after - before, axis=-1) / np.linalg.norm(before, axis=-1)
    chips = page.get_by_role("region", name="change of the output").get_by_role("listitem")
    expect(chips).to_have_text([re.compile(rf" {re.escape(percent(share))}$") for share in shares])
    expect(page.get_by_role("tab", name="Lens")).to_have_count(0)


def test_what_is_typed_stays_while_an_answer_comes(open_patch):
    page = open_patch(**DIFFERENCE)
    expect_measured(page, 14)
    first, second = (page.get_by_role("combobox", name=name, exact=True) for name in ("of", "minus"))
    first.fill("did")
    first.press("Tab")
    second.press("Control+a")
    second.press_sequentially("not")
    expect_measured(page, 14)
    expect(page.locator(".stale-grid")).to_have_count(0)
    expect(second).to_have_value("not")
