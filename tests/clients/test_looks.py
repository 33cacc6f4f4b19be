"""What is shown of weights: in the terminal, as a picture, as a page."""

import io
import json
import re
import shutil
import subprocess
from html import unescape

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from heed_client.matrix import matrices
from heed_client.page import page
from heed_client.plot import plot
from heed_client.show import COLOURS, show

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WORDS = ["a", "bc", "</script>"]
WEIGHTS = np.array([[[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]], [[0, 0, 1], [0, 1, 0], [1, 0, 0]]], np.float32)


def shown(weights, at=(), width=80, words=(), **console):
    file = io.StringIO()
    show(matrices(weights, at, words, words), Console(file=file, width=width, **console))
    return file.getvalue()


def test_shades():
    lines = shown(WEIGHTS, at=[0], words=["a", "bc", "d"]).splitlines()
    assert lines == [
        "weights[0]: 0.00 to 1.00",
        "     b",
        "   a c d",
        " a ██····",
        "bc ▒▒▒▒··",
        " d ░░░░▒▒",
    ]  # fmt: skip


def test_colours():
    text = shown(WEIGHTS, at=[1], force_terminal=True, color_system="truecolor")
    dark, light = (";".join(map(str, COLOURS[end])) for end in (0, -1))
    rows = [line for line in text.splitlines() if "48;2" in line]
    assert [re.findall(r"48;2;([\d;]+)m", row) for row in rows] == [
        [dark, dark, light], [dark, light, dark], [light, dark, dark]
    ]  # fmt: skip


def test_every_matrix_is_shown():
    assert [line for line in shown(WEIGHTS).splitlines() if "weights" in line] == [
        "weights[0]: 0.00 to 1.00", "weights[1]: 0.00 to 1.00"
    ]  # fmt: skip
    assert shown(WEIGHTS[0]).startswith("weights: ")


def test_where_there_is_no_room_a_cell_stands_for_several():
    weights = np.zeros((1, 50, 100), np.float32)
    weights[0, 49, 99] = 1
    lines = shown(weights, width=43).splitlines()
    assert lines[0] == "weights[0]: 0.00 to 1.00, a cell is the largest of 5 x 5"
    rows = [line for line in lines if "·" in line]
    assert len(rows) == 10
    assert max(map(len, lines[1:])) <= 43
    assert [row.count("█") for row in rows] == [0] * 9 + [2]
    assert rows[-1].endswith("██")


def test_negative_weights_have_a_range_of_their_own():
    assert shown(WEIGHTS - 0.5, at=[1]).splitlines()[0] == "weights[1]: -0.50 to 0.50"
    assert "░" not in shown(np.zeros((2, 2)))


def test_words():
    wide = matrices(np.zeros((2, 3)), queries=["a", "b"])
    assert (wide.queries, wide.keys) == (["a", "b"], ["0", "1", "2"])
    square = matrices(np.zeros((2, 2)), queries=["a", "b"])
    assert (square.queries, square.keys) == (["a", "b"], ["a", "b"])
    both = matrices(np.zeros((2, 2)), queries=["a", "b"], keys=["c", "d"])
    assert (both.queries, both.keys) == (["a", "b"], ["c", "d"])


def test_what_does_not_fit():
    for at in ([2], [0, 0], [-1]):
        with pytest.raises(ValueError, match="leading axes"):
            matrices(WEIGHTS, at)
    with pytest.raises(ValueError, match="labels: 2 words for 3 keys"):
        matrices(WEIGHTS, keys=["a", "b"])


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_plot(tmp_path, suffix):
    path = tmp_path / f"weights.{suffix}"
    plot(matrices(WEIGHTS, (), WORDS, WORDS), str(path))
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)


def test_a_plot_shows_the_weights(tmp_path):
    """One that is light only at its upper left, and one only at its lower right."""
    light = []
    for corner in (0, -1):
        weights = np.zeros((2, 2), np.float32)
        weights[corner, corner] = 1
        plot(matrices(weights), str(tmp_path / "plot.png"))
        picture = matplotlib.image.imread(tmp_path / "plot.png")[..., :3].sum(-1)
        height, width = (length // 3 for length in picture.shape)
        light.append((picture[height, width], picture[2 * height, int(1.6 * width)]))
    assert light[0][0] > 2 > light[0][1]
    assert light[1][0] < 1 < 2 < light[1][1]


def test_too_many_for_one_plot():
    with pytest.raises(ValueError, match="--at"):
        plot(matrices(np.zeros((65, 1, 1))), "never.png")


def test_page_stands_alone(tmp_path):
    path = tmp_path / "page.html"
    page(matrices(WEIGHTS, (), WORDS, WORDS), "<title>", str(path))
    text = path.read_text()
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text)
    assert text.count("</script>") == 2  # and none of the labels
    assert "<h1>&lt;title&gt;</h1>" in text


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here")
def test_page_in_a_browser(tmp_path):
    """Its script runs to the end: each matrix can be chosen, the cell under the pointer is told, the canvas drawn."""
    path = tmp_path / "page.html"
    page(matrices(WEIGHTS, (), WORDS, WORDS), "Weights", str(path))
    probe = """<script type="module">
      const chooser = document.getElementById("chooser"), map = document.getElementById("map");
      chooser.selectedIndex = 1;
      chooser.dispatchEvent(new Event("change"));
      const box = map.getBoundingClientRect();
      const at = {clientX: box.right - 2, clientY: box.top + map.height - 28 * 3 + 2};
      map.dispatchEvent(new MouseEvent("mousemove", at));
      const pixel = (x, y) => [...map.getContext("2d").getImageData(x, y, 1, 1).data];
      const w = map.width, h = map.height;
      const corners = [pixel(w - 5, h - 80), pixel(w - 80, h - 80), pixel(w - 80, h - 5)];
      const names = [...chooser.options].map(option => option.text);
      document.body.append(Object.assign(document.createElement("pre"), {id: "found",
        textContent: JSON.stringify({names, corners, reading: document.getElementById("reading").textContent})}));
    </script>"""
    path.write_text(path.read_text().replace("</html>", probe + "</html>"))
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--virtual-time-budget=2000", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found = json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout)[1]))
    dark, light = ([*map(int, COLOURS[end]), 255] for end in (0, -1))
    assert found == {
        "names": ["weights[0]", "weights[1]"],
        "corners": [light, dark, light],
        "reading": "query 0 (a) attends to key 2 (</script>): 1.000",
    }
