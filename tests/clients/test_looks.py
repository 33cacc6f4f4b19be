"""What is shown of weights: in the terminal, as a picture, as a page."""

import io
import json
import re
from html import unescape

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from heed_client.answer import Answer
from heed_client.matrix import matrices
from heed_client.page import page
from heed_client.plot import plot
from heed_client.show import COLOURS, show

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
    rows = [re.findall(r"48;2;([\d;]+)m", line) for line in text.splitlines() if "48;2" in line]
    assert rows == [[dark, dark, light], [dark, light, dark], [light, dark, dark]]


def test_every_matrix_is_shown():
    titles = [line for line in shown(WEIGHTS).splitlines() if "weights" in line]
    assert titles == ["weights[0]: 0.00 to 1.00", "weights[1]: 0.00 to 1.00"]
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


@pytest.mark.parametrize(
    ("shape", "keys", "columns"), [((2, 3), (), "012"), ((2, 2), (), "ab"), ((2, 2), ["c", "d"], "cd")]
)
def test_words(shape, keys, columns):
    labelled = matrices(np.zeros(shape), queries=["a", "b"], keys=keys)
    assert (labelled.queries, labelled.keys) == (["a", "b"], list(columns))


@pytest.mark.parametrize("at", [[2], [0, 0], [-1]])
def test_indices_beyond_the_leading_axes(at):
    with pytest.raises(ValueError, match="leading axes"):
        matrices(WEIGHTS, at)


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_plot(tmp_path, suffix, start):
    path = tmp_path / f"weights.{suffix}"
    plot(matrices(WEIGHTS, (), WORDS, WORDS), str(path))
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


def test_page_stands_alone():
    text = page(WEIGHTS, WORDS, title="<title>")
    own = re.sub(r"data:text/javascript;base64,[^\"]*", "", text)
    assert not re.search(r"(src|href)=|https?://|@import|url\(", own)
    assert text.count("</script>") == 3  # and none of the labels
    assert "<title>&lt;title&gt;</title>" in text


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 1, 4, 4), "at: choose one of the 3 rows of the batch"),
        ((4,), r"expected \[..., m, n\], got \[4\]"),
        ((2, 0, 4, 4), "expected"),
    ],
)
def test_what_a_page_cannot_show(shape, message):
    with pytest.raises(ValueError, match=message):
        page(np.zeros(shape, np.float32))


def test_a_notebook_shows_the_page():
    answer = Answer("bert", {"weights": WEIGHTS}, tokens={"tokens": WORDS, "offsets": [(0, 0), (0, 2), (3, 12)]})
    shown = answer._repr_html_()
    assert shown.startswith("<iframe")
    assert json.loads(unescape(shown).partition('id="data">')[2].partition("</script>")[0])["rows"] == [
        {"text": text, "special": text == "a", "padding": False, "part": 0} for text in WORDS
    ]
    assert "<td>output</td>" in Answer("sdpa", {"output": WEIGHTS})._repr_html_()
