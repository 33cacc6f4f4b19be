"""Pages of their own: what `heed run --html`, notebooks and the page itself save."""

import csv
import io
import json
import re
import shlex
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread
from playwright.sync_api import expect

from heed_client.__main__ import main
from heed_client.answer import Answer
from heed_client.page import page as saved_page
from tests.support.waiting import until
from tests.viewer.pages import HEAT_MAP, SCORES, copied, drawn, percent, show, take

TEXT = "the animal did not cross the street"


def attention(layers, heads, n):
    weights = np.random.default_rng(0).random((layers, heads, n, n)).astype(np.float32) ** 8
    return weights / weights.sum(-1, keepdims=True)


@pytest.fixture
def open_weights(open_file, tmp_path):
    """Opens a page that ``heed_client`` has made of weights."""

    def opened(weights, words=(), **settings):
        (tmp_path / "page.html").write_text(saved_page(weights, words, settings=settings))
        return open_file(tmp_path / "page.html")

    return opened


def test_labels_are_text(open_weights):
    words = ["<script>alert(1)</script>", "</script><b>", "&amp;"]
    page = open_weights(attention(1, 1, 3), words, query=0, view="head")
    expect(page.locator(".selection")).to_contain_text("“<script>alert(1)</script>” (0) looks at")
    assert page.locator("b", has_text="</script><b>").count() == 0


@pytest.mark.parametrize("n", [4, 640])
def test_weights_are_exact_or_near(open_weights, n):
    """Below a million they are float32; above, they are off by half a step at most, and the page says so."""
    weights = attention(1, 3, n)
    page = open_weights(weights, view="head", head=2, query=1, key=3)
    shown = page.locator(".selection .value").first
    expect(shown).to_be_visible()
    value = str(shown.get_attribute("title"))
    bound = 5e-5 if n == 4 else weights.max() / 255 / 2 + 5e-4
    assert abs(float(value.split()[0]) - weights[0, 2, 1, 3]) <= bound
    assert ("±" in value) == (n == 640)


def test_six_layers_of_twelve_heads_at_512_tokens(open_weights, tmp_path):
    page = open_weights(attention(6, 12, 512))
    assert (tmp_path / "page.html").stat().st_size < 20e6
    expect(page.locator(".thumbnail")).to_have_count(72)
    page.locator(".thumbnail").nth(71).click()
    expect(page.get_by_role("combobox", name="layer", exact=True)).to_have_value("5")


def test_a_notebook_frames_the_page(open_file, tmp_path):
    answer = Answer("bert", {"weights": attention(2, 2, 3)}, tokens={"tokens": ["a", "b", "c"]})
    (tmp_path / "notebook.html").write_text(f"<!doctype html><body>{answer._repr_html_()}")
    frame = open_file(tmp_path / "notebook.html").frame_locator("iframe")
    expect(frame.locator(".thumbnail")).to_have_count(4)


@pytest.fixture
def page(open_page):
    return open_page("model=bert&text=" + TEXT.replace(" ", "+") + "&view=matrix&head=3&palette=viridis")


def svg_of(page):
    return ElementTree.fromstring(take(page, "SVG").path().read_text())


def assert_png(page, svg, cells, path):
    """The PNG has twice the size of ``svg``, and, where no number is, the colours of cells at ``(x, y, element)``."""
    take(page, "PNG").save_as(path)
    picture = imread(path)
    assert picture.shape[:2] == (2 * int(svg.get("height")), 2 * int(svg.get("width")))
    for x, y, cell in cells:
        left, top, size = (float(cell.get(name)) for name in ("x", "y", "width"))
        pixel = picture[int(2 * (y + top + size / 8)), int(2 * (x + left + size / 8)), :3] * 255
        np.testing.assert_allclose(pixel, [int(part) for part in re.findall(r"\d+", cell.get("fill"))], atol=2)


def test_numbers_are_those_of_the_server(page, heed):
    answer = heed.attend("bert", text=TEXT)
    weights = answer.weights[0, 3]
    rows = list(csv.reader(io.StringIO(take(page, "CSV").path().read_text())))
    assert rows[0] == ["", *answer.tokens]
    np.testing.assert_array_equal(np.array([row[1:] for row in rows[1:]], np.float32), weights)
    data = json.loads(take(page, "JSON").path().read_text())
    assert (data["model"], data["layer"], data["head"], data["queries"]) == ("bert", 0, 3, answer.tokens)
    np.testing.assert_array_equal(np.array(data["weights"], np.float32), weights)


def test_pictures_of_each_view(page, heed, tmp_path):
    svg = svg_of(page)
    cells = svg.findall(".//{*}rect")
    assert len(cells) == 2 + 9 * 9 + 64  # with the background, the frame and the scale
    texts = ["".join(text.itertext()) for text in svg.findall(".//{*}text")]
    assert texts[:10] == ["bert: weights, head 3", "<s>", *TEXT.split(), "</s>"]
    assert texts[19:21] == ["keys →", "queries ↓"]
    weights = heed.attend("bert", text=TEXT).weights[0, 3]
    assert texts[21 : 21 + 81] == [percent(weight)[:-2] for weight in weights.ravel()]
    y = float(svg.find("{*}g/{*}g").get("transform").split()[1].rstrip(")"))
    assert_png(page, svg, [(0, y, cells[1])], tmp_path / "picture.png")
    page.get_by_role("tab", name="Model").click()
    svg = svg_of(page)
    assert len(svg.findall(".//{*}rect")) == 1 + 4 * (9 * 9 + 1) + 64
    texts = [text.text for text in svg.findall(".//{*}text")]
    assert texts[0] == "bert: weights of 4 heads, 9 queries from top to bottom, 9 keys from left to right"
    assert texts[1:5] == [f"head {head}" for head in range(4)]
    assert texts[5:] == ["0", "50\u00a0%", "100\u00a0%", "weights in per cent of the head’s largest, linear scale"]
    page.get_by_role("combobox", name="colour range").select_option("all heads")
    texts = [text.text for text in svg_of(page).findall(".//{*}text")]
    largest = heed.attend("bert", text=TEXT).weights.max()
    assert texts[-2:] == [percent(largest), "weights, linear scale"]
    page.get_by_role("tab", name="Head").click()
    page.get_by_role("button", name="all heads").click()
    svg = svg_of(page)
    strokes = {path.get("stroke") for path in svg.findall(".//{*}path")}
    heads = svg.findall("{*}text/{*}tspan")
    assert [head.text for head in heads] == ["0", "1", "2", "3"]
    assert {head.get("fill") for head in heads} == strokes
    assert len(strokes) == 4
    texts = ["".join(text.itertext()) for text in svg.findall("{*}text")]
    assert texts == ["bert: weights, heads 0, 1, 2, 3", "queries", "keys", "The 3 strongest lines of each query."]
    page.get_by_role("button", name="animal", exact=True).first.click()
    title = "".join(svg_of(page).find("{*}text").itertext())
    assert title == "bert, heads 0, 1, 2, 3: what “animal” looks at"


@pytest.mark.parametrize("view", ["matrix", "model", "head", "tokens"])
def test_drawings_of_a_dark_page_are_for_white_paper_too(open_page, view):
    settings = "model=bert&text=" + TEXT.replace(" ", "+") + f"&view={view}&head=3&query=2"
    light, dark = (
        take(open_page(settings, color_scheme=scheme), "SVG").path().read_text() for scheme in ("light", "dark")
    )
    assert dark == light


def test_the_pinned_cell_is_framed_in_the_picture_of_a_matrix(page):
    page.locator(HEAT_MAP).press("ArrowDown")
    page.locator(HEAT_MAP).press("ArrowRight")
    expect(page.locator(".selection")).to_contain_text("looks at")
    rects = svg_of(page).findall(".//{*}rect")
    (frame,) = (rect for rect in rects if rect.get("stroke") == "#1d4e89")
    assert [frame.get(name) for name in ("x", "y")] == [rects[2].get(name) for name in ("x", "y")]  # 0, 1
    page.get_by_role("tab", name="Model").click()
    frames = [rect for rect in svg_of(page).findall(".//{*}rect") if rect.get("stroke") == "#c2410c"]
    assert len(frames) == 4  # of the cell in each head


def test_the_picture_of_a_head_says_which_and_has_the_numbers_of_the_held_word(page, heed):
    page.get_by_role("tab", name="Head").click()
    page.locator(".queries [role=option]").nth(2).click()
    expect(page.locator(".selection")).to_contain_text("looks at")
    svg = svg_of(page)
    assert svg.find("{*}text").text == "bert, head 3: what “animal” looks at"
    numbers = [one.text for one in svg.findall(".//{*}tspan")]
    assert numbers == [percent(weight) for weight in heed.attend("bert", text=TEXT).weights[0, 3, 2]]
    assert len(svg.findall("{*}g/{*}rect")) == 1 + 9  # behind the word, and strips behind the others
    opacities = [float(path.get("stroke-opacity")) for path in svg.findall(".//{*}path")]
    assert opacities == sorted(opacities)  # the strongest line is above the others
    assert (opacities[0] >= 0.25, opacities[-1]) == (True, 1)
    page.get_by_role("tab", name="Tokens").click()
    expect(page.get_by_role("region", name="every head")).to_be_visible()
    texts = ["".join(text.itertext()) for text in svg_of(page).findall(".//{*}text")]
    assert texts[:9] == ["<s>", *TEXT.split(), "</s>"]
    below = texts.index("What “animal” looks at in every head")
    assert texts[below - 1] == "bert, head 3: what “animal” looks at"
    assert texts[below + 1 : below + 5] == [f"head {head}" for head in range(4)]
    assert texts[below + 14 : below + 16] == ["keys →", "heads ↓"]
    found = [float(text.replace("·", "0")) / 100 for text in texts[below + 16 : below + 16 + 4 * 9]]
    np.testing.assert_allclose(found, heed.attend("bert", text=TEXT).weights[0, :, 2].ravel(), atol=5.1e-3)
    page.emulate_media(media="print")
    expect(page.locator(".on-paper")).to_have_text("head 3, linear scale")


def test_the_picture_of_a_comparison_has_both_sides_and_their_difference(page, heed, tmp_path):
    page.get_by_role("tab", name="Compare").click()
    page.get_by_role("combobox", name="second head").select_option("1")
    expect(page.locator(".sides [role=application]")).to_have_count(3)
    svg = svg_of(page)
    assert svg.find("{*}text").text == f"bert, weights, “{TEXT}”"
    panels = svg.findall("{*}g")
    texts = [["".join(text.itertext()) for text in panel.findall(".//{*}text")] for panel in panels]
    assert [words[0] for words in texts] == ["First: head 3", "Second: head 1", "Difference: head 1 minus head 3"]
    assert all(words[1:10] == ["<s>", *TEXT.split(), "</s>"] for words in texts)
    maps = [panel.find("{*}g") for panel in panels]
    cells = [one.findall("{*}rect") for one in maps]
    assert list(map(len, cells)) == [9 * 9 + 1 + 64] * 3  # with the frame and the scale
    shown = [page.locator(".sides .legend").nth(i).locator("small").last.inner_text() for i in range(3)]
    assert [words[-2] for words in texts] == shown  # the largest number of each scale
    assert texts[2][-1] == "difference of weights in percentage points, linear scale"  # in two lines
    largest = heed.attend("bert", text=TEXT).weights[0, [3, 1]].max()
    assert shown[:2] == [percent(largest)] * 2
    frames = [[float(rects[81].get(name)) for name in ("x", "y", "width", "height")] for rects in cells]
    assert frames[0] == frames[1] == frames[2]
    places = [[part.get("transform")[len("translate(") : -1].split() for part in parts] for parts in (panels, maps)]
    x, y = np.array(places, float).sum(0).T
    assert y[0] == y[1] == y[2]
    assert x[1] - x[0] == x[2] - x[1] > frames[0][0] + frames[0][2]
    middles = [(x[side], y[side], cells[side][40]) for side in range(3)]
    assert_png(page, svg, middles, tmp_path / "picture.png")


def test_a_matrix_is_saved_under_its_own_head_only(open_page):
    """While another head of a long input is loaded, nothing of the one before is drawn or saved."""
    sizes = '{"seed":1,"sizes":{"batch":1,"m":80,"n":80}}'
    page = open_page(f"model=multi_head&view=matrix&head=0&query=1&random={sizes}")
    expect(page.locator(".selection .value").first).to_be_visible()
    first = page.locator(".selection .value").all_inner_texts()
    waiting = []
    page.route("**/infer", lambda route: waiting.append(route))
    page.get_by_role("combobox", name="head", exact=True).select_option("2")
    expect(page.locator(".selection .value")).to_have_count(0)
    expect(page.get_by_text("Export")).to_have_count(0)
    until(lambda: drawn(page) or waiting)
    waiting[0].continue_()
    expect(page.locator(".selection .value").first).to_be_visible()
    assert page.locator(".selection .value").all_inner_texts() != first


def test_commands_run(page, heed):
    curl = shlex.split(copied(page, "curl").replace("\\\n", ""))
    run = {"capture_output": True, "text": True, "timeout": 60, "check": True}
    done = subprocess.run([*curl, "--silent", "--show-error"], **run)
    shown = heed.attend("bert", text=TEXT).weights[:, 3:4]
    np.testing.assert_allclose(json.loads(done.stdout)["weights"], shown, rtol=1e-6)
    done = subprocess.run([sys.executable, "-c", copied(page, "Python")], **run)
    assert done.stdout == "(1, 1, 9, 9)\n"
    link = copied(page, "link")
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_role("tab", name="Matrix")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value("3")


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ("view=model", {"outputs": ["weights"]}),
        ("view=matrix&layer=1&head=2", {"outputs": ["weights"], "layers": 1, "heads": 2}),
        ("view=matrix&layer=9&head=9", {"outputs": ["weights"], "layers": 1, "heads": 3}),
        ("view=head&layer=1&head=2&heads=[0,2]", {"outputs": ["weights"], "layers": 1, "heads": "0,2"}),
        ("view=matrix&layer=1&combine=mean", {"outputs": ["weights"], "layers": 1, "reduce_heads": "mean"}),
        ("view=matrix&head=2&combine=layers-max", {"outputs": ["weights"], "heads": 2, "reduce_layers": "max"}),
        ("view=matrix&combine=rollout", {"outputs": ["rollout"]}),
        ("view=matrix&head=1&kind=scores", {"outputs": ["scores"], "layers": 0, "heads": 1}),
    ],
)
def test_a_request_answers_what_is_shown(open_page, heed, tmp_path, settings, answer):
    page = open_page(f"model=encoder&{settings}")
    take(page, "request.json").save_as(tmp_path / "request.json")
    request = json.loads((tmp_path / "request.json").read_text())
    found, expected = heed.attend("encoder", **request), heed.attend("encoder", **{**request, **answer})
    (name,) = answer["outputs"]
    assert set(request) & {"layers", "heads", "reduce_heads", "reduce_layers"} == set(answer) - {"outputs"}
    np.testing.assert_array_equal(found[name], expected[name])
    assert f"answer.{name}.shape" in copied(page, "Python")


def test_pages_say_where_the_weights_are_from(page, open_file, tmp_path, viewer):
    weights = viewer.get("/v1/attention/bert").json()["weights"]
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    assert main(["bert", "--url", str(viewer.base_url), "--text", TEXT, "--html", str(tmp_path / "run.html")]) == 0
    for name, more in {"saved": ["heed 0.", weights], "run": []}.items():
        about = open_file(tmp_path / f"{name}.html").locator(".provenance")
        for said in ("bert, version 1", TEXT, "9 tokens", *more):
            expect(about).to_contain_text(said)


@pytest.mark.parametrize(("view", "count"), [("matrix", 1), ("ablate", 0), ("neurons", 0), ("steps", 0)])
def test_views_that_ask_the_server_are_not_saved_as_a_page(open_page, view, count):
    page = open_page(f"model=multi_head&view={view}")
    page.get_by_text("Export").click()
    expect(page.get_by_role("button", name="SVG", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="HTML page")).to_have_count(count)


def test_a_label_is_no_formula_of_a_spreadsheet(open_page):
    words = ["=1+1", "+a", "-b", "@c", "it", 'say "x"', "\tt", "f=g"]
    page = show(open_page, SCORES, words, "Matrix")
    rows = list(csv.reader(io.StringIO(take(page, "CSV").path().read_text())))
    expected = ["'=1+1", "'+a", "'-b", "'@c", "it", 'say "x"', "'\tt", "f=g"]
    assert rows[0][1:] == [row[0] for row in rows[1:]] == expected
    assert np.array([row[1:] for row in rows[1:]], np.float32).shape == (8, 8)


def test_cross_attention_whose_places_have_the_same_names(open_page, open_file, tmp_path):
    """Queries and keys are five each, and no token is both."""
    sizes = '{"seed":1,"sizes":{"batch":1,"m":5,"n":5}}'
    page = open_page(f"model=multi_head&view=tokens&random={sizes}")
    expect(page.get_by_role("group", name="keys")).to_be_visible()
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    saved = open_file(tmp_path / "saved.html")
    expect(saved.get_by_role("group", name="keys").get_by_role("button")).to_have_count(5)
