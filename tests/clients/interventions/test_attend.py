"""``attend(..., interventions=...)``: sent as they are, with arrays in them."""

import json

import numpy as np
import pytest

from heed_client import BadRequest
from heed_client.__main__ import main

IDS = [[7, 40, 23, 11, 9]]
REMOVED = '{"at": "weights", "layers": 1, "heads": 2, "scale": 0}'
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.mark.parametrize("positions", [(1, 2), np.arange(1, 3)], ids=["positions", "array of positions"])
@pytest.mark.parametrize("vector", [np.linspace(-1, 1, 32), np.linspace(-1, 1, 32).tolist()], ids=["array", "list"])
def test_an_activation_is_replaced(heed, vector, positions):
    place = {"at": "hidden", "layers": np.int64(1), "positions": positions, "replace": vector}
    answer = heed.attend("gpt", input_ids=IDS, outputs="hidden_states", interventions=[place])
    assert np.abs(answer.hidden_states[1, 0, 1:3] - np.float32(np.linspace(-1, 1, 32))).max() <= 1e-6


def test_interventions_beside_texts(heed):
    removed = [{"at": "weights", "heads": 2, "scale": 0}]
    for more in ({}, {"next_tokens": 2}):
        answer = heed.attend("gpt", text="the cat sat", interventions=removed, **more)
        assert answer.tokens == ["<s>", "the", "cat", "sat", "</s>"]
        assert np.abs(answer.weights[:, 2]).max() == 0
        assert np.abs(answer.weights[:, 1]).max() > 0


def test_the_run_without_interventions_is_an_answer_beside(heed):
    removed, body = (
        [{"at": "hidden", "layers": 1, "positions": 0, "scale": 0}],
        {"text": "the cat sat", "next_tokens": 2},
    )
    answer = heed.attend("gpt", **body, interventions=removed, baseline=True, difference=["kl"])
    plain = heed.attend("gpt", **body)
    np.testing.assert_array_equal(answer.baseline.weights, plain.weights)
    assert answer.baseline.weights.dtype == plain.weights.dtype
    assert answer.baseline.next_tokens == plain.next_tokens != answer.next_tokens
    assert answer.difference[0]["metric"] == "kl"
    of_tensors = heed.attend("gpt", input_ids=IDS, interventions=removed, difference="total_variation")
    assert 0 < of_tensors.difference["changed"] < 1


def test_an_error_names_the_place(heed):
    with pytest.raises(BadRequest) as caught:
        heed.attend("gpt", input_ids=IDS, interventions=[{"at": "hidden", "layers": 9, "scale": 0}])
    assert caught.value.field == "interventions[0].layers"


def test_the_description_has_the_sites(heed):
    block = heed.describe("gpt")
    assert block.interventions["hidden"] == [2, "batch", "n", 32]
    assert block.interventions_refused is None


def run(url, capsys, *flags):
    try:
        status = main(["gpt", "--url", url, *flags])
    except SystemExit as error:
        status = error.code
    return status, *capsys.readouterr()


def test_the_command_sends_them_in_their_order(url, capsys):
    changes = [{"at": "hidden", "layers": 1, "scale": 0}, {"at": "hidden", "layers": 1, "positions": 1, "add": [0.5]}]
    flags = [flag for change in changes for flag in ("--intervene", json.dumps(change))]
    status, printed, wrong = run(url, capsys, "--text", "the cat sat", "--outputs", "hidden_states", "--json", *flags)
    assert status == 0, wrong
    hidden = np.array(json.loads(printed)["hidden_states"])[1]
    expected = np.zeros_like(hidden)
    expected[1] = 0.5
    np.testing.assert_array_equal(hidden, expected)


def test_the_command_compares_with_the_run_without_them(url, capsys, tmp_path):
    flags = ["--text", "the cat sat", "--intervene", REMOVED, "--baseline", "--difference", "kl"]
    status, printed, wrong = run(url, capsys, *flags, "--next-tokens", "2", "--json")
    assert status == 0, wrong
    answer = json.loads(printed)
    assert answer["difference"][0]["metric"] == "kl"
    assert len(answer["baseline"]["next_tokens"]) == 2
    assert answer["baseline"]["next_tokens"] != answer["next_tokens"]
    assert np.abs(answer["baseline"]["weights"][1][2]).max() > np.abs(answer["weights"][1][2]).max() == 0
    assert run(url, capsys, *flags, "--out", str(tmp_path / "both.npz"))[0] == 0
    with np.load(tmp_path / "both.npz") as arrays:
        assert {"weights", "baseline.weights"} <= {*arrays}


def test_the_command_draws_how_the_weights_differ(url, capsys):
    flags = ["--text", "the cat sat", "--intervene", REMOVED, "--baseline", "--layer", "1", "--head", "2", "--show"]
    status, printed, wrong = run(url, capsys, *flags)
    assert (status, "difference" in printed) == (0, True), wrong


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--intervene", "[1]"], "--intervene: expected a JSON object, got '[1]'"),
        (["--intervene", '{"at": "mlp"}'], "--intervene[0].at"),
        (["--intervene", "{}", "--generate", "3"], "--intervene[0].at: missing (required)"),
        (["--baseline"], "--baseline: needs --intervene"),
        (
            ["--intervene", REMOVED, "--difference", "kl", "--lens", "2"],
            "--difference: cannot be combined with --generate",
        ),
        (["--intervene", REMOVED, "--difference", "k"], "--difference[0]: expected one of"),
        (["--intervene", REMOVED, "--baseline", "--html", "x.html"], "--html: does not draw differences"),
    ],
)
def test_the_command_says_what_is_wrong(url, capsys, flags, words):
    status, _, wrong = run(url, capsys, "--text", "the cat sat", *flags)
    assert (status, words in wrong) == (2, True), wrong


def test_the_command_lists_the_sites(url, capsys):
    _, printed, _ = run(url, capsys, "--describe")
    assert "  head_output [2, batch, 4, n, 8]" in printed
