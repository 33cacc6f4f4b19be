"""What is shown of weights: in the terminal, as a picture, as a page; and the summary of ``heed run``."""

import io
import json
import re
import sys
from html import unescape
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from heed_client.answer import Answer
from heed_client.command.labels import axes_of
from heed_client.command.matrix import Labels, expanded, matrices
from heed_client.command.plot import plot
from heed_client.command.show import COLOURS, show
from heed_client.command.summary import summary
from heed_client.page import page
from tests.support.client_calls import SDPA, page_data

EXAMPLES = Path(__file__).parents[3] / "examples"
REQUEST = EXAMPLES / "sentence.json"
SENTENCE = [SDPA, "--request", REQUEST, "--labels", EXAMPLES / "sentence.tokens.json", "--head", "1"]
WORDS = ["a", "bc", "</script>"]
WEIGHTS = np.array([[[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]], [[0, 0, 1], [0, 1, 0], [1, 0, 0]]], np.float32)


def shown(weights, at=(), width=80, words=(), **console):
    file = io.StringIO()
    show(matrices(weights, at, [Labels(words, words)]), Console(file=file, width=width, **console))
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
    (labelled,) = matrices(np.zeros(shape), (), [Labels(["a", "b"], keys)]).all
    assert (labelled.queries, labelled.keys) == (["a", "b"], list(columns))


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_plot(tmp_path, suffix, start):
    path = tmp_path / f"weights.{suffix}"
    plot(matrices(WEIGHTS, (), [Labels(WORDS, WORDS)]), str(path))
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize("size", [None, (6, 5)])
@pytest.mark.parametrize("shape", [(6, 2, 12), (4, 2, 34)])
def test_the_headings_of_many_panels_do_not_overlap(tmp_path, monkeypatch, shape, size):
    figures: list[Figure] = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: figures.append(figure) or figure.draw_without_rendering()
    )
    drawn = matrices(np.zeros((*shape, 2, 2)), axes=("layer", "row", "head"), batch_axis=1)
    plot(drawn, str(tmp_path / "plot.png"), size=size)
    texts = [text for axis in figures[0].axes for text in (axis.title, axis.yaxis.label) if text.get_text()]
    boxes = [text.get_window_extent() for text in texts]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    headings = {text.get_text() for text in texts}
    assert ({"layer 5, row 1", "head 11"} if shape[2] == 12 else {"layer 3, row 1, head 33"}) <= headings


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


def test_page_stands_alone():
    text = page(WEIGHTS, WORDS, title="<title>")
    own = re.sub(r"data:text/javascript;base64,[^\"]*", "", text)
    assert not re.search(r"(src|href)=|https?://|@import|url\((?!data:)", own)
    assert text.count("</script>") == 3  # and none of the labels
    assert "<title>&lt;title&gt;</title>" in text


@pytest.mark.parametrize(("heads", "view"), [(1, "matrix"), (2, "model")])
def test_the_page_of_one_matrix_opens_with_it(heads, view):
    assert page_data(page(np.ones((1, heads, 2, 2), np.float32), ["a", "b"]))["settings"]["view"] == view


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: matrices(WEIGHTS, [2]), "the leading indices of these weights are"),
        (lambda: matrices(WEIGHTS, [0, 0]), "the leading indices of these weights are"),
        (lambda: matrices(WEIGHTS, [-1]), "the leading indices of these weights are"),
        (lambda: plot(matrices(np.zeros((1025, 1, 1))), "never.png"), "--at"),
        (
            lambda: plot(matrices(WEIGHTS), "never.png", cmap="virids"),
            "unknown colour map 'virids'; did you mean 'viridis'",
        ),
        (lambda: matrices(WEIGHTS, subtracted=WEIGHTS[0]), "compare: "),
        (lambda: page(np.zeros((2, 3, 1, 4, 4))), "at: select one of the 3 rows of the batch"),
        (lambda: page(np.zeros(4)), r"expected \[..., m, n\], got \[4\]"),
        (lambda: page(np.zeros((2, 0, 4, 4))), "expected"),
    ],
)
def test_what_cannot_be_shown(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_a_notebook_shows_the_page():
    answer = Answer("bert", {"weights": WEIGHTS}, tokens={"tokens": WORDS, "offsets": [(0, 0), (0, 2), (3, 12)]})
    shown = answer._repr_html_()
    assert shown.startswith("<iframe")
    assert page_data(unescape(shown))["rows"] == [
        {"text": text, "special": text == "a", "padding": False, "part": 0} for text in WORDS
    ]
    assert "<td>output</td>" in Answer("sdpa", {"output": WEIGHTS})._repr_html_()


def test_a_terminal_gets_a_summary_and_with_json_all_numbers(attend, sync_heed, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    printed = attend(*SENTENCE)
    weights = sync_heed.attend(SDPA, **json.loads(REQUEST.read_text()), heads=1).weights
    assert f"weights  [1, 1, 16, 16]   float32  {weights.min():.4g} to {weights.max():.4g}\n" in printed
    assert "the largest weight of each query, the first 8 of 16\n" in printed
    assert f"  {weights.max():.3f}  " in printed
    assert len(printed) < 1000
    all_numbers = json.loads(attend(*SENTENCE, "--json"))
    np.testing.assert_allclose(all_numbers["weights"], weights, rtol=1e-6)


def test_each_query_has_its_largest_weight():
    weights = np.array([[[0.1, 0.9], [0.6, 0.4]], [[0.3, 0.7], [0.2, 0.8]]], np.float32)
    text = summary({"weights": weights}, matrices(weights, (), [Labels(["the", "cat"])]), {})
    assert "  0.900  the -> cat  weights[0]\n  0.800  cat -> cat  weights[1]\n" in text
    assert text.startswith("weights  [2, 2, 2]  float32  0.1 to 0.9\n")


def test_masked_scores_and_tokens():
    text = summary({"scores": np.array([[1.5, -np.inf]])}, None, {"tokens": ["a", "b"]})
    assert text.startswith(
        "scores  [1, 2]  float64  1.5 to 1.5, and 1 of -infinity (masked)\ntokens  [2]     list     a b\n"
    )


def test_a_long_list_of_tokens_is_shortened():
    text = summary({"weights": np.ones((1, 1))}, None, {"tokens": ["a"] * 40})
    assert text.splitlines()[1].endswith("  " + "a " * 29 + "a…")


def test_next_tokens_are_a_table():
    cat = {"id": 16, "token": "cat", "probability": 0.25}
    unknown = {"id": 27, "token": None, "probability": 0.0625}
    text = summary({"weights": np.ones((1, 1))}, None, {"next_tokens": [cat, unknown]})
    assert '\n\nthe next token\n  0.250  "cat"  (id 16)\n  0.062  (no text)  (id 27)\n' in text
    text = summary({"weights": np.ones((1, 1))}, None, {"next_tokens": [[unknown], [cat]]})
    assert '\nthe next token of text 1\n  0.250  "cat"  (id 16)\n' in text


@pytest.mark.parametrize(
    ("indices", "numbers"),
    [("0,3,5:8", [0, 3, 5, 6, 7]), (4, [4]), ([2, 1], [2, 1]), ("-1", []), ("::2", []), (None, [])],
)
def test_selected_numbers(indices, numbers):
    assert expanded(indices) == numbers


def test_matrices_are_named_by_what_was_selected():
    def names(shape, at, chosen):
        return [matrix.name for matrix in matrices(np.ones(shape), at, chosen=chosen).all]

    assert names((1, 2, 3, 3), (), {"heads": [4, 7]}) == ["weights[0, 4]", "weights[0, 7]"]
    assert names((2, 1, 3, 3), (1,), {"layers": [3, 5]}) == ["weights[5, 0]"]


def test_matrices_are_named_in_words():
    def names(shape, axes, at=(), chosen=None, **more):
        return [matrix.name for matrix in matrices(np.ones(shape), at, chosen=chosen, axes=axes, **more).all]

    stack = ["layer", "row", "head"]
    assert names((6, 1, 12, 3, 3), stack, (3, 0, 1)) == ["weights, layer 3, head 1"]
    assert names((1, 1, 2, 3, 3), stack, chosen={"layers": [3], "heads": [1, 7]}) == [
        "weights, layer 3, head 1",
        "weights, layer 3, head 7",
    ]
    assert names((2, 1, 3, 3), ["row", "head"]) == ["weights, row 0, head 0", "weights, row 1, head 0"]
    assert names((1, 3, 3), ["row"]) == ["weights"]


def test_axes_have_the_names_of_the_output(sync_heed):
    block = sync_heed.describe("encoder")
    assert axes_of(block, "weights", {}, 3) == ["layer", "row", "head"]
    assert axes_of(block, "weights", {}, 2) == ["layer", "head"]  # of one text
    assert axes_of(block, "weights", {"reduce_heads": "mean"}, 2) == ["layer", "row"]
    assert axes_of(block, "weights", {"reduce_layers": "mean"}, 2) == ["row", "head"]
    assert axes_of(block, "weights", {}, 1) == []


def test_each_text_has_its_labels_and_no_padding():
    texts = [Labels(["a", "b"], (), [False, False]), Labels(["[PAD]", "c"], (), [True, False])]
    first, second = matrices(np.arange(8.0).reshape(1, 2, 1, 2, 2), (), texts, batch_axis=1).all
    assert (first.name, first.queries, first.keys, first.weights.tolist()) == (
        *("weights[0, 0, 0]", ["a", "b"], ["a", "b"]),
        [[0, 1], [2, 3]],
    )
    assert (second.name, second.queries, second.keys, second.weights.tolist()) == (
        *("weights[0, 1, 0]", ["c"], ["c"]),
        [[7]],
    )


def test_differences_have_a_symmetric_range():
    difference = matrices(WEIGHTS, (0,), subtracted=WEIGHTS[::-1])
    assert [matrix.name for matrix in difference.all] == ["difference[0]"]
    np.testing.assert_array_equal(difference.all[0].weights, WEIGHTS[0] - WEIGHTS[1])
    assert difference.range == (-1, 1)
    assert matrices(WEIGHTS * 0, subtracted=WEIGHTS * 0).range == (-1, 1)


def test_the_panels_of_layers_and_heads_are_a_grid(tmp_path):
    stack = matrices(np.zeros((6, 1, 12, 3, 3)))
    assert (len(stack.all), stack.columns) == (72, 12)
    plot(stack, str(tmp_path / "stack.svg"), "Title & more", "viridis", (6, 4))
    picture = (tmp_path / "stack.svg").read_text()
    assert 'width="432pt" height="288pt"' in picture  # 72 points are an inch
    assert "<!-- Title &amp; more -->" in picture
    assert "<!-- 5, 0 -->" in picture
    assert "<!-- 11 -->" in picture


def test_files_are_named(command, tmp_path):
    paths = ["--plot", tmp_path / "w.png", "--html", tmp_path / "w.html"]
    status, said, wrote = command("run", SDPA, "--request", REQUEST, "--head", "1", *paths)
    assert (status, said) == (0, "")
    what = "weights, head 1 of 16 queries and 16 keys"
    assert wrote == f"wrote {tmp_path / 'w.png'}: {what}\nwrote {tmp_path / 'w.html'}: {what}\n"
    assert (tmp_path / "w.png").stat().st_size > 1000
