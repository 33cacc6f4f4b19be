"""What ``heed run`` prints on a terminal: shapes, ranges and the largest weights, where a pipe gets all numbers."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from heed_client.matrix import expanded, matrices
from heed_client.summary import summary
from tests.support.client_calls import SDPA

EXAMPLES = Path(__file__).parents[2] / "examples"
REQUEST = EXAMPLES / "sentence.json"
SENTENCE = [SDPA, "--request", REQUEST, "--labels", EXAMPLES / "sentence.tokens.json"]


def test_a_terminal_gets_a_summary_and_with_json_all_numbers(attend, sync_heed, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    status, printed, wrong = attend(*SENTENCE, "--head", "1")
    assert (status, wrong) == (0, "")
    weights = sync_heed.attend(SDPA, **json.loads(REQUEST.read_text()), heads=1).weights
    assert f"weights  [1, 1, 16, 16]   float32  {weights.min():.4g} to {weights.max():.4g}\n" in printed
    assert "the largest weight of each query, the first 8 of 16\n" in printed
    assert f"  {weights.max():.3f}  " in printed
    assert len(printed) < 1000
    all_numbers = json.loads(attend(*SENTENCE, "--head", "1", "--json")[1])
    np.testing.assert_allclose(all_numbers["weights"], weights, rtol=1e-6)


def test_each_query_has_its_largest_weight():
    weights = np.array([[[0.1, 0.9], [0.6, 0.4]], [[0.3, 0.7], [0.2, 0.8]]], np.float32)
    found = summary({"weights": weights}, matrices(weights, (), ["the", "cat"]), {})
    assert "  0.900  the -> cat  weights[0]\n  0.800  cat -> cat  weights[1]\n" in found
    assert found.startswith("weights  [2, 2, 2]  float32  0.1 to 0.9\n")


def test_masked_scores_and_tokens():
    found = summary({"scores": np.array([[1.5, -np.inf]])}, None, {"tokens": ["a", "b"]})
    assert found.startswith(
        "scores  [1, 2]  float64  1.5 to 1.5, and 1 of -infinity (masked)\ntokens  [2]     list     a b\n"
    )


@pytest.mark.parametrize(
    ("indices", "numbers"),
    [("0,3,5:8", [0, 3, 5, 6, 7]), (4, [4]), ([2, 1], [2, 1]), ("-1", []), ("::2", []), (None, [])],
)
def test_selected_numbers(indices, numbers):
    assert expanded(indices) == numbers


def test_matrices_are_named_by_what_was_selected():
    found = matrices(np.ones((1, 2, 3, 3)), (), (), (), {"heads": [4, 7]})
    assert found.names == ["weights[0, 4]", "weights[0, 7]"]
    assert matrices(np.ones((2, 1, 3, 3)), (1,), (), (), {"layers": [3, 5]}).names == ["weights[5, 0]"]


def test_files_are_named(attend, tmp_path):
    paths = ["--plot", tmp_path / "w.png", "--html", tmp_path / "w.html"]
    status, said, wrote = attend(SDPA, "--request", REQUEST, "--head", "1", *paths)
    assert (status, said) == (0, "")
    what = "weights[0, 1] of 16 queries and 16 keys"
    assert wrote == f"wrote {tmp_path / 'w.png'}: {what}\nwrote {tmp_path / 'w.html'}: {what}\n"
    assert (tmp_path / "w.png").stat().st_size > 1000
