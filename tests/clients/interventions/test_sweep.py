"""``sweep`` and ``lens`` of both clients, and of the command."""

import json

import numpy as np
import pytest

from heed_client import BadRequest
from heed_client.__main__ import main

IDS = [7, 40, 23, 11, 9]
PATCHED = {"at": "hidden", "from": {"text": "the dog sat"}}
TEXT = "the cat sat"
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


def test_a_sweep_has_arrays_and_labels(heed):
    answer = heed.sweep("gpt", TEXT, intervention=PATCHED, over=["layers", "positions"], metric={"probability": "cat"})
    assert (answer.axes, answer.values.shape) == (("layers", "positions"), (2, 5))
    assert answer.indices == {"layers": [0, 1], "positions": [0, 1, 2, 3, 4]}
    assert answer.tokens.tokens == ["<s>", "the", "cat", "sat", "</s>"]
    changed = (
        heed.attend("gpt", text=TEXT, outputs="output", interventions=[{**PATCHED, "layers": 1, "positions": 2}])
        .output[-1]
        .astype(np.float64)
    )
    expected = np.exp(changed - changed.max())[answer.metric["probability"][0]] / np.exp(changed - changed.max()).sum()
    assert abs(answer.values[1, 2] - expected) <= 1e-6
    assert (
        repr(answer) == f"<Sweep of gpt: {answer.metric} over 2 layers, 5 positions, unchanged {answer.unchanged:.6g}>"
    )


def test_a_sweep_takes_arrays(heed):
    replaced = {"at": "hidden", "replace": np.linspace(-1, 1, 32)}
    answer = heed.sweep("gpt", input_ids=np.array(IDS), intervention=replaced, over={"layers": 1, "positions": (1, 3)})
    assert (answer.values.shape, answer.source, answer.tokens) == ((1, 2), None, None)


def test_one_axis_may_be_a_text(heed):
    answers = [heed.sweep("gpt", TEXT, intervention=PATCHED, over=over) for over in ("layers", ["layers"])]
    assert [answer.axes for answer in answers] == [("layers",)] * 2
    assert np.array_equal(*(answer.values for answer in answers))


def test_a_lens_has_arrays(heed):
    answer = heed.lens("gpt", TEXT, lens_top_k=2)
    assert answer.indices.shape == answer.probabilities.shape == (3, 5, 2)
    assert answer.ranks.shape == answer.output_probabilities.shape == (3, 5)
    assert np.array_equal(answer.output_probabilities[-1], answer.probabilities[-1, :, 0])
    assert (answer.ranks[:, -1].tolist(), answer.tokens.tokens[1]) == ([0, 0, 0], "the")
    assert answer.predicted[0][2][0] == "cat"
    some = heed.lens("gpt", TEXT, lens_top_k=2, layers=1, interventions=[{"at": "hidden", "layers": 1, "scale": 0}])
    assert len({*some.probabilities.reshape(-1).tolist()}) == 1  # zeros have no likeliest token


def test_an_error_names_the_field(heed):
    with pytest.raises(BadRequest) as caught:
        heed.sweep("gpt", TEXT, intervention=PATCHED, over={"layers": 9})
    assert caught.value.field == "over.layers"


def run(url, capsys, *flags):
    try:
        status = main(["gpt", "--url", url, "--text", TEXT, *flags])
    except SystemExit as error:
        status = error.code
    return status, *capsys.readouterr()


def test_the_command_sweeps(url, capsys, heed):
    change = json.dumps(PATCHED)
    status, printed, wrong = run(url, capsys, "--intervene", change, "--sweep", "layers,positions", "--metric", "kl")
    assert status == 0, wrong
    values = heed.sweep("gpt", TEXT, intervention=PATCHED, over=["layers", "positions"], metric="kl").values
    assert json.loads(printed)["values"] == values.tolist()
    status, printed, wrong = run(url, capsys, "--intervene", change, "--sweep", "layers,positions", "--show")
    assert (status, [line[:7] for line in printed.splitlines() if line.startswith("layer")]) == (
        0,
        ["layer 0", "layer 1"],
    )


def test_a_sweep_without_axes_is_one_number(url, capsys):
    status, printed, wrong = run(url, capsys, "--intervene", '{"at": "hidden", "scale": 0}', "--sweep", "{}")
    assert (status, json.loads(printed)["values"] > 0) == (0, True), wrong


def test_the_command_draws_the_lens_on_a_terminal(url, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _, printed, wrong = run(url, capsys, "--lens", "1")
    header, first, *others = printed.splitlines()
    assert header.split() == ["layer", "<s>", "the", "cat", "sat", "</s>"], wrong
    assert first.split()[1::2] == ["<s>", "the", "cat", "sat", "</s>"]
    assert [line.split()[0] for line in others] == ["1", "2"]


def test_the_command_prints_a_lens_as_json(url, capsys):
    status, printed, wrong = run(url, capsys, "--lens", "1")
    answer = json.loads(printed)
    assert (status, np.shape(answer["output_probabilities"])) == (0, (3, 5)), wrong
    assert answer["output_probabilities"][2] == [one for (one,) in answer["probabilities"][2]]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sweep", "layers"], "--sweep: needs one --intervene, got 0"),
        (["--sweep", "layers", "--lens", "2"], "--lens: cannot be combined with --sweep"),
        (["--lens", "2", "--show"], "--show: cannot be combined with --lens"),
        (["--lens", "2", "--outputs", "weights"], "--outputs: cannot be combined with --lens"),
        (["--metric", "kl"], "--metric: needs --sweep"),
        (["--intervene", json.dumps(PATCHED), "--sweep", "layer"], "--sweep.layer: not an axis of hidden"),
        (["--intervene", json.dumps(PATCHED), "--sweep", "layers,,positions"], "--sweep: expected axes separated by"),
        (["--lens", "1000"], "--lens: expected a whole number from 1 to 100"),
        (["--intervene", '{"at": "mlp"}', "--sweep", "layers"], "--intervene.at: expected one of"),
        (
            ["--intervene", json.dumps(PATCHED), "--sweep", "layers", "--show"],
            "a heat map needs two axes or more, got 1",
        ),
    ],
    ids=[
        "no intervention",
        "both",
        "a drawing",
        "outputs",
        "a metric alone",
        "no axis",
        "an empty name",
        "too many tokens",
        "no site",
        "one axis",
    ],
)
def test_the_command_says_what_is_wrong(url, capsys, flags, words):
    status, _, wrong = run(url, capsys, *flags)
    assert (status, words in wrong) == (2, True), wrong
