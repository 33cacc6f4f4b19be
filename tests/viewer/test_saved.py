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
from heed_client.client import Client
from heed_client.page import page as saved_page
from tests.viewer.pages import SCORES, show

TEXT = "the animal did not cross the street"


def attention(layers, heads, n):
    weights = np.random.default_rng(0).random((layers, heads, n, n)).astype(np.float32) ** 8
    return weights / weights.sum(-1, keepdims=True)


def test_labels_are_text(open_file, tmp_path):
    words = ["<script>alert(1)</script>", "</script><b>", "&amp;"]
    (tmp_path / "page.html").write_text(saved_page(attention(1, 1, 3), words, settings={"query": 0, "view": "head"}))
    page = open_file(tmp_path / "page.html")
    expect(page.locator(".selection")).to_contain_text("“<script>alert(1)</script>” (0) looks at")
    assert page.locator("b", has_text="</script><b>").count() == 0


def test_weights_are_exact_or_near(open_file, tmp_path):
    """Below a million they are float32; above, they are off by half a step at most, and the page says so."""
    for n, error in ((4, 0), (640, None)):
        weights = attention(1, 3, n)
        settings = {"view": "head", "head": 2, "query": 1, "key": 3}
        (tmp_path / "page.html").write_text(saved_page(weights, settings=settings))
        page = open_file(tmp_path / "page.html")
        shown = page.locator(".selection .value").first
        expect(shown).to_be_visible()
        value = shown.inner_text()
        bound = 5e-5 if error == 0 else weights.max() / 255 / 2 + 5e-4
        assert abs(float(value.split()[0]) - weights[0, 2, 1, 3]) <= bound
        assert ("±" in value) == (error is None)


def test_six_layers_of_twelve_heads_at_512_tokens(open_file, tmp_path):
    document = saved_page(attention(6, 12, 512))
    assert len(document) < 20e6
    (tmp_path / "page.html").write_text(document)
    page = open_file(tmp_path / "page.html")
    expect(page.locator(".thumbnail")).to_have_count(72)
    page.locator(".thumbnail").nth(71).click()
    expect(page.get_by_role("combobox", name="layer", exact=True)).to_have_value("5")


def test_a_notebook_frames_the_page(open_file, tmp_path):
    answer = Answer("bert", {"weights": attention(2, 2, 3)}, tokens={"tokens": ["a", "b", "c"]})
    (tmp_path / "notebook.html").write_text(f"<!doctype html><body>{answer._repr_html_()}")
    frame = open_file(tmp_path / "notebook.html").frame_locator("iframe")
    expect(frame.locator(".thumbnail")).to_have_count(4)


@pytest.fixture
def taken(open_page):
    """The page with its menu open, and a function that presses one of its buttons and reads the file."""
    page = open_page("model=bert&text=" + TEXT.replace(" ", "+") + "&view=matrix&head=3&palette=viridis")
    page.get_by_text("Take it along").click()

    def take(name):
        button = page.get_by_role("button", name=name, exact=True)
        if not button.is_visible():
            page.get_by_text("Take it along").click()
        with page.expect_download() as download:
            button.click()
        return download.value

    return page, take


def test_numbers_are_those_of_the_server(taken, viewer):
    _, take = taken
    with Client(str(viewer.base_url)) as heed:
        answer = heed.attend("bert", text=TEXT)
    weights = answer.weights[0, 3]
    rows = list(csv.reader(io.StringIO(take("CSV").path().read_text())))
    assert rows[0] == ["", *answer.tokens]
    np.testing.assert_array_equal(np.array([row[1:] for row in rows[1:]], np.float32), weights)
    data = json.loads(take("JSON").path().read_text())
    assert (data["model"], data["layer"], data["head"], data["queries"]) == ("bert", 0, 3, answer.tokens)
    np.testing.assert_array_equal(np.array(data["weights"], np.float32), weights)


def test_pictures(taken, tmp_path):
    _, take = taken
    svg = ElementTree.fromstring(take("SVG").path().read_text())
    cells = svg.findall(".//{*}rect")
    assert len(cells) == 2 + 9 * 9 + 64  # with the background, the frame and the scale
    assert [text.text for text in svg.findall(".//{*}text")][:9] == ["<s>", *TEXT.split(), "</s>"]
    take("PNG").save_as(tmp_path / "picture.png")
    picture = imread(tmp_path / "picture.png")
    assert picture.shape[:2] == (2 * int(svg.get("height")), 2 * int(svg.get("width")))
    x, y, size = (float(cells[1].get(name)) for name in ("x", "y", "width"))  # behind the background
    red, green, blue = (int(part) for part in re.findall(r"\d+", cells[1].get("fill")))
    pixel = picture[int(2 * (y + size / 2)), int(2 * (x + size / 2)), :3] * 255
    np.testing.assert_allclose(pixel, (red, green, blue), atol=2)


def test_the_picture_of_all_heads_and_of_lines(taken):
    page, take = taken
    page.get_by_role("tab", name="Model").click()
    svg = ElementTree.fromstring(take("SVG").path().read_text())
    assert len(svg.findall(".//{*}rect")) == 1 + 4 * (9 * 9 + 1)
    page.get_by_role("tab", name="Head").click()
    page.get_by_role("button", name="all heads").click()
    svg = ElementTree.fromstring(take("SVG").path().read_text())
    assert len({path.get("stroke") for path in svg.findall(".//{*}path")}) == 4


def test_the_picture_of_a_comparison_has_both_sides_and_their_difference(taken, viewer, tmp_path):
    page, take = taken
    page.get_by_role("tab", name="Compare").click()
    page.get_by_role("combobox", name="second head").select_option("1")
    expect(page.locator(".sides [role=application]")).to_have_count(3)
    svg = ElementTree.fromstring(take("SVG").path().read_text())
    panels = svg.findall("{*}g")
    texts = [[text.text for text in panel.findall("{*}text")] for panel in panels]
    assert [words[0] for words in texts] == ["First: head 3", "Second: head 1", "Second less first"]
    assert all(words[1:10] == ["<s>", *TEXT.split(), "</s>"] for words in texts)
    assert [len(panel.findall("{*}rect")) for panel in panels] == [9 * 9 + 1 + 64] * 3  # with the frame and the scale
    with Client(str(viewer.base_url)) as heed:
        weights = heed.attend("bert", text=TEXT).weights[0, [3, 1]]
    shown = [page.locator(".sides .legend").nth(i).locator("small").last.inner_text() for i in range(3)]
    assert [words[-2] for words in texts] == shown  # the largest number of each scale
    assert float(shown[0]) == float(shown[1]) == pytest.approx(weights.max(), rel=5e-3)
    frames = [panel.findall("{*}rect")[81] for panel in panels]
    assert len({(frame.get("x"), frame.get("y"), frame.get("width"), frame.get("height")) for frame in frames}) == 1
    places = [panel.get("transform")[len("translate(") : -1].split() for panel in panels]
    assert len({y for _, y in places}) == 1
    x = [float(place) for place, _ in places]
    assert x[1] - x[0] == x[2] - x[1] > float(frames[0].get("x")) + float(frames[0].get("width"))
    take("PNG").save_as(tmp_path / "picture.png")
    picture = imread(tmp_path / "picture.png")
    assert picture.shape[:2] == (2 * int(svg.get("height")), 2 * int(svg.get("width")))
    for panel, place in zip(panels, places, strict=True):
        cell = panel.findall("{*}rect")[40]  # the middle one
        left, top, size = (float(cell.get(name)) for name in ("x", "y", "width"))
        row, column = (int(2 * (float(edge) + start + size / 2)) for edge, start in ((place[1], top), (place[0], left)))
        colour = [int(part) for part in re.findall(r"\d+", cell.get("fill"))]
        np.testing.assert_allclose(picture[row, column, :3] * 255, colour, atol=2)


def test_a_comparison_without_a_second_side_is_saved_as_the_first(open_page):
    page = open_page("model=bert&text=the+cat&view=compare&other={%22text%22:%22%22}")
    expect(page.get_by_role("region", name="second")).to_contain_text("Type a text")
    page.get_by_text("Take it along").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG", exact=True).click()
    svg = ElementTree.fromstring(download.value.path().read_text())
    assert len(svg.findall("{*}g")) == 1


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
    expect(page.get_by_text("Take it along")).to_have_count(0)
    while not waiting:
        page.wait_for_timeout(50)
    waiting[0].continue_()
    expect(page.locator(".selection .value").first).to_be_visible()
    assert page.locator(".selection .value").all_inner_texts() != first


def test_the_page_saves_itself(taken, open_file, tmp_path):
    _, take = taken
    take("HTML page").save_as(tmp_path / "saved.html")
    page = open_file(tmp_path / "saved.html")
    expect(page.get_by_role("tab", name="Matrix")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value("3")
    page.get_by_role("tab", name="Model").click()
    expect(page.locator(".thumbnail")).to_have_count(4)
    page.get_by_text("Take it along").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="HTML page").click()
    download.value.save_as(tmp_path / "again.html")
    expect(open_file(tmp_path / "again.html").get_by_role("tab", name="Model")).to_be_visible()


def test_commands_run(taken):
    page, _ = taken
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])

    def copied(name):
        page.get_by_role("button", name=f"copy as {name}").click()
        expect(page.locator(".take [role=status]")).to_have_text(f"{name} copied")
        return page.evaluate("navigator.clipboard.readText()")

    command = shlex.split(copied("curl").replace("\\\n", ""))
    done = subprocess.run(
        [*command, "--silent", "--show-error"], capture_output=True, text=True, timeout=30, check=True
    )
    assert np.shape(json.loads(done.stdout)["weights"]) == (1, 4, 9, 9)
    done = subprocess.run(
        [sys.executable, "-c", copied("Python")], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "(1, 4, 9, 9)\n"
    page.get_by_role("button", name="copy link").click()
    expect(page.locator(".take [role=status]")).to_have_text("link copied")
    link = page.evaluate("navigator.clipboard.readText()")
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_role("tab", name="Matrix")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value("3")


def test_it_says_where_the_weights_are_from(taken, open_file, tmp_path, viewer):
    _, take = taken
    take("HTML page").save_as(tmp_path / "saved.html")
    about = open_file(tmp_path / "saved.html").locator(".provenance")
    weights = viewer.get("/v1/attention/bert").json()["weights"]
    for said in ("bert, version 1", TEXT, "9 tokens", "heed 0.", weights):
        expect(about).to_contain_text(said)


def test_the_command_says_where_the_weights_are_from(open_file, viewer, tmp_path):
    path = tmp_path / "page.html"
    url = str(viewer.base_url)
    assert main(["bert", "--url", url, "--text", TEXT, "--html", str(path)]) == 0
    about = open_file(path).locator(".provenance")
    for said in ("bert, version 1", TEXT, "9 tokens"):
        expect(about).to_contain_text(said)


def test_a_label_is_no_formula_of_a_spreadsheet(open_page):
    words = ["=1+1", "+a", "-b", "@c", "it", 'say "x"', "\tt", "f=g"]
    page = show(open_page, SCORES, words, "Matrix")
    page.get_by_text("Take it along").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.reader(io.StringIO(download.value.path().read_text())))
    expected = ["'=1+1", "'+a", "'-b", "'@c", "it", 'say "x"', "'\tt", "f=g"]
    assert rows[0][1:] == [row[0] for row in rows[1:]] == expected
    assert np.array([row[1:] for row in rows[1:]], np.float32).shape == (8, 8)


def test_cross_attention_whose_places_have_the_same_names(open_page, open_file, tmp_path):
    """Queries and keys are five each, and no token is both."""
    sizes = '{"seed":1,"sizes":{"batch":1,"m":5,"n":5}}'
    page = open_page(f"model=multi_head&view=tokens&random={sizes}")
    expect(page.get_by_role("group", name="keys")).to_be_visible()
    page.get_by_text("Take it along").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="HTML page").click()
    download.value.save_as(tmp_path / "saved.html")
    saved = open_file(tmp_path / "saved.html")
    expect(saved.get_by_role("group", name="keys").get_by_role("button")).to_have_count(5)
