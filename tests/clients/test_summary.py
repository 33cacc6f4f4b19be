"""What ``heed run`` prints on a terminal: shapes, ranges and the largest weights, where a pipe gets all numbers."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from heed_client import Client
from heed_client.matrix import expanded, matrices
from heed_client.summary import summary
from tests.support.client_calls import SDPA

ROOT = Path(__file__).parents[2]
SENTENCE = [SDPA, "--request", "examples/sentence.json", "--labels", "examples/sentence.tokens.json"]


def on_terminal(url, *flags) -> str:
    ours, theirs = pty.openpty()
    environment = os.environ | {"HEED_URL": url, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'clients'}"}
    command = [sys.executable, "-m", "heed_client", *SENTENCE, *flags]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=theirs) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:  # the terminal is closed
            pass
        os.close(ours)
    assert process.returncode == 0
    return said.decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_summary_and_with_json_all_numbers(client):
    url = str(client.base_url)
    said = on_terminal(url, "--head", "1")
    with Client(url) as heed:
        request = json.loads((ROOT / "examples" / "sentence.json").read_text())
        weights = heed.attend(SDPA, **request, heads=1).weights
    assert f"weights  [1, 1, 16, 16]   float32  {weights.min():.4g} to {weights.max():.4g}\n" in said
    assert "the largest weight of each query, the first 8 of 16\n" in said
    assert f"  {weights.max():.3f}  " in said
    assert len(said) < 1000
    all_numbers = json.loads(on_terminal(url, "--head", "1", "--json"))
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
    flags = ["--request", ROOT / "examples" / "sentence.json", "--head", "1"]
    status, said, wrote = attend(SDPA, *flags, "--plot", tmp_path / "w.png", "--html", tmp_path / "w.html")
    assert (status, said) == (0, "")
    what = "weights[0, 1] of 16 queries and 16 keys"
    assert wrote == f"wrote {tmp_path / 'w.png'}: {what}\nwrote {tmp_path / 'w.html'}: {what}\n"
    assert (tmp_path / "w.png").stat().st_size > 1000
