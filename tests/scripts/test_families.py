"""``python -m scripts.families``: what the export says of small random models."""

import pytest

from scripts.families.__main__ import DESCRIBED, FAILED, NOT_BUILT, REFUSED, described, main

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


def test_a_model_that_is_several_in_one_is_described_by_its_parts():
    lines = [*described("llava_next")]
    assert [(name, outcome) for name, _, outcome, _ in lines] == [
        ("llava_next", REFUSED), ("llava_next/vision_tower", DESCRIBED), ("llava_next/language_model", DESCRIBED),
    ]  # fmt: skip
    assert lines[0][3] == "DIR has several models in one; --part exports one: vision_tower, language_model"
    assert lines[1][3].startswith("pixel_values; output, weights, hidden_states")


def test_a_model_that_reads_pictures_is_described_whole():
    _, _, outcome, names = next(described("llava"))
    assert (outcome, names.partition(", hidden")[0]) == (DESCRIBED, "input_ids; output, weights, vision_weights")


def test_a_model_that_cannot_be_small_is_not_built():
    ((name, kind, outcome, reason),) = described("resnet")
    assert (name, kind, outcome) == ("resnet", "", NOT_BUILT)
    assert reason.endswith("parameters are too many")


def test_outcomes_are_counted(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["families", "bert", "vit_mae"])
    assert main() == 0
    bert, vit_mae, counts = capsys.readouterr().out.splitlines()
    assert bert.startswith("bert | BertModel | described | input_ids; output, weights")
    assert vit_mae.startswith("vit_mae | ViTMAEModel | refused | ViTMAEModel draws random numbers")
    assert counts == "1 described, 1 refused"


def test_a_traceback_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["families", "bert"])
    monkeypatch.setattr("scripts.families.__main__.block_of", lambda *_: 1 / 0)
    assert main() == 1
    assert f"bert | BertModel | {FAILED} | ZeroDivisionError: division by zero" in capsys.readouterr().out
