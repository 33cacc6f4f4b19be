"""The real request: a trained encoder's query, key and value give the weights that encoder itself reports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from export.verification.budget import largest_error
from tests.support.attending import attend, truth

os.environ["HF_HUB_OFFLINE"] = "1"
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def projected():
    import runpy

    return runpy.run_path(str(EXAMPLES / "make_sentence.py"))["project"]()


def test_weights_equal_those_that_transformers_reports(client, projected):
    """Both are float32: each may be off from float64 by its own budget."""
    _, tensors, reported = projected
    weights = attend(client, **tensors)["weights"]
    exact, budget = truth("scaled_dot_product", tensors)
    assert largest_error(weights, exact["weights"]) <= budget["weights"]
    assert largest_error(reported, exact["weights"]) <= 2 * budget["weights"]
    assert largest_error(weights, reported.astype(np.float64)) <= 3 * budget["weights"]


def test_the_file_holds_what_the_script_makes(projected):
    tokens, tensors, _ = projected
    request = json.loads((EXAMPLES / "sentence.json").read_text())
    assert json.loads((EXAMPLES / "sentence.tokens.json").read_text()) == tokens
    assert request.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_allclose(np.asarray(request[name], np.float32), array, rtol=1e-4, atol=1e-5)


def test_it_attends_to_the_animal(client):
    request = json.loads((EXAMPLES / "sentence.json").read_text())
    tokens = json.loads((EXAMPLES / "sentence.tokens.json").read_text())
    top = attend(client, **request, weights_top_k=1)["weights"]
    assert tokens[top["indices"][0, 1, tokens.index("it"), 0]] == "animal"


def test_its_help_loads_no_model():
    command = [sys.executable, "-X", "importtime", EXAMPLES / "make_sentence.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Write sentence.json")
    assert "argparse" in done.stderr
    assert "torch" not in done.stderr
